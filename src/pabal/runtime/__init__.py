"""Loops that are woken, children that die with their parent, restarts with patience: what every service stands on."""
