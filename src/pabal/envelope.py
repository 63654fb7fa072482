"""The envelope: a message with the field names of documents (`messageId`, `payload`, `deduplicationKey`, …).

Only `payload` is required. Fields with their default values are left out.
"""

from base64 import b64decode
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any

import msgspec

from pabal import jsontext
from pabal.clock import utc_seconds
from pabal.jsontext import Json
from pabal.message import Message, check_message, priority_of

RAW = "raw"  # the encoding of a body that follows its envelope; see `RowCodec`


class Envelope(msgspec.Struct, gc=False, omit_defaults=True, rename="camel"):
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
    unique_key: str = ""


def envelope_of(message: Message, queue: str = "", *, encoding: str = "base64") -> Envelope:
    """Put a message into its envelope. With the encoding RAW, a body of bytes stays outside."""
    packed = type(message.body) is bytes
    # By position, in the order of the fields above: names cost three times as much. tests/test_envelope.py checks it.
    return Envelope(
        message.id,
        _instant(message.created_at),
        None if packed and encoding is RAW else message.body,
        encoding if packed else "",
        queue,
        message.type,
        message.version,
        message.sender,
        message.target,
        message.attributes,
        message.headers,
        # Written even if 0, where a reader would else take it from the attributes.
        message.priority if message.priority or "priority" in message.attributes else None,
        message.group,
        message.dedup_key,
        message.thread_id,
        message.trace_id,
        message.reply_to,
        None if message.expires_at is None else _instant(message.expires_at),
        message.unique,
    )


def document_of_message(message: Message, queue: str = "") -> dict[str, Json]:
    """Return the envelope as a JSON value, to be shown or put into another document."""
    document: dict[str, Json] = msgspec.to_builtins(envelope_of(message, queue))
    return document


def message_of(found: Envelope) -> Message:
    """Take a message out of an envelope that `envelope_of` made."""
    return Message(  # by position, as above
        found.message_id,
        _unpack(found.payload, found.payload_encoding) if found.payload_encoding else found.payload,
        found.type,
        found.version,
        found.sender,
        found.target,
        found.attributes,
        found.headers,
        found.priority or 0,
        found.group,
        found.deduplication_key,
        found.thread_id,
        found.trace_id,
        found.reply_to,
        utc_seconds(found.timestamp),
        None if found.expires_at is None else utc_seconds(found.expires_at),
        found.unique_key,
    )


def message_from(document: Json, *, id: str, at: float) -> Message:
    """Take a message out of a document of any origin; `id` and `at` replace missing ones."""
    if not isinstance(document, dict) or not ("payload" in document or "messageId" in document):
        # No envelope at all: the document is the body.
        document = {"payload": document}
    fields = {_SEED_NAMES.get(name, name): value for name, value in document.items() if value is not None}
    for name in ("timestamp", "expiresAt"):
        if type(fields.get(name)) in (int, float):
            fields[name] = _instant(fields[name] / 1000)
    attributes = fields.get("attributes", {})
    if isinstance(attributes, str):
        fields["attributes"] = attributes = jsontext.read(attributes.encode() or b"{}")
    fields.setdefault("messageId", id)
    fields.setdefault("timestamp", _instant(at))
    fields.setdefault("payload", None)
    if isinstance(attributes, dict):
        fields["priority"] = priority_of(fields.get("priority", attributes.get("priority", 0)))
    return check_message(message_of(jsontext.convert(fields, Envelope)))


# The names of some of these fields in the original envelope.
_SEED_NAMES = {"createdAt": "timestamp", "expiredAt": "expiresAt", "targetConsumerId": "target"}


def _unpack(payload: Any, encoding: str) -> bytes:
    if encoding == "base64":
        return b64decode(payload, validate=True)
    raise ValueError(f"payloadEncoding must be base64 or absent; found {encoding!r:.40}")


# The messages of a batch share their times.
_instant = lru_cache(maxsize=8)(partial(datetime.fromtimestamp, tz=UTC))
