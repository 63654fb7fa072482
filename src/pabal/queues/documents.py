"""Messages, consumers and queues as JSON documents, for the command line and for HTTP.

Every key is always present; instants are ISO 8601 text in UTC.
"""

from __future__ import annotations

from base64 import b64encode
from contextlib import suppress
from typing import Any, Protocol, TypedDict

from pabal.clock import iso_stamp
from pabal.errors import InvalidPolicy
from pabal.message import Message
from pabal.queues.metrics import UNUSABLE, age_of_oldest
from pabal.queues.queue import Queue
from pabal.queues.schedules import Schedule
from pabal.store import Consumer, Entry, Failure, Receipt, State

Document = dict[str, Any]


class QueueStatus(TypedDict):
    """How many messages of a queue are in each state. If its policy or its folders cannot be read, `fault` says why."""

    queue: str
    ready: int
    delayed: int
    inflight: int
    dead: int
    done: int
    corrupt: int
    oldest_ready_seconds: float | None
    paused: bool | None
    fault: str | None


class QueueFigures(QueueStatus):
    """What a queue holds, and what has happened in it since its store was made."""

    oldest_inflight_seconds: float | None
    published: int
    delivered: int
    acked: int
    retried: int
    dead_letters: dict[str, int]


_FIELDS = (
    "type version sender target attributes headers priority group dedup_key unique thread_id trace_id reply_to".split()
)


def instant(at: float | None) -> str | None:
    """Return an instant as ISO 8601 in UTC, to the millisecond; None if there is none."""
    return iso_stamp(at) if at else None


class Leased(Protocol):
    """A delivery, awaited or not."""

    @property
    def message(self) -> Message: ...
    @property
    def receipt(self) -> Receipt: ...
    @property
    def attempt(self) -> int: ...
    @property
    def failure(self) -> Failure | None: ...
    @property
    def queue(self) -> str: ...


def delivery_document(delivery: Leased) -> Document:
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


def schedule_document(schedule: Schedule) -> Document:
    names = ("name", "queue", "cron", "every", "timezone", "catch_up", "type", "body")
    return {**{name: getattr(schedule, name) for name in names}, "next": instant(schedule.next)}


def failure_document(failure: Failure | None) -> Document | None:
    """Return a failure with those of earlier attempts, the oldest first."""
    if failure is None:
        return None
    return {**_attempt_document(failure), "before": [_attempt_document(each) for each in failure.before]}


def _attempt_document(failure: Failure) -> Document:
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


def status_document(queue: Queue, now: float) -> QueueStatus:
    """Count the messages of a queue, and say whether it is paused. Of a damaged one, only the fault is known."""
    paused, fault = None, None
    try:
        counts = {str(state): count for state, count in queue.counts().items()}
        oldest = age_of_oldest(queue, State.READY, now)
    except UNUSABLE as exc:
        counts, oldest, fault = {}, None, str(exc)
    try:
        paused = queue.paused
    except InvalidPolicy as exc:  # the figures of the queue, and other queues, are shown in any case
        fault = str(exc)
    except UNUSABLE as exc:
        fault = str(exc)
    return QueueStatus(
        queue=queue.name,
        ready=counts.get("ready", 0),
        delayed=counts.get("delayed", 0),
        inflight=counts.get("inflight", 0),
        dead=counts.get("dead", 0),
        done=counts.get("done", 0),
        corrupt=counts.get("corrupt", 0),
        oldest_ready_seconds=oldest,
        paused=paused,
        fault=fault,
    )


def figures_document(queue: Queue, now: float) -> QueueFigures:
    """Count the messages of a queue, and what has happened in it."""
    counters = queue.store.counters(queue.name)
    oldest = None
    with suppress(*UNUSABLE):  # the status has the fault
        oldest = age_of_oldest(queue, State.INFLIGHT, now)
    return QueueFigures(
        **status_document(queue, now),
        oldest_inflight_seconds=oldest,
        published=counters.published,
        delivered=counters.delivered,
        acked=counters.acked,
        retried=counters.retried,
        dead_letters=dict(counters.dead),
    )
