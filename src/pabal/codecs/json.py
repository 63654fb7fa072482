"""The JSON envelope: a document with `messageId`, `type`, `payload`, … that people and other programs read and write.

Only `payload` is needed: a file with nothing else is a message. Fields that say nothing are left out.
"""

from base64 import b64decode
from datetime import UTC, datetime
from typing import Any

import msgspec

from pabal import jsontext
from pabal.errors import DecodeError, InvalidInput, InvalidText
from pabal.jsontext import Json
from pabal.message import Message, check_message, priority_of


class _Envelope(msgspec.Struct, omit_defaults=True, rename="camel"):
    message_id: str
    timestamp: datetime
    payload: Any
    payload_encoding: str = ""
    queue: str = ""
    type: str = ""
    version: int = 1
    sender: str = ""
    target: str = ""
    attributes: dict[str, Json] = {}
    headers: dict[str, str] = {}
    priority: int | None = None
    group: str = ""
    deduplication_key: str = ""
    thread_id: str = ""
    trace_id: str = ""
    reply_to: str = ""
    expires_at: datetime | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Envelope).decode


class JsonCodec:
    content_type = "application/json"
    extension = ".json"

    def encode(self, message: Message, *, queue: str = "") -> bytes:
        binary = type(message.body) is bytes
        try:
            return _encode(
                _Envelope(
                    message_id=message.id,
                    timestamp=_instant(message.created_at),
                    queue=queue,
                    payload=message.body,
                    payload_encoding="base64" if binary else "",
                    type=message.type,
                    version=message.version,
                    sender=message.sender,
                    target=message.target,
                    attributes=message.attributes,
                    headers=message.headers,
                    # Spelt out also when 0, where the reader would else take it from the attributes.
                    priority=message.priority if message.priority or "priority" in message.attributes else None,
                    group=message.group,
                    deduplication_key=message.dedup_key,
                    thread_id=message.thread_id,
                    trace_id=message.trace_id,
                    reply_to=message.reply_to,
                    expires_at=None if message.expires_at is None else _instant(message.expires_at),
                )
            )
        except UnicodeEncodeError as exc:
            raise InvalidText("the message holds a lone surrogate, which UTF-8 cannot carry") from exc

    def decode(self, data: bytes, *, id: str = "", at: float = 0.0, own: bool = False) -> Message:
        try:
            return _from_own(_decode(data)) if own else _from_any(data, id, at)
        except (InvalidInput, ValueError, OverflowError, OSError) as exc:
            code = exc.code if isinstance(exc, InvalidInput) else "InvalidEnvelope"
            raise DecodeError(f"{code}: {exc}", data) from exc


def _from_own(found: _Envelope) -> Message:
    priority = found.priority
    return Message(
        id=found.message_id,
        body=_unpack(found.payload, found.payload_encoding),
        type=found.type,
        version=found.version,
        sender=found.sender,
        target=found.target,
        attributes=found.attributes,
        headers=found.headers,
        priority=0 if priority is None else priority,
        group=found.group,
        dedup_key=found.deduplication_key,
        thread_id=found.thread_id,
        trace_id=found.trace_id,
        reply_to=found.reply_to,
        created_at=_seconds(found.timestamp),
        expires_at=None if found.expires_at is None else _seconds(found.expires_at),
    )


def _from_any(data: bytes, id: str, at: float) -> Message:
    document = jsontext.read(data, depth=jsontext.MAX_DEPTH + 1)
    if not isinstance(document, dict) or not ("payload" in document or "messageId" in document):
        # No envelope at all: whoever moved this file in means it as the body.
        document = {"payload": document}
    document = {_SEED_NAMES.get(name, name): value for name, value in document.items() if value is not None}
    for name in ("timestamp", "expiresAt"):
        if isinstance(document.get(name), int | float):
            document[name] = _instant(document[name] / 1000).isoformat()
    attributes = document.get("attributes", {})
    if isinstance(attributes, str):
        document["attributes"] = attributes = jsontext.read(attributes.encode() or b"{}")
    document.setdefault("messageId", id)
    document.setdefault("timestamp", _instant(at).isoformat())
    document.setdefault("payload", None)
    if isinstance(attributes, dict):
        document.setdefault("priority", attributes.get("priority", 0))
        document["priority"] = priority_of(document["priority"])
    return check_message(_from_own(msgspec.convert(document, _Envelope)))


# What the original envelope calls some of these fields.
_SEED_NAMES = {"createdAt": "timestamp", "expiredAt": "expiresAt", "targetConsumerId": "target"}


def _unpack(payload: Any, encoding: str) -> Json | bytes:
    if encoding == "base64":
        return b64decode(payload, validate=True)
    if encoding:
        raise ValueError(f"payloadEncoding must be base64 or absent; found {encoding!r:.40}")
    body: Json = payload
    return body


def _instant(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _seconds(instant: datetime) -> float:
    # Without an offset the writer said nothing of its zone: UTC, so that every reader agrees.
    return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()
