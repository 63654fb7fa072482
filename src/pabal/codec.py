"""The codec contract: a message to bytes and back. No I/O, no registry, no store.

Laws, each a test over every codec: decode(encode(m)) == m; any bytes give a message or DecodeError;
equal messages give equal bytes; golden files pin the bytes of each release.
"""

from typing import Protocol, runtime_checkable

from pabal.message import Message


class Codec(Protocol):
    """Encodes messages as documents and decodes them."""

    content_type: str
    extension: str

    def encode(self, message: Message, *, queue: str = "") -> bytes:
        """Return the message as bytes, with the name of its queue if the format has a place for it.

        Raise InvalidText if it holds text that UTF-8 cannot carry.
        """
        ...

    def decode(self, data: bytes, *, id: str = "", at: float = 0.0, own: bool = False) -> Message:
        """Return the message; raise DecodeError and nothing else.

        `id` and `at` are used if the bytes have no id or no time. With `own`, `encode` made these bytes and a checksum
        proves it, so that the checks of outside input may be skipped.
        """
        ...


@runtime_checkable
class Restatable(Protocol):
    """A codec whose documents contain their state."""

    def restate(self, data: bytes, state: str, *, at: float, reason: str = "") -> bytes:
        """Return the document with its status changed and every other byte as it was."""
        ...
