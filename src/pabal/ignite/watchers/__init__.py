"""Watchers: what happens outside, as messages to the team. One is a small class or a command that prints JSON lines."""
