"""The API of Amazon SQS over the queues of a store: the wire, the actions and their errors, as the service has them."""
