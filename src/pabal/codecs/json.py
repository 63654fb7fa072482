"""The JSON codec: the envelope as one compact JSON document that people and other programs read and write."""

import msgspec

from pabal import jsontext
from pabal.envelope import RAW, Envelope, envelope_of, message_from, message_of
from pabal.errors import DecodeError, InvalidInput, InvalidText
from pabal.message import Message, check_message

_encode = msgspec.json.Encoder().encode
_decode = jsontext.decoder(Envelope)


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


class RowReader(JsonCodec):
    """The JSON codec, which also reads what `RowCodec` writes: for a database whose columns may hold either."""

    def decode(self, data: bytes, *, id: str = "", at: float = 0.0, own: bool = False) -> Message:
        end = data.find(0)
        if end < 0:
            return super().decode(data, id=id, at=at, own=own)
        try:
            found = _decode(data[:end])
            if found.payload_encoding != RAW:
                raise ValueError(
                    f"bytes follow its document, and its payloadEncoding is {found.payload_encoding!r:.40}"
                )
            found.payload, found.payload_encoding = data[end + 1 :], ""
            return message_of(found) if own else check_message(message_of(found))
        except (ValueError, TypeError, OverflowError, OSError) as exc:
            raise DecodeError(f"InvalidEnvelope: {exc}", data) from exc


class RowCodec(RowReader):
    """The JSON codec for columns of a database: a body of bytes follows the document as it is, after a zero byte.

    The envelope then has no payload and the encoding `raw`. JSON text never contains a zero byte. So nothing is turned
    into base64 and back, which takes a quarter of the time of a batch.
    """

    def encode(self, message: Message, *, queue: str = "") -> bytes:
        if type(message.body) is not bytes:
            return super().encode(message, queue=queue)
        try:
            return b"%b\0%b" % (_encode(envelope_of(message, queue, encoding=RAW)), message.body)
        except UnicodeEncodeError as exc:
            raise InvalidText("the message holds a lone surrogate, which UTF-8 cannot carry") from exc
