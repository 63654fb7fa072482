"""Bridges between queues and topics: each message or record is carried over at least once, then settled.

To a topic, a message takes its id and the like along as headers, and its group as the key, so that order is kept. To a
queue, topic, partition and offset are the dedup key, and a message that came from a queue keeps its id: what a crash
carries twice is stored once, within the dedup window of the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pabal.appending import Topic
from pabal.consuming import Consumer, consumer
from pabal.delivery import Delivery
from pabal.errors import InvalidName, Outage, QueueFull, StoreError
from pabal.handling import Handler, Received
from pabal.message import Message
from pabal.names import check_id
from pabal.queue import Queue
from pabal.topic import DEFAULT_SESSION, Record
from pabal.worker import Worker, worker

_MARK = "pabal-"
_CARRIED = ("id", "type", "sender", "thread_id", "trace_id", "reply_to")


def to_topic(queue: Queue, topic: Topic, *, concurrency: int = 1) -> Worker:
    """Make a worker that appends each message of a queue to a topic and then acks it."""

    def carry(delivery: Delivery) -> None:
        message = delivery.message
        topic.append(message.body, key=message.group or message.thread_id, headers=headers_of(message))

    return worker(queue, carry, concurrency=concurrency)


def to_queue(topic: Topic, group: str, queue: Queue, *, session: float = DEFAULT_SESSION) -> Consumer:
    """Make a consumer that publishes each record of a topic to a queue and then commits it.

    A queue that is full or a store that fails is an outage: the partition waits. A body that the queue refuses goes to
    the topic's dlq.
    """
    return consumer(topic, group, _carrier(queue), session=session)


def _carrier(queue: Queue) -> Handler:
    def carry(received: Received) -> None:
        record = received.record
        told = told_of(record)
        try:
            queue.publish(
                received.body,
                dedup_key=str(record),
                group=record.key,
                headers={name: text for name, text in record.headers.items() if not name.startswith(_MARK)},
                **told,
            )
        except (StoreError, QueueFull) as exc:
            raise Outage(f"{queue.name}: {exc}") from exc

    return carry


def headers_of(message: Message) -> dict[str, str]:
    """Return a message's own headers and what else it must not lose on its way through a topic."""
    told = {f"{_MARK}{name.replace('_', '-')}": getattr(message, name) for name in _CARRIED}
    return {**message.headers, **{name: text for name, text in told.items() if text}}


def told_of(record: Record) -> dict[str, Any]:
    """Return the fields of a message that came through a topic; an id that is none of ours is left out."""
    told = _fields(record.headers)
    try:
        check_id(told.get("id", ""))
    except InvalidName:
        told.pop("id", None)
    return told


def _fields(headers: Mapping[str, str]) -> dict[str, Any]:
    found = {name: headers.get(f"{_MARK}{name.replace('_', '-')}", "") for name in _CARRIED}
    return {name: text for name, text in found.items() if text}
