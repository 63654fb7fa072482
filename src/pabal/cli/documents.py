"""The documents that `--json` prints, one per line. Every key is always present; instants are ISO 8601 text in UTC."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from pabal.clock import iso_stamp
from pabal.message import Message
from pabal.queues.delivery import Delivery
from pabal.store import Consumer, Entry, Failure

Document = dict[str, Any]

_FIELDS = (
    "type version sender target attributes headers priority group dedup_key unique thread_id trace_id reply_to".split()
)


def instant(at: float | None) -> str | None:
    """Return an instant as ISO 8601 in UTC, to the millisecond; None if there is none."""
    return iso_stamp(at) if at else None


def delivery_document(delivery: Delivery) -> Document:
    return {
        "queue": delivery.queue,
        "id": delivery.message.id,
        "receipt": str(delivery.receipt),
        "attempt": delivery.attempt,
        "failure": failure_document(delivery.failure),
        **message_fields(delivery.message),
    }


def entry_document(entry: Entry) -> Document:
    return {
        "queue": entry.queue,
        "id": entry.id,
        "state": str(entry.state),
        "attempt": entry.attempt,
        "due_at": instant(entry.due_at),
        "failure": failure_document(entry.failure),
        **message_fields(entry.message),
        "data": b64encode(entry.data).decode() if entry.data else None,
    }


def consumer_document(consumer: Consumer) -> Document:
    return {
        "consumer": consumer.name or None,
        "host": consumer.host or None,
        "pid": consumer.pid or None,
        "since": instant(consumer.since),
        "seen": instant(consumer.seen),
        "holds": [
            {"queue": queue, "messages": held.messages, "since": instant(held.since)}
            for queue, held in consumer.holds.items()
        ],
    }


def failure_document(failure: Failure | None) -> Document | None:
    if failure is None:
        return None
    return {
        "code": failure.code,
        "reason": failure.reason,
        "at": instant(failure.at),
        "attempt": failure.attempt,
        "consumer": failure.consumer,
    }


def message_fields(message: Message | None) -> Document:
    """Return the fields that are fixed at publish; all null if the message itself is no longer stored."""
    if message is None:
        return dict.fromkeys(("body", "body_encoding", *_FIELDS, "created_at", "expires_at"))
    binary = isinstance(message.body, bytes)
    return {
        "body": b64encode(message.body).decode() if isinstance(message.body, bytes) else message.body,
        "body_encoding": "base64" if binary else None,
        **{name: getattr(message, name) for name in _FIELDS},
        "created_at": instant(message.created_at),
        "expires_at": instant(message.expires_at),
    }
