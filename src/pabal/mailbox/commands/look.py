"""The commands that look at a queue or at the manager, and those that pause and resume."""

from __future__ import annotations

from typing import Any

from pabal.errors import InvalidPolicy
from pabal.mailbox.commands.command import Command, Nothing, OfQueue
from pabal.mailbox.commands.context import Context
from pabal.mailbox.protocol import Request
from pabal.policy import document_of
from pabal.queue import Queue
from pabal.store import State


def status(context: Context, request: Request) -> dict[str, Any]:
    name = request.read(OfQueue).queue
    # To look is not to use: whatever the store holds is counted, though the configuration may name others only.
    queue = context.any_queue(name) if name in context.store.queues() else context.queue(name)
    counts = {str(state): 0 for state in State} | {str(state): many for state, many in queue.counts().items()}
    counts["dlq"] = counts.pop("dead")
    return {"queue": queue.name, "metrics": counts, **_policy_facts(queue)}


def _policy_facts(queue: Queue) -> dict[str, Any]:
    """Show the policy, or say why it cannot be read: what is there is counted all the same."""
    try:
        return {"policy": document_of(queue.policy)}
    except InvalidPolicy as exc:
        return {"policy": None, "fault": str(exc)}


def queues(context: Context, request: Request) -> dict[str, Any]:
    request.read(Nothing)
    return {"queues": sorted({*context.store.queues(), *(context.settings.queues or ())})}


def pause(context: Context, request: Request) -> dict[str, Any]:
    queue = context.queue(request.read(OfQueue).queue)
    queue.pause()
    return {"queue": queue.name, "paused": True}


def resume(context: Context, request: Request) -> dict[str, Any]:
    queue = context.queue(request.read(OfQueue).queue)
    queue.resume()
    return {"queue": queue.name, "paused": False}


def health(context: Context, request: Request) -> dict[str, Any]:
    request.read(Nothing)
    return {"status": "ok", "timestamp": round(context.clock.now() * 1000), **context.extra("health")}


def metrics(context: Context, request: Request) -> dict[str, Any]:
    request.read(Nothing)
    return {**context.tally.document(), **context.extra("metrics")}


LOOKING: dict[str, Command] = {
    "status": Command(status),
    "health": Command(health),
    "metrics": Command(metrics),
    "queues": Command(queues),
    "pause": Command(pause),
    "resume": Command(resume),
}
