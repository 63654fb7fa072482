"""The application: which function serves which messages, and which messages come at given times.

`pabal work MODULE:NAME` runs it in supervised processes; `App.work` runs it in this one.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from pabal.clock import SystemClock
from pabal.connect import Connection, connect
from pabal.errors import InvalidInput, ValidationFailed
from pabal.message import Seconds, check_count, check_seconds
from pabal.names import check_name
from pabal.policy.validation import Check, checker
from pabal.queues.delivery import Delivery
from pabal.queues.queue import MIN_LEASE, Queue, schedules_of
from pabal.queues.schedules import CatchUp, Schedule, make_schedule
from pabal.queues.worker import SLICE, Worker, stopped_by_signals
from pabal.store import FailureCode

log = logging.getLogger("pabal")

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class _Handler:
    """A function and the messages that it serves."""

    function: Callable[..., Any]
    check: Check | None
    concurrency: int | None
    timeout: float | None

    @property
    def alarm(self) -> float | None:
        """After how many seconds the worker fails its message; an async function is cancelled instead."""
        return None if inspect.iscoroutinefunction(self.function) else self.timeout

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)


@dataclass
class _Served:
    """The handlers of one queue, by type; `None` is for every other type."""

    handlers: dict[str | None, _Handler] = field(default_factory=dict)
    visibility: float | None = None

    def handler_of(self, type: str) -> _Handler | None:
        return self.handlers.get(type) or self.handlers.get(None)


class App:
    """An application over the queues of one store: `app = pabal.App("sqlite:jobs.db")`."""

    def __init__(self, url: str, *, consumer: str = "") -> None:
        self.url = url
        self.consumer = check_name(consumer, "consumer") if consumer else ""
        self._queues: dict[str, _Served] = {}
        self._schedules: dict[str, Schedule] = {}
        self._mq: Connection | None = None
        self._crew: _Crew | None = None
        self._opening = threading.Lock()

    def __repr__(self) -> str:
        return f"<App of {', '.join(self._queues) or 'no queue'}>"

    @property
    def queues(self) -> list[str]:
        """The names of the queues that it serves."""
        return list(self._queues)

    def on(
        self,
        queue: str,
        *,
        type: str | None = None,
        body: Any = None,
        concurrency: int | None = None,
        visibility: float | None = None,
        timeout: float | None = None,
    ) -> Callable[[F], F]:
        """Let a function serve the messages of a queue: those of a `type`, or every other one.

        The function is plain or `async`. With `body`, a type as `pabal.worker` takes it, it gets the body as a value of
        that type, else the delivery. When it returns, the message is done; when it raises, the message fails by policy;
        so it does after `timeout` seconds. Up to `concurrency` messages are served at once, by default as many as
        `pabal work --concurrency` says.
        """
        check_name(queue)
        if concurrency is not None:
            check_count("concurrency", concurrency)
        if timeout is not None:
            check_seconds("timeout", timeout, least=MIN_LEASE)
        check = None if body is None else checker(body)

        def serve(function: F) -> F:
            _check_function(function)
            served = self._queues.setdefault(queue, _Served())
            if type in served.handlers:
                what = "every other type" if type is None else f"type {type!r:.60}"
                raise InvalidInput(f"{served.handlers[type].name} serves {what} of {queue} already")
            served.handlers[type] = _Handler(function, check, concurrency, timeout)
            if visibility is not None:
                served.visibility = check_seconds("visibility", visibility, least=MIN_LEASE)
            return function

        return serve

    def every(
        self,
        times: str | Seconds,
        *,
        queue: str,
        name: str = "",
        timezone: str = "",
        catch_up: CatchUp = "once",
        type: str = "",
    ) -> Callable[[F], F]:
        """Publish what a function returns, at the times of a cron line or every so many seconds.

        A process of the application calls it, plain or `async`, without arguments; None publishes nothing. The schedule
        has the name of the function unless one is given. See `pabal.Connection.schedule`.
        """

        def add(function: F) -> F:
            _check_function(function)
            own = name or getattr(function, "__name__", "")
            ticks = f"{_TICKS}{own}"
            if ticks in self._queues:
                raise InvalidInput(f"there is a schedule {own} already: give another name")
            line, seconds = (times, None) if isinstance(times, str) else (None, times)
            self._schedules[own] = make_schedule(
                own, queue=ticks, cron=line, every=seconds, timezone=timezone, catch_up=catch_up
            )
            call = partial(self._publish_occurrence, function, check_name(queue), type)
            self._queues[ticks] = _Served({None: _Handler(call, None, 1, None)})
            return function

        return add

    def queue(self, name: str, *, body: Any = None) -> Queue[Any]:
        """Return a queue of the store, to publish from handlers. The connection stays open."""
        with self._opening:
            if self._mq is None:
                self._mq = connect(self.url, consumer=self.consumer)
            mq = self._mq
        return mq.queue(name) if body is None else mq.queue(name, body=body)

    def close(self) -> None:
        """Close the connection that `queue` opened."""
        with self._opening:
            mq, self._mq = self._mq, None
        if mq is not None:
            mq.close()

    def work(
        self, *, concurrency: int = 1, wait: float | None = None, grace: float = 30.0, signals: bool = True
    ) -> int:
        """Serve all queues in this process until SIGTERM or SIGINT, or until `wait` seconds bring no message.

        Return how many messages were handled. See `pabal.Worker.run`.
        """
        check_count("concurrency", concurrency)
        if not self._queues:
            raise InvalidInput("this application serves no queue: give it functions with @app.on")
        with ExitStack() as stack:
            stack.callback(self.close)
            mq = stack.enter_context(connect(self.url, consumer=self.consumer))
            for schedule in self._schedules.values():
                schedules_of(mq.store, SystemClock()).add(schedule)
            loop = stack.enter_context(closing(_LoopThread()))
            crew = self._crew = _Crew([self._worker(mq, name, loop, concurrency) for name in self._queues])
            stack.enter_context(stopped_by_signals(crew.stop) if signals else nullcontext())
            return crew.run(wait, grace)

    def stop(self) -> None:
        """End `work`, from any thread or signal handler: running functions may finish within the grace."""
        if self._crew is not None:
            self._crew.stop()

    def _worker(self, mq: Connection, name: str, loop: _LoopThread, concurrency: int) -> Worker:
        served, queue = self._queues[name], mq.queue(name)
        slots = {id(each): each.concurrency or concurrency for each in served.handlers.values()}
        router = _Router(name, served, loop, slots)
        return Worker(
            queue,
            router,
            concurrency=sum(slots.values()),
            visibility=served.visibility,
            timeout=router.timeout_of,
            check=None,
        )

    def _publish_occurrence(self, function: Callable[[], Any], queue: str, type: str, delivery: Delivery) -> Any:
        result = function()
        if inspect.isawaitable(result):
            return self._finish_occurrence(result, queue, type, delivery)
        return self._settle_occurrence(result, queue, type, delivery)

    async def _finish_occurrence(self, result: Any, queue: str, type: str, delivery: Delivery) -> None:
        body = await result
        await asyncio.to_thread(self._settle_occurrence, body, queue, type, delivery)

    def _settle_occurrence(self, body: Any, queue: str, type: str, delivery: Delivery) -> None:
        if body is not None:  # one step: the id of the occurrence is that of the message
            draft = self.queue(queue).draft(body, id=delivery.message.id, type=type or None)
            delivery.ack(then=[draft])


_LOOP_SECONDS = 2.0  # that the functions in the event loop have to end when they are cancelled
_TICKS = "pabal.every."  # with the name of a schedule: the queue of its occurrences


class _Router:
    """The handler of a queue's worker: passes each message to the function that serves its type."""

    def __init__(self, queue: str, served: _Served, loop: _LoopThread, slots: dict[int, int]) -> None:
        self._queue = queue
        self._served = served
        self._loop = loop
        # A function may not take the places of the others. With one function, the worker keeps the limit.
        many = len(slots) > 1
        self._free = {key: threading.Semaphore(most) for key, most in slots.items()} if many else {}

    def timeout_of(self, delivery: Delivery) -> float | None:
        handler = self._served.handler_of(delivery.message.type)
        return None if handler is None else handler.alarm

    def __call__(self, delivery: Delivery) -> None:
        handler = self._served.handler_of(delivery.message.type)
        if handler is None:
            served = ", ".join(sorted(filter(None, self._served.handlers)))
            reason = f"no function serves type {delivery.message.type!r:.80} of {self._queue}; served are {served}"
            delivery.fail(FailureCode.NO_HANDLER, reason)
            return
        with self._free.get(id(handler)) or nullcontext():
            self._call(handler, delivery)

    def _call(self, handler: _Handler, delivery: Delivery) -> None:
        argument: Any = delivery
        if handler.check is not None:
            try:
                argument = delivery.body = handler.check(delivery.body)
            except ValidationFailed as exc:
                delivery.fail(FailureCode.VALIDATION_ERROR, str(exc))
                return
        result = handler.function(argument)
        if inspect.iscoroutine(result) and not self._loop.run(result, handler.timeout) and not delivery.settled:
            delivery.fail(FailureCode.HANDLER_TIMEOUT, f"took longer than {handler.timeout:g} s")


