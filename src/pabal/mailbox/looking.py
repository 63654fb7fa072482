"""The commands that look at a queue or at the manager, and those that pause and resume."""

from __future__ import annotations

from typing import Any

from pabal.mailbox.command import Command, Nothing, OfQueue
from pabal.mailbox.desk import Desk
from pabal.mailbox.protocol import Request
from pabal.policy import document_of
from pabal.store import State


def status(desk: Desk, request: Request) -> dict[str, Any]:
    queue = desk.queue(request.read(OfQueue).queue)
    counts = {str(state): 0 for state in State} | {str(state): many for state, many in queue.counts().items()}
    counts["dlq"] = counts.pop("dead")
    return {"queue": queue.name, "metrics": counts, "policy": document_of(queue.policy)}


def queues(desk: Desk, request: Request) -> dict[str, Any]:
    request.read(Nothing)
    return {"queues": sorted({*desk.store.queues(), *(desk.settings.queues or ())})}


def pause(desk: Desk, request: Request) -> dict[str, Any]:
    queue = desk.queue(request.read(OfQueue).queue)
    queue.pause()
    return {"queue": queue.name, "paused": True}


def resume(desk: Desk, request: Request) -> dict[str, Any]:
    queue = desk.queue(request.read(OfQueue).queue)
    queue.resume()
    return {"queue": queue.name, "paused": False}


def health(desk: Desk, request: Request) -> dict[str, Any]:
    request.read(Nothing)
    return {"status": "ok", "timestamp": round(desk.clock.now() * 1000), **desk.extra("health")}


def metrics(desk: Desk, request: Request) -> dict[str, Any]:
    request.read(Nothing)
    return {**desk.tally.document(), **desk.extra("metrics")}


LOOKING: dict[str, Command] = {
    "status": Command(status),
    "health": Command(health),
    "metrics": Command(metrics),
    "queues": Command(queues),
    "pause": Command(pause),
    "resume": Command(resume),
}
