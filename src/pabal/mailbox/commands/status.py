"""The commands that report on a queue or on the manager, and those that pause and resume a queue."""

from __future__ import annotations

from typing import Any

from pabal.errors import InvalidPolicy
from pabal.mailbox.commands.context import Command, Context, EmptyPayload, QueuePayload
from pabal.mailbox.protocol import Request
from pabal.policy.policy import document_of
from pabal.queues.queue import Queue
from pabal.store import Consumer, State


def status(context: Context, request: Request) -> dict[str, Any]:
    name = request.read(QueuePayload).queue
    # Reading is always allowed: any queue of the store is counted, also one that the configuration does not name.
    queue = context.any_queue(name) if name in context.store.queues() else context.queue(name)
    counts = {str(state): 0 for state in State} | {str(state): count for state, count in queue.counts().items()}
    counts["dlq"] = counts.pop("dead")
    return {"queue": queue.name, "metrics": counts, **_policy_facts(queue)}


def _policy_facts(queue: Queue) -> dict[str, Any]:
    """Return the policy, or why it cannot be read: the messages are counted in either case."""
    try:
        return {"policy": document_of(queue.policy), "paused": queue.paused}
    except InvalidPolicy as exc:
        return {"policy": None, "paused": None, "fault": str(exc)}


def queues(context: Context, request: Request) -> dict[str, Any]:
    request.read(EmptyPayload)
    return {"queues": sorted({*context.store.queues(), *(context.settings.queues or ())})}


def consumers(context: Context, request: Request) -> dict[str, Any]:
    request.read(EmptyPayload)
    return {"consumers": [_consumer(found) for found in context.store.consumers()]}


def _consumer(found: Consumer) -> dict[str, Any]:
    return {
        "consumerId": found.name or None,
        "host": found.host or None,
        "pid": found.pid or None,
        "since": round(found.since * 1000) or None,
        "seen": round(found.seen * 1000) or None,
        "holds": [
            {"queue": queue, "messages": held.messages, "since": round(held.since * 1000)}
            for queue, held in found.holds.items()
        ],
    }


def pause(context: Context, request: Request) -> dict[str, Any]:
    queue = context.known_queue(request.read(QueuePayload).queue)
    queue.pause()
    return {"queue": queue.name, "paused": True}


def resume(context: Context, request: Request) -> dict[str, Any]:
    queue = context.known_queue(request.read(QueuePayload).queue)
    queue.resume()
    return {"queue": queue.name, "paused": False}


def health(context: Context, request: Request) -> dict[str, Any]:
    request.read(EmptyPayload)
    return {"status": "ok", "timestamp": round(context.clock.now() * 1000), **context.extra("health")}


def metrics(context: Context, request: Request) -> dict[str, Any]:
    request.read(EmptyPayload)
    return {**context.stats.document(), **context.extra("metrics")}


STATUS_COMMANDS: dict[str, Command] = {
    "status": Command(status),
    "health": Command(health),
    "metrics": Command(metrics),
    "queues": Command(queues),
    "consumers": Command(consumers),
    "pause": Command(pause),
    "resume": Command(resume),
}
