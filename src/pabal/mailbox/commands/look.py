"""The commands that look at a queue or at the manager, and those that pause and resume."""

from __future__ import annotations

from typing import Any

from pabal.mailbox.commands.command import Command, Nothing, OfQueue
from pabal.mailbox.commands.context import Context
from pabal.mailbox.protocol import Request
from pabal.policy import document_of
from pabal.store import State


def status(context: Context, request: Request) -> dict[str, Any]:
    queue = context.queue(request.read(OfQueue).queue)
    counts = {str(state): 0 for state in State} | {str(state): many for state, many in queue.counts().items()}
    counts["dlq"] = counts.pop("dead")
    return {"queue": queue.name, "metrics": counts, "policy": document_of(queue.policy)}


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
