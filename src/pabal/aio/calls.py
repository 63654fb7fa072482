"""Blocking calls from an event loop: a few threads, and batches of what comes while one of them is busy."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Generic, ParamSpec, TypeVar

from pabal.errors import StoreClosed

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")
Answer = TypeVar("Answer")

THREADS = 8
_MOST = 1000  # messages of one batch


class Threads:
    """Runs calls in up to `most` threads. Any event loop and any thread may use it: `await threads(store.queues)`."""

    def __init__(self, name: str, most: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(most, name)
        self._pid = os.getpid()
        self._closed = False

    def check_open(self) -> None:
        """Raise StoreClosed after the close, and in a process that was forked from the one that connected."""
        if self._pid != os.getpid():
            raise StoreClosed("the connection was made before a fork: connect in this process")
        if self._closed:
            raise StoreClosed("the connection is closed: connect again")

    def start(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin a call. Raise StoreClosed after the close."""
        self.check_open()
        try:
            return self._pool.submit(call, *args, **kwargs)
        except RuntimeError as exc:
            raise StoreClosed("the connection is closed: connect again") from exc

    async def __call__(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.wrap_future(self.start(call, *args, **kwargs))

    def close(self) -> None:
        """Take no more calls, and wait for those under way."""
        self._closed = True
        self._pool.shutdown(wait=True)

    def abandon(self) -> None:
        """Take no more calls, drop those that have not begun, and wait for none."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Waiting(asyncio.Future[Answer], Generic[Item, Answer]):
    """The answer to an item of a batch. To cancel it takes the item back, unless the call with it has begun."""

    def __init__(self, item: Item, weight: int) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.item = item
        self.weight = weight
        self.begun = False


class Batcher(Generic[Item, Answer]):
    """Calls `act` with items in the order in which they came. Those that come together, or while it runs, share a call.

    `act` returns an answer or an exception for each item; what it raises is the answer for all of them. The answers of
    a call wake an event loop once. Answers to tasks that have gone are handed to `unclaimed`.
    """

    def __init__(
        self,
        threads: Threads,
        act: Callable[[Sequence[Item]], Sequence[Answer | BaseException]],
        unclaimed: Callable[[list[Answer]], object] = lambda answers: None,
    ) -> None:
        self._threads = threads
        self._act = act
        self._unclaimed = unclaimed
        self._mutex = threading.Lock()
        self._waiting: deque[Waiting[Item, Answer]] = deque()
        self._running = False
        self._starts_in: asyncio.AbstractEventLoop | None = None  # until the loop has started it

    def __len__(self) -> int:
        """Return how many items wait for a call."""
        return len(self._waiting)

    def add(self, item: Item, weight: int = 1) -> Waiting[Item, Answer]:
        """Hand in an item of so many messages, from a task; return its answer, to be awaited."""
        self._threads.check_open()
        waiting = Waiting[Item, Answer](item, weight)
        loop = waiting.get_loop()
        with self._mutex:
            self._waiting.append(waiting)
            if not self._running or (self._starts_in is not None and self._starts_in.is_closed()):
                self._running, self._starts_in = True, loop
                loop.call_soon(self._start)  # not at once: what other tasks add in this turn of the loop goes with it
        return waiting

    def _start(self) -> None:
        self._starts_in = None
        try:
            self._threads.start(self._run)
        except StoreClosed as exc:
            with self._mutex:
                batch, self._running = list(self._waiting), False
                self._waiting.clear()
            self._answer(batch, [exc] * len(batch))

    def _run(self) -> None:
        """Act on one batch after the other; between two of them, let other calls that wait for a thread go first."""
        while batch := self._next():
            try:
                answers = self._act([waiting.item for waiting in batch])
            except BaseException as exc:
                answers = [exc] * len(batch)
            self._answer(batch, answers)
            if self._waiting:
                with suppress(StoreClosed):  # it is being closed: what was handed in before is finished
                    self._threads.start(self._run)
                    return

    def _next(self) -> list[Waiting[Item, Answer]]:
        """Return what goes into the next call; nothing ends the run."""
        batch: list[Waiting[Item, Answer]] = []
        weight = 0
        with self._mutex:
            while self._waiting and (not batch or weight + self._waiting[0].weight <= _MOST):
                waiting = self._waiting.popleft()
                # Set before the look: a task that cancels it and finds it not begun can be sure.
                waiting.begun = True
                if not waiting.cancelled():
                    batch.append(waiting)
                    weight += waiting.weight
            self._running = bool(batch)
        return batch

    def _answer(self, batch: Sequence[Waiting[Item, Answer]], answers: Sequence[Answer | BaseException]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Waiting[Item, Answer], Answer | BaseException]]] = {}
        left: list[Answer | BaseException] = []
        for waiting, answer in zip(batch, answers, strict=True):
            if waiting.cancelled():
                left.append(answer)
            else:
                by_loop.setdefault(waiting.get_loop(), []).append((waiting, answer))
        for loop, some in by_loop.items():
            try:
                loop.call_soon_threadsafe(self._hand_out, some)
            except RuntimeError:  # the loop is closed
                left += [answer for _, answer in some]
        self._drop(left)

    def _hand_out(self, answered: Sequence[tuple[Waiting[Item, Answer], Answer | BaseException]]) -> None:
        left: list[Answer | BaseException] = []
        for waiting, answer in answered:
            if waiting.cancelled():
                left.append(answer)
            elif isinstance(answer, BaseException):
                waiting.set_exception(answer)
            else:
                waiting.set_result(answer)
        self._drop(left)

    def _drop(self, left: Sequence[Answer | BaseException]) -> None:
        if found := [answer for answer in left if not isinstance(answer, BaseException)]:
            self._unclaimed(found)


async def finished(answer: Future[T]) -> T:
    """Wait for an answer that goes on if the task that waits is cancelled."""
    return await asyncio.shield(asyncio.wrap_future(answer))


def _without_refused(
    act: Callable[[Sequence[Item]], Sequence[Answer]], items: Sequence[Item], refused: tuple[type[Exception], ...]
) -> list[Answer | BaseException]:
    """Act on all items together; if one of them is refused, on each half of them, until it is alone."""
    try:
        return list(act(items))
    except refused as exc:
        if len(items) == 1:
            return [exc]
    except Exception as exc:
        return [exc] * len(items)
    half = len(items) // 2
    return _without_refused(act, items[:half], refused) + _without_refused(act, items[half:], refused)


def store_together(
    store: Callable[[list[Item]], Sequence[Answer]],
    refused: tuple[type[Exception], ...],
    makes: Sequence[Callable[[], list[Item]]],
) -> list[list[Answer] | BaseException]:
    """Make the items of many callers, and store them in one call; return to each caller its answers or its error."""
    answers: list[list[Answer] | BaseException] = []
    made: list[list[Item]] = []
    for make in makes:
        try:
            made.append(make())
            answers.append([])
        except Exception as exc:
            answers.append(exc)

    def store_all(groups: Sequence[list[Item]]) -> list[list[Answer]]:
        stored = iter(store([item for group in groups for item in group]))
        return [[next(stored) for _ in group] for group in groups]

    stored = iter(_without_refused(store_all, made, refused) if made else [])
    return [answer if isinstance(answer, BaseException) else next(stored) for answer in answers]
