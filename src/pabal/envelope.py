"""The envelope: a message in the words that documents use (`messageId`, `payload`, `deduplicationKey`, …).

Only `payload` is needed: a document with nothing else is a message. Fields that say nothing are left out.
"""

from base64 import b64decode
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any

import msgspec

from pabal import jsontext
from pabal.jsontext import Json
from pabal.message import Message, check_message, priority_of


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


def envelope_of(message: Message, queue: str = "") -> Envelope:
    """Put a message into its envelope."""
    # By position, in the order of the fields above: by name costs three times as much, for every message.
    return Envelope(
        message.id,
        _instant(message.created_at),
        message.body,
        "base64" if type(message.body) is bytes else "",
        queue,
        message.type,
        message.version,
        message.sender,
        message.target,
        message.attributes,
        message.headers,
        # Spelt out also when 0, where the reader would else take it from the attributes.
        message.priority if message.priority or "priority" in message.attributes else None,
        message.group,
        message.dedup_key,
        message.thread_id,
        message.trace_id,
        message.reply_to,
        None if message.expires_at is None else _instant(message.expires_at),
    )


def document_of_message(message: Message, queue: str = "") -> dict[str, Json]:
    """Return the envelope as a JSON value, to be shown or carried inside another document."""
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
        _seconds(found.timestamp),
        None if found.expires_at is None else _seconds(found.expires_at),
    )


def message_from(document: Json, *, id: str, at: float) -> Message:
    """Take a message out of a document that anybody may have written; `id` and `at` stand in for missing ones."""
    if not isinstance(document, dict) or not ("payload" in document or "messageId" in document):
        # No envelope at all: whoever moved this file in means it as the body.
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
    return check_message(message_of(msgspec.convert(fields, Envelope)))


# What the original envelope calls some of these fields.
_SEED_NAMES = {"createdAt": "timestamp", "expiredAt": "expiresAt", "targetConsumerId": "target"}


def _unpack(payload: Any, encoding: str) -> bytes:
    if encoding == "base64":
        return b64decode(payload, validate=True)
    raise ValueError(f"payloadEncoding must be base64 or absent; found {encoding!r:.40}")


# The messages of a batch share their times.
_instant = lru_cache(maxsize=8)(partial(datetime.fromtimestamp, tz=UTC))


@lru_cache(maxsize=8)
def _seconds(instant: datetime) -> float:
    # Without an offset the writer said nothing of its zone: UTC, so that every reader agrees.
    return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()
