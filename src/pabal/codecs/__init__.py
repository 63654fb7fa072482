"""Drivers of the codec contract: how a message is written down."""
