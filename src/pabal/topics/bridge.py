"""Bridges between queues and topics: each message or record is carried at least once, then settled.

To a topic: id, attributes, priority and so on become headers, and the group, or else the thread, becomes the key, so
that order is kept. To a queue: topic, partition and offset are the dedup key, and a message that came from a queue gets
its fields back. A message that a crash carries twice is stored once, within the dedup window of the queue.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from pabal import jsontext
from pabal.errors import InvalidName, Outage, QueueFull, StoreClosed, StoreError, StoreFailed, StoreRefused
from pabal.message import Message, check_message, replace
from pabal.names import check_id
from pabal.queues.delivery import Delivery
from pabal.queues.queue import Queue
from pabal.queues.worker import Worker, worker
from pabal.store import Draft
from pabal.topic_store import DEFAULT_SESSION, Record
from pabal.topics.attempts import Received
from pabal.topics.consumer import Consumer, consumer
from pabal.topics.paused_partitions import OUTAGE
from pabal.topics.topic import Topic

log = logging.getLogger("pabal")

_SLICE = 0.2  # seconds between looks whether to stop
_FINAL = (StoreFailed, StoreRefused, StoreClosed)  # waiting with the same handle of the store is useless
_MARK = "pabal-"
_WORDS = ("id", "type", "sender", "target", "group", "thread_id", "trace_id", "reply_to")
_VALUES = ("version", "attributes", "priority", "expires_at")  # as JSON
_PLAIN = Message(id="", body=None)  # its fields have the defaults, which are left out


def to_topic(
    queue: Queue,
    topic: Topic,
    *,
    concurrency: int = 1,
    chance: Callable[[], float] = random.random,
    sleep: Callable[[float], None] = time.sleep,
) -> Worker:
    """Make a worker that appends each message of a queue to a topic and then acks it.

    While the topic's store fails, the worker keeps its messages and waits; when stopped it gives them back, which is no
    failure of the message. If the topic's connection was closed, the run ends with that error.
    """

    def carry(delivery: Delivery) -> None:
        message = delivery.message
        for outages in count(1):
            try:
                topic.append(message.body, key=message.group or message.thread_id, headers=headers_of(message))
                return
            except StoreError as exc:
                if isinstance(exc, StoreClosed):
                    carrier.give_up(exc)
                if carrier.stopping:
                    delivery.release()
                    raise
                receipt = delivery.receipt
                fields = {"queue": receipt.queue, "id": receipt.id, "topic": topic.name, "error": str(exc)}
                log.warning("%(queue)s/%(id)s waits for %(topic)s: %(error)s", fields)
            end = topic.clock.boot() + OUTAGE.delay(outages, chance())
            while not carrier.stopping and (left := end - topic.clock.boot()) > 0:
                sleep(min(left, _SLICE))

    carrier = worker(queue, carry, concurrency=concurrency)
    return carrier


def to_queue(topic: Topic, group: str, queue: Queue, *, session: float = DEFAULT_SESSION) -> Consumer:
    """Make a consumer that publishes each record of a topic to a queue and then commits it.

    A full queue or disk is an outage: the partition waits. A body that the queue refuses goes to the topic's dlq.
    If the store of the queue fails, the run ends with that error, and records that were not published are not
    committed: the caller must open the store again.
    """

    def carry(received: Received) -> None:
        try:
            queue.publish_many([_draft_of(received, queue)])
        except (StoreError, QueueFull) as exc:
            if isinstance(exc, _FINAL):
                carrier.give_up(exc)
            raise Outage(f"{queue.name}: {exc}") from exc

    carrier = consumer(topic, group, carry, session=session)
    return carrier


def _draft_of(received: Received, queue: Queue) -> Draft:
    record = received.record
    fields = fields_of(record)
    if record.key != fields.get("thread_id"):  # a key that is only the thread is no group: queues do not order threads
        fields.setdefault("group", record.key)
    expires_at = fields.pop("expires_at", None)
    own = {name: text for name, text in record.headers.items() if not name.startswith(_MARK)}
    draft = queue.draft(received.body, dedup_key=str(record), headers=own, **fields)
    if expires_at is None or draft.failure is not None:  # a dead letter never expires
        return draft
    return replace(draft, message=check_message(replace(draft.message, expires_at=expires_at)))


def headers_of(message: Message) -> dict[str, str]:
    """Return the headers of a message, and its other fields as headers."""
    fields = {name: getattr(message, name) for name in (*_WORDS, *_VALUES)}
    own = {name: value for name, value in fields.items() if value != getattr(_PLAIN, name)}
    return {**message.headers, **{_header(name): _text_of(name, value) for name, value in own.items()}}


def fields_of(record: Record) -> dict[str, Any]:
    """Return the fields of a message that came through a topic, without an id that is not valid here."""
    found = {name: record.headers.get(_header(name), "") for name in (*_WORDS, *_VALUES)}
    fields: dict[str, Any] = {
        name: jsontext.read(text.encode()) if name in _VALUES else text for name, text in found.items() if text
    }
    try:
        check_id(fields.get("id", ""))
    except InvalidName:
        fields.pop("id", None)
    return fields


def _text_of(name: str, value: Any) -> str:
    return jsontext.encode(value).decode() if name in _VALUES else str(value)


def _header(name: str) -> str:
    return f"{_MARK}{name.replace('_', '-')}"
