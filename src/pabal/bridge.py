"""Bridges between queues and topics: each message or record is carried over at least once, then settled.

To a topic, a message takes its id, attributes, priority and the like along as headers, and its group, or else its
thread, as the key, so that order is kept. To a queue, topic, partition and offset are the dedup key, and a message that
came from a queue is itself again: what a crash carries twice is stored once, within the dedup window of the queue.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from pabal import jsontext
from pabal.appending import Topic
from pabal.consuming import Consumer, consumer
from pabal.delivery import Delivery
from pabal.errors import InvalidName, Outage, QueueFull, StoreClosed, StoreError, StoreFailed, StoreRefused
from pabal.handling import Received
from pabal.lanes import OUTAGE
from pabal.message import Message, check_message, replace
from pabal.names import check_id
from pabal.queue import Queue
from pabal.store import Draft
from pabal.topic import DEFAULT_SESSION, Record
from pabal.worker import Worker, worker

log = logging.getLogger("pabal")

_SLICE = 0.2  # seconds between looks whether to stop
_FINAL = (StoreFailed, StoreRefused, StoreClosed)  # of a store: waiting with the same handle is in vain
_MARK = "pabal-"
_WORDS = ("id", "type", "sender", "target", "group", "thread_id", "trace_id", "reply_to")
_VALUES = ("version", "attributes", "priority", "expires_at")  # as JSON
_PLAIN = Message(id="", body=None)  # what it says goes without saying


def to_topic(queue: Queue, topic: Topic, *, concurrency: int = 1) -> Worker:
    """Make a worker that appends each message of a queue to a topic and then acks it.

    While the topic's store fails it waits with what it holds, and gives it back when stopped: that is no failure of the
    message. When the topic's connection was closed, the run ends with that error.
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
                log.warning("%s waits for %s: %s", delivery.receipt, topic.name, exc)
            sit_out(outages, lambda: carrier.stopping)

    carrier = worker(queue, carry, concurrency=concurrency)
    return carrier


def to_queue(topic: Topic, group: str, queue: Queue, *, session: float = DEFAULT_SESSION) -> Consumer:
    """Make a consumer that publishes each record of a topic to a queue and then commits it.

    A full queue or disk is an outage: the partition waits. A body that the queue refuses goes to the topic's dlq.
    When the store of the queue fails, the run ends with that error, and what was not published is not committed: such a
    handle promises nothing more, and whoever opened it must open another.
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
    told = told_of(record)
    if record.key != told.get("thread_id"):  # the key of who has no group: threads keep their order in topics only
        told.setdefault("group", record.key)
    expires_at = told.pop("expires_at", None)
    own = {name: text for name, text in record.headers.items() if not name.startswith(_MARK)}
    draft = queue.draft(received.body, dedup_key=str(record), headers=own, **told)
    if expires_at is None or draft.queue != queue.name:  # a dead letter in its stead has all the time there is
        return draft
    return replace(draft, message=check_message(replace(draft.message, expires_at=expires_at)))


def headers_of(message: Message) -> dict[str, str]:
    """Return a message's own headers and what else it must not lose on its way through a topic."""
    told = {name: getattr(message, name) for name in (*_WORDS, *_VALUES)}
    own = {name: value for name, value in told.items() if value != getattr(_PLAIN, name)}
    return {**message.headers, **{_header(name): _text_of(name, value) for name, value in own.items()}}


def told_of(record: Record) -> dict[str, Any]:
    """Return the fields of a message that came through a topic; an id that is none of ours is left out."""
    found = {name: record.headers.get(_header(name), "") for name in (*_WORDS, *_VALUES)}
    told: dict[str, Any] = {
        name: jsontext.read(text.encode()) if name in _VALUES else text for name, text in found.items() if text
    }
    try:
        check_id(told.get("id", ""))
    except InvalidName:
        told.pop("id", None)
    return told


def _text_of(name: str, value: Any) -> str:
    return jsontext.encode(value).decode() if name in _VALUES else str(value)


def _header(name: str) -> str:
    return f"{_MARK}{name.replace('_', '-')}"


def sit_out(outages: int, stopping: Callable[[], bool]) -> None:
    """Wait as long as so many outages in a row call for, or until it is time to stop."""
    end = time.monotonic() + OUTAGE.delay(outages, random.random())
    while not stopping() and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _SLICE))
