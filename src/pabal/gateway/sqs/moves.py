"""Message move tasks: the messages of a dead-letter queue go back to where they came from, or to another queue.

A task is a row in the document of its source queue, so that any gateway can show and cancel it. The gateway that it
belongs to moves the messages, each in one step with its acknowledgement, and notes how far it is every second. A task
of a gateway that has stopped, or notes nothing any more, goes to the gateway that is started next or is asked about it.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncGenerator, Container, Coroutine, Mapping
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pabal.aio
from pabal.clock import Clock
from pabal.errors import InvalidInput, LeaseLost, PabalError, QueueUnknown
from pabal.gateway.sqs.errors import SqsError
from pabal.gateway.sqs.messages import source_of
from pabal.queues.redrive import moved_on

log = logging.getLogger("pabal.gateway")

_KEPT = 10  # tasks that are shown of a queue
_AT_ONCE = 100  # messages of one lease
_SILENT = 10.0  # seconds after which a gateway that notes nothing has lost its task, and the messages that it holds
_FINISH = 5.0  # seconds for which a stop waits for the messages in hand
_AGAIN = 1.0  # seconds after which the end of a task is noted again, in a store that did not answer
_RUNNING, _CANCELLING = "RUNNING", "CANCELLING"
_UNFINISHED = (_RUNNING, _CANCELLING)

Task = dict[str, Any]
Document = Mapping[str, Any]


class MoveTasks:
    """The tasks of one gateway."""

    def __init__(self, mq: pabal.aio.Connection, clock: Clock, attached: str) -> None:
        """`attached` is the name of the document that tasks are kept in."""
        self._mq = mq
        self._clock = clock
        self._attached = attached
        self._owner = uuid4().hex
        self._takes_over = False
        self._stopped = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()

    async def start(self, source: pabal.aio.Queue, target: str, rate: int | None) -> str:
        """Begin a task and return its handle; raise UnsupportedOperation if one is running."""
        now = round(self._clock.now(), 3)
        task: Task = {"id": uuid4().hex, "status": _RUNNING, "target": target, "rate": rate, "moved": 0}
        task |= {"toMove": (await source.counts())[pabal.State.READY], "startedAt": now}
        task |= {"owner": self._owner, "seenAt": now}

        def add(document: Document) -> Document:
            if any(each["status"] in _UNFINISHED for each in document.get("moves", [])):
                raise SqsError(
                    "UnsupportedOperation",
                    "There is already a task running. Only one active task is allowed for a source queue arn at a given"
                    " time.",
                )
            return {**document, "moves": [task, *document.get("moves", [])][:_KEPT]}

        await self.take_over(source)
        await source.attach(self._attached, add)
        self._begin(self._run(source, task))
        return handle_of_task(source.name, task["id"])

    async def shown(self, source: pabal.aio.Queue) -> list[Task]:
        """Return the tasks of a queue, the last one first; one that nobody goes on with is taken over."""
        await self.take_over(source)
        return list((await source.attached(self._attached)).get("moves", []))

    async def cancel(self, source: pabal.aio.Queue, id: str) -> int:
        """Ask for the end of a task; return how many messages it has moved."""
        moved = 0

        def change(document: Document) -> Document:
            nonlocal moved
            found = next((task for task in document.get("moves", []) if task["id"] == id), None)
            if found is None:
                raise SqsError("ResourceNotFoundException", "Task does not exist.")
            if found["status"] != _RUNNING:
                raise SqsError(
                    "InvalidParameterValueException",
                    f"Only active tasks can be cancelled; this one is {found['status']}.",
                )
            moved = found["moved"]
            return _changed(document, id, status=_CANCELLING)

        await self.take_over(source)
        await source.attach(self._attached, change)
        return moved

    async def take_over(self, source: pabal.aio.Queue) -> float | None:
        """Go on with the task that another gateway has left; return in how many seconds it may be so, or None.

        Only the gateway whose change of the document is stored goes on with it.
        """
        if not self._takes_over or self._stopped.is_set():
            return None
        now = self._clock.now()

        def left(document: Document) -> Task | None:
            return next(
                (
                    dict(task)
                    for task in document.get("moves", [])
                    if task["status"] in _UNFINISHED and task["owner"] != self._owner
                ),
                None,
            )

        task = left(await source.attached(self._attached))
        if task is None:
            return None
        if 0 <= now - task["seenAt"] <= _SILENT:
            return task["seenAt"] + _SILENT - now + 0.1  # type: ignore[no-any-return]  # of JSON
        seen = task["seenAt"]

        def take(document: Document) -> Document:
            nonlocal task
            task = left(document)
            if task is None or task["seenAt"] != seen:
                task = None  # another gateway was faster
                return document
            return _changed(document, task["id"], owner=self._owner, seenAt=round(now, 3))

        await source.attach(self._attached, take)
        if task is not None:
            log.info("a move task of %(queue)s is taken over", {"queue": source.name})
            self._begin(self._run(source, task))
        return None

    def look_after(self) -> None:
        """From now on, take over the tasks of gateways that have ended; first, in the background, in all queues."""
        self._takes_over = True
        self._begin(self._look_after())

    async def close(self) -> None:
        """Finish the messages in hand, and leave the tasks to other gateways."""
        self._stopped.set()
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=_FINISH)
            for each in late:
                each.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        running = asyncio.create_task(work)
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    async def _pause(self, seconds: float) -> bool:
        """Wait; return False if the gateway is stopped meanwhile."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), seconds)
        return not self._stopped.is_set()

    async def _look_after(self) -> None:
        try:
            while True:
                waits = [await self.take_over(self._mq.queue(name, create=False)) for name in await self._mq.queues()]
                due = [seconds for seconds in waits if seconds is not None]
                if not due or not await self._pause(min(due)):
                    return
        except PabalError as exc:
            log.warning("move tasks of other gateways could not be looked at: %(error)s", {"error": str(exc)})

    async def _run(self, source: pabal.aio.Queue, task: Task) -> None:
        status, reason = "COMPLETED", ""
        try:
            async for _ in self._steps(source, task):
                now = await self._noted(source, task, seenAt=round(self._clock.now(), 3))
                if now is None:
                    return  # it belongs to another gateway, which believed that this one has ended
                if now == _CANCELLING:
                    status = "CANCELLED"
                    break
            else:
                if self._stopped.is_set() and task["moved"] < task["toMove"]:
                    await self._noted(source, task, seenAt=0, owner="")  # for another gateway to go on with
                    return
        except PabalError as exc:
            status, reason = "FAILED", str(exc)
            log.warning("a move task of %(queue)s failed: %(error)s", {"queue": source.name, "error": reason})
        while True:  # until the store answers: no other task can begin while this one is shown as running
            try:
                await self._noted(source, task, status=status, reason=reason)
                return
            except QueueUnknown:  # deleted, and its tasks with it
                return
            except PabalError:
                if not await self._pause(_AGAIN):
                    return

    async def _steps(self, source: pabal.aio.Queue, task: Task) -> AsyncGenerator[None, None]:
        """Move as many messages as were there when the task began; yield before the first and after each batch."""
        rate = task["rate"]
        yield
        while (left := task["toMove"] - task["moved"]) > 0 and not self._stopped.is_set():
            found = await source.lease(min(left, _AT_ONCE, rate or _AT_ONCE), visibility=_SILENT)
            if not found:
                return
            queues = set(await self._mq.queues())
            moved = await asyncio.gather(*(self._move(each, task, queues) for each in found), return_exceptions=True)
            task["moved"] += moved.count(None)
            errors = [error for error in moved if isinstance(error, BaseException) and not isinstance(error, LeaseLost)]
            if errors:
                await asyncio.gather(
                    *(each.release(counted=False) for each in found if not each.settled), return_exceptions=True
                )
                raise errors[0]
            yield
            if rate and not await self._pause(len(found) / rate):
                return

    async def _move(self, delivery: pabal.aio.Delivery, task: Task, queues: Container[str]) -> None:
        message = delivery.message
        name = task["target"] or source_of(message) or delivery.queue
        if name not in queues:  # to publish would make it again, without its settings
            raise InvalidInput(f"the destination {name} does not exist")
        target = self._mq.queue(name, create=False)
        await delivery.ack(then=[moved_on(message, await target.draft(message.body))])

    async def _noted(self, source: pabal.aio.Queue, task: Task, **changes: Any) -> str | None:
        """Write how far it is; return the status it had, or None if it belongs to another gateway."""
        status: str | None = None

        def change(document: Document) -> Document:
            nonlocal status
            found = next((each for each in document.get("moves", []) if each["id"] == task["id"]), None)
            status = found["status"] if found is not None and found["owner"] == self._owner else None
            return document if status is None else _changed(document, task["id"], moved=task["moved"], **changes)

        await source.attach(self._attached, change)
        return status


def _changed(document: Document, id: str, **changes: Any) -> Document:
    """Return a document with these changes of one task."""
    return {**document, "moves": [{**task, **(changes if task["id"] == id else {})} for task in document["moves"]]}


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
