"""What the envoy needs of a chat, whichever it is."""

from __future__ import annotations

from typing import Protocol


class Chat(Protocol):
    """A place with channels, threads and reactions. Raises NotSent."""

    def post(self, channel: str, text: str, thread_ts: str = "") -> str:
        """Say something, in a thread if one is given; return the mark of the message."""
        ...

    def react(self, channel: str, message_ts: str, name: str, *, instead_of: str = "") -> None:
        """Put a reaction on a message, and take another one off."""
        ...
