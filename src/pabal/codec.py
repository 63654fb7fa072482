"""The codec contract: a message to bytes and back. No I/O, no registry, no store.

Laws, each a test over every codec: decode(encode(m)) == m; any bytes give a message or DecodeError;
equal messages give equal bytes; golden files pin what each release wrote.
"""

from typing import Protocol, runtime_checkable

from pabal.message import Message


class Codec(Protocol):
    """How a message is written down."""

    content_type: str
    extension: str

    def encode(self, message: Message, *, queue: str = "") -> bytes:
        """Return the message as bytes, with the queue it is bound for where the format has a place for it.

        Raise InvalidText if it holds text that UTF-8 cannot carry.
        """
        ...

    def decode(self, data: bytes, *, id: str = "", at: float = 0.0, own: bool = False) -> Message:
        """Return the message; raise DecodeError and nothing else.

        `id` and `at` stand in where the bytes name no id and no time. `own` says that `encode` made these bytes and a
        checksum proves it, so that the checks on outside input may be left out.
        """
        ...


@runtime_checkable
class Restatable(Protocol):
    """A codec whose documents say their own state."""

    def restate(self, data: bytes, state: str, *, at: float, reason: str = "") -> bytes:
        """Return the document with its status changed and every other byte as it was."""
        ...