class _LoopThread:
    """An event loop in a thread of its own, for the async functions of all queues."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def run(self, work: Coroutine[Any, Any, Any], timeout: float | None) -> bool:
        """Run a coroutine to its end; return False if it took longer than `timeout` seconds and was cancelled."""
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run_loop, args=(self._loop,), name="pabal-loop", daemon=True)
                self._thread.start()
        ended = asyncio.run_coroutine_threadsafe(_in_time(work, timeout), self._loop).result()
        if isinstance(ended, BaseException):
            raise ended
        return ended

    def close(self) -> None:
        """Cancel what still runs, and end the loop, unless a function blocks it."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._cancel_all(), loop).result(_LOOP_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_LOOP_SECONDS)
        if not thread.is_alive():
            loop.close()

    async def _cancel_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        try:
            loop.run_forever()
            return
        except (SystemExit, KeyboardInterrupt) as exc:  # in a task that a function has started: the others go on
            log.error("a task in the event loop raised %(error)s", {"error": repr(exc)})


async def _in_time(work: Coroutine[Any, Any, Any], timeout: float | None) -> bool | SystemExit | KeyboardInterrupt:
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            await work
    except (SystemExit, KeyboardInterrupt) as exc:
        return exc  # raised in a task it would end the loop, and nobody would hear of it
    except TimeoutError:
        if not limit.expired():
            raise
        return False
    return True


class _Crew:
    """The workers of all queues, each in a thread. The first that fails ends all."""

    def __init__(self, workers: list[Worker]) -> None:
        self._workers = workers
        self._broken: BaseException | None = None

    def stop(self) -> None:
        """Stop all workers. Safe in signal handlers."""
        for worker in self._workers:
            worker.stop()

    def run(self, wait: float | None, grace: float) -> int:
        threads = [
            threading.Thread(target=self._run, args=(worker, wait, grace), name="pabal-queue")
            for worker in self._workers
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                # In slices: a signal that comes just before the main thread sleeps is handled only when it wakes up.
                while thread.is_alive():
                    thread.join(SLICE)
        except BaseException:  # a second Ctrl-C: the threads must not keep the process
            self.stop()
            raise
        if self._broken is not None:
            raise self._broken
        return sum(worker.handled for worker in self._workers)

    def _run(self, worker: Worker, wait: float | None, grace: float) -> None:
        try:
            worker.run(wait=wait, grace=grace)
        except BaseException as exc:
            self._broken = self._broken or exc
            self.stop()


def _check_function(function: object) -> None:
    if not callable(function):
        raise InvalidInput(f"a function is expected; found {function!r:.80}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(f"{function!r:.80} is a generator: a call of it would do nothing")
