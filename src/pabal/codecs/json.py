"""The JSON codec: the envelope as one compact JSON document that people and other programs read and write."""

import msgspec

from pabal import jsontext
from pabal.envelope import Envelope, envelope_of, message_from, message_of
from pabal.errors import DecodeError, InvalidInput, InvalidText
from pabal.message import Message

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Envelope).decode


class JsonCodec:
    content_type = "application/json"
    extension = ".json"

    def encode(self, message: Message, *, queue: str = "") -> bytes:
        try:
            return _encode(envelope_of(message, queue))
        except UnicodeEncodeError as exc:
            raise InvalidText("the message holds a lone surrogate, which UTF-8 cannot carry") from exc

    def decode(self, data: bytes, *, id: str = "", at: float = 0.0, own: bool = False) -> Message:
        try:
            if own:
                return message_of(_decode(data))
            return message_from(jsontext.read(data, depth=jsontext.MAX_DEPTH + 1), id=id, at=at)
        except (ValueError, TypeError, OverflowError, OSError) as exc:
            code = exc.code if isinstance(exc, InvalidInput) else "InvalidEnvelope"
            raise DecodeError(f"{code}: {exc}", data) from exc
