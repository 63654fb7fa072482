"""Message move tasks: the messages of a dead-letter queue go back to where they came from, or to another queue.

A task is a row in the document of its source queue, so that any gateway can show and cancel it. The gateway that
started it moves the messages, each in one step with its acknowledgement. If that gateway ends, the task has failed:
messages that were not moved are still there, and another task moves them.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import uuid4

import pabal.aio
from pabal.clock import Clock
from pabal.errors import PabalError
from pabal.gateway.sqs.errors import SqsError
from pabal.gateway.sqs.messages import source_of
from pabal.queues.verdicts import ORIGINAL_ID

log = logging.getLogger("pabal.gateway")

_KEPT = 10  # tasks that are shown of a queue
_AT_ONCE = 100  # messages of one lease
_SILENT = 30.0  # seconds after which a task that notes nothing has failed: its gateway has ended
_RUNNING = "RUNNING"
_CANCELLING = "CANCELLING"

Note = Callable[[Callable[[Mapping[str, Any]], Mapping[str, Any]]], Awaitable[None]]


class MoveTasks:
    """The tasks of one gateway."""

    def __init__(self, mq: pabal.aio.Connection, clock: Clock) -> None:
        self._mq = mq
        self._clock = clock
        self._running: set[asyncio.Task[None]] = set()

    async def start(self, source: pabal.aio.Queue, target: str, rate: int | None, note: Note) -> str:
        """Begin a task and return its handle; raise UnsupportedOperation if one is running."""
        id = uuid4().hex
        task = {
            "id": id,
            "status": _RUNNING,
            "target": target,
            "rate": rate,
            "moved": 0,
            "toMove": (await source.counts())[pabal.State.READY],
            "startedAt": round(self._clock.now(), 3),
            "seenAt": round(self._clock.now(), 3),
        }

        def add(document: Mapping[str, Any]) -> Mapping[str, Any]:
            tasks = self.shown(document)
            if any(each["status"] in (_RUNNING, _CANCELLING) for each in tasks):
                raise SqsError(
                    "UnsupportedOperation",
                    "There is already a task running. Only one active task is allowed for a source queue arn at a given"
                    " time.",
                )
            return {**document, "moves": [task, *tasks][:_KEPT]}

        await note(add)
        running = asyncio.create_task(self._run(source, task, note))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return handle_of_task(source.name, id)

    def shown(self, document: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the tasks of a queue, the last one first; one whose gateway has ended has failed."""
        found = [dict(task) for task in document.get("moves", [])]
        for task in found:
            if task["status"] in (_RUNNING, _CANCELLING) and self._clock.now() - task["seenAt"] > _SILENT:
                task |= {"status": "FAILED", "reason": "The gateway that moved them has ended: start another task."}
        return found

    async def cancel(self, id: str, note: Note) -> int:
        """Ask for the end of a task; return how many messages it has moved."""
        moved = 0

        def change(document: Mapping[str, Any]) -> Mapping[str, Any]:
            nonlocal moved
            tasks = self.shown(document)
            found = next((task for task in tasks if task["id"] == id), None)
            if found is None:
                raise SqsError("ResourceNotFoundException", "Task does not exist.")
            if found["status"] != _RUNNING:
                raise SqsError(
                    "InvalidParameterValueException",
                    f"Only active tasks can be cancelled; this one is {found['status']}.",
                )
            found["status"], moved = _CANCELLING, found["moved"]
            return {**document, "moves": tasks}

        await note(change)
        return moved

    async def close(self) -> None:
        """End the tasks of this gateway."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _run(self, source: pabal.aio.Queue, task: dict[str, Any], note: Note) -> None:
        status, reason = "COMPLETED", ""
        try:
            async for _ in self._steps(source, task):
                if await self._noted(task, note):
                    status = "CANCELLED"
                    break
        except asyncio.CancelledError:
            status, reason = "FAILED", "The gateway was stopped: start another task."
        except PabalError as exc:
            status, reason = "FAILED", str(exc)
            log.warning("a move task of %(queue)s failed: %(error)s", {"queue": source.name, "error": reason})
        await asyncio.shield(self._noted(task, note, status, reason))

    async def _steps(self, source: pabal.aio.Queue, task: dict[str, Any]) -> Any:
        """Move the messages that were there when the task began; yield after each batch."""
        rate = task["rate"]
        left = task["toMove"]
        while left > 0:
            found = await source.lease(min(left, _AT_ONCE, rate or _AT_ONCE))
            if not found:
                return
            await asyncio.gather(*(self._move(delivery, task) for delivery in found))
            left -= len(found)
            task["moved"] += len(found)
            yield
            if rate:
                await asyncio.sleep(len(found) / rate)

    async def _move(self, delivery: pabal.aio.Delivery, task: dict[str, Any]) -> None:
        message = delivery.message
        target = self._mq.queue(task["target"] or source_of(message) or delivery.queue)
        headers = {**message.headers, ORIGINAL_ID: message.headers.get(ORIGINAL_ID, message.id)}
        draft = await target.draft(
            message.body,
            type=message.type or None,
            sender=message.sender or None,
            attributes=message.attributes or None,
            headers=headers,
            group=message.group or None,
        )
        await delivery.ack(then=[draft])

    async def _noted(self, task: dict[str, Any], note: Note, status: str = "", reason: str = "") -> bool:
        """Write how far it is; return whether somebody asked for its end."""
        asked = False

        def change(document: Mapping[str, Any]) -> Mapping[str, Any]:
            nonlocal asked
            tasks = [dict(each) for each in document.get("moves", [])]
            for each in tasks:
                if each["id"] == task["id"]:
                    asked = each["status"] == _CANCELLING
                    each |= {"moved": task["moved"], "seenAt": round(self._clock.now(), 3)}
                    if status:
                        each |= {"status": status, "reason": reason}
            return {**document, "moves": tasks}

        await note(change)
        return asked


def handle_of_task(queue: str, id: str) -> str:
    return urlsafe_b64encode(f"{queue}/{id}".encode()).decode()


def task_in(handle: str) -> tuple[str, str]:
    """Return the queue and the id of a task."""
    try:
        queue, _, id = urlsafe_b64decode(handle.encode()).decode().rpartition("/")
    except ValueError:
        queue = id = ""
    if not queue or not id:
        raise SqsError("InvalidParameterValueException", "Value for parameter TaskHandle is invalid.")
    return queue, id
