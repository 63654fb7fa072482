"""IGNITE: messages as MIME files between named agents."""
