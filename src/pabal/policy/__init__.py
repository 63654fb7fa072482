"""The policy of a queue, and the schemas of its message bodies."""
