"""The mailbox: requests and answers as files, so that any program that writes files can use a manager's queues."""
