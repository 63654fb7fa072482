"""The commands for schedules: add or change, list, remove."""

from __future__ import annotations

from typing import Any

from pabal.errors import MessageUnknown
from pabal.mailbox.commands.context import Command, Context, EmptyPayload, Payload
from pabal.mailbox.protocol import Request
from pabal.queues.queue import schedules_of
from pabal.queues.schedules import CatchUp, Schedule, make_schedule


class _Schedule(Payload, frozen=True, kw_only=True):
    name: str
    queue: str
    cron: str | None = None
    every_sec: float | None = None
    timezone: str = ""
    catch_up: CatchUp = "once"
    message: Any = None
    type: str = ""


class _Named(Payload, frozen=True):
    name: str


def schedule(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_Schedule)
    made = make_schedule(
        asked.name,
        queue=context.queue(asked.queue).name,
        body=asked.message,
        cron=asked.cron,
        every=asked.every_sec,
        timezone=asked.timezone,
        catch_up=asked.catch_up,
        type=asked.type,
    )
    return _document(schedules_of(context.store, context.clock).add(made))


def schedules(context: Context, request: Request) -> dict[str, Any]:
    request.read(EmptyPayload)
    return {"schedules": [_document(each) for each in schedules_of(context.store, context.clock).all()]}


def unschedule(context: Context, request: Request) -> dict[str, Any]:
    name = request.read(_Named).name
    if not schedules_of(context.store, context.clock).remove(name) and not request.repeated:
        raise MessageUnknown(f"no schedule {name!r:.80}")
    return {"name": name, "removed": True}


def _document(found: Schedule) -> dict[str, Any]:
    return {
        "name": found.name,
        "queue": found.queue,
        "cron": found.cron or None,
        "everySec": found.every or None,
        "timezone": found.timezone,
        "catchUp": found.catch_up,
        "message": found.body,
        "type": found.type,
        "nextAt": round(found.next * 1000),
    }


SCHEDULE_COMMANDS: dict[str, Command] = {
    "schedule": Command(schedule),
    "schedules": Command(schedules),
    "unschedule": Command(unschedule),
}
