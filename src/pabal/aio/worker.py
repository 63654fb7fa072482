"""The worker of an event loop: takes messages, runs a coroutine on each, and settles by its outcome.

The rules are those of `pabal.worker`. A handler that takes too long, or is still running after the grace of a stop, is
cancelled; in the second case its message is given back.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, TypeVar, overload

from pabal.aio.queue import Delivery, Queue
from pabal.errors import InvalidInput, LeaseLost, ValidationFailed
from pabal.jsontext import Json
from pabal.policy.validation import Check
from pabal.queues.delivery import Body, reason_of
from pabal.queues.worker import SLICE, check_terms, ids_of, warn_if_paused
from pabal.store import FailureCode

log = logging.getLogger("pabal")

Handler: TypeAlias = Callable[[Delivery], Awaitable[object]]
T = TypeVar("T")


class Worker:
    """Runs a coroutine over a queue with up to `concurrency` messages at a time. Made by `worker`."""

    def __init__(
        self,
        queue: Queue,
        handler: Handler,
        *,
        concurrency: int,
        visibility: float | None,
        timeout: float | None,
        check: Check | None,
    ) -> None:
        self._queue = queue
        self._handler = handler
        self._concurrency = concurrency
        self._visibility = visibility
        self._timeout = timeout
        self._check = check
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._broken: BaseException | None = None
        self.handled = 0

    def __repr__(self) -> str:
        return f"<aio.Worker of {self._queue.name}, {len(self._tasks)} of {self._concurrency} busy>"

    async def run(self, *, wait: float | None = None, count: int | None = None, grace: float = 30.0) -> int:
        """Work until stopped, until `wait` seconds bring no message, or until `count` messages were taken.

        Then wait for the running handlers, after `stop` for `grace` seconds at most, and give back the messages that
        are still held. Return how many were handled. Raise the error that ended the work, such as a StoreError. If this
        call is cancelled, the handlers are cancelled and their messages given back.
        """
        if self._loop is not None:
            raise InvalidInput("this worker has run: make another one")
        self._loop = asyncio.get_running_loop()
        await self._queue.threads(warn_if_paused, self._queue.blocking)
        stop = asyncio.create_task(self._stopped.wait())
        try:
            try:
                await self._feed(stop, wait, float("inf") if count is None else count)
            except Exception as exc:  # such as a store that is busy: handlers have their grace all the same
                self.give_up(exc)
            while self._tasks and not stop.done():
                await asyncio.wait([stop, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=grace)
        finally:
            for task in (stop, *self._tasks):
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
        if self._broken is not None:
            raise self._broken
        return self.handled

    def stop(self) -> None:
        """Take no more messages; `run` returns when held ones are finished or given back. From any thread."""
        if self._loop is None:
            self._stopped.set()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopped.set)

    def give_up(self, exc: BaseException) -> None:
        """Stop, and let `run` raise this error: for a handler for which waiting is useless."""
        self._broken = exc
        self.stop()

    async def _feed(self, stop: asyncio.Task[Any], wait: float | None, count: float) -> None:
        idle_since = time.monotonic()
        while count > 0 and not self._stopped.is_set():
            slots = int(min(count, self._concurrency - len(self._tasks)))
            if not slots:
                await asyncio.wait([stop, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
                continue
            # While handlers run, `wait` does not run out: never look without a pause.
            least = SLICE if self._tasks else 0.0
            patience = None if wait is None else max(least, idle_since + wait - time.monotonic())
            busy = bool(self._tasks)  # then what fails meanwhile may be ready again, after the last look
            deliveries = await self._lease(stop, slots, patience)
            for delivery in deliveries:
                task = asyncio.create_task(self._serve(delivery))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            count -= len(deliveries)
            if deliveries or self._tasks or busy:
                idle_since = time.monotonic()
            elif wait is not None and time.monotonic() - idle_since >= wait:
                return

    async def _lease(self, stop: asyncio.Task[Any], limit: int, wait: float | None) -> list[Delivery]:
        leasing = asyncio.create_task(self._queue.lease(limit, visibility=self._visibility, wait=wait))
        try:
            await asyncio.wait([leasing, stop], return_when=asyncio.FIRST_COMPLETED)
            leasing.cancel()  # which gives back what it has taken
            await asyncio.wait([leasing])
        except asyncio.CancelledError:
            leasing.cancel()
            leasing.add_done_callback(self._queue.give_back_leased)  # it may have ended before it could be cancelled
            raise
        return [] if leasing.cancelled() else leasing.result()

    async def _serve(self, delivery: Delivery) -> None:
        try:
            async with delivery:
                try:
                    done = await self._handle(delivery)
                except asyncio.CancelledError:  # by a worker that stops: this was no attempt
                    if not delivery.settled:
                        await delivery.release(counted=False)
                    raise
            self.handled += done
        except LeaseLost as exc:
            log.warning("lease lost: %(error)s", {**ids_of(delivery.receipt), "error": str(exc)})
        except Exception as exc:
            self.give_up(exc)

    async def _handle(self, delivery: Delivery) -> bool:
        """Run the handler; return whether it handled the message. If not, the delivery is settled as failed."""
        limit = asyncio.timeout(self._timeout)
        try:
            if self._check is not None:
                delivery.body = self._check(delivery.body)
        except ValidationFailed as exc:
            await delivery.fail(FailureCode.VALIDATION_ERROR, str(exc))
            return False
        try:
            async with limit:
                await self._handler(delivery)
            return True
        except (Exception, asyncio.CancelledError) as exc:
            task = asyncio.current_task()
            if isinstance(exc, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # the worker ends; a handler whose own task was cancelled has failed
            log.warning("handler raised for %(queue)s/%(id)s", ids_of(delivery.receipt), exc_info=exc)
            if delivery.settled:
                return False
            if limit.expired():
                await delivery.fail(FailureCode.HANDLER_TIMEOUT, f"took longer than {self._timeout:g} s")
            else:
                await delivery.fail(FailureCode.HANDLER_ERROR, reason_of(exc))
            return False


@overload
def worker(
    queue: Queue[Body],
    handler: Callable[[Delivery[Body]], Awaitable[object]],
    *,
    concurrency: int = 1,
    visibility: float | None = None,
    timeout: float | None = None,
    body: Mapping[str, Json] | None = None,
) -> Worker: ...


@overload
def worker(
    queue: Queue,
    handler: Callable[[Delivery[T]], Awaitable[object]],
    *,
    concurrency: int = 1,
    visibility: float | None = None,
    timeout: float | None = None,
    body: type[T],
) -> Worker: ...


def worker(
    queue: Queue,
    handler: Callable[..., Awaitable[object]],
    *,
    concurrency: int = 1,
    visibility: float | None = None,
    timeout: float | None = None,
    body: type[Any] | Mapping[str, Json] | None = None,
) -> Worker:
    """Make a worker: `await handler(delivery)` for each message, up to `concurrency` at a time, each leased for
    `visibility` seconds.

    A handler that takes longer than `timeout` seconds is cancelled, and its message has failed. `body` is a
    type (then `delivery.body` is of that type) or a JSON Schema.
    """
    check_coroutine_function(handler)
    check = check_terms(concurrency, timeout, body)
    return Worker(queue, handler, concurrency=concurrency, visibility=visibility, timeout=timeout, check=check)


def check_coroutine_function(handler: object) -> None:
    """Refuse a handler that would block the event loop."""
    if not any(map(inspect.iscoroutinefunction, (handler, type(handler).__call__))):
        raise InvalidInput(
            f"a handler of pabal.aio is a coroutine function (async def); found {handler!r:.80}: make it one, or use"
            " pabal.worker or pabal.consumer, which run functions in threads"
        )
