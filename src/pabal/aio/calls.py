"""Blocking calls from an event loop: a few threads, and batches of what comes while one of them is busy."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Generic, NamedTuple, ParamSpec, TypeVar

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


class _Waiting(NamedTuple, Generic[Item, Answer]):
    item: Item
    weight: int
    answer: Future[Answer]


class Batcher(Generic[Item, Answer]):
    """Calls `act` with items, in the order in which they came. Those that come while it runs share the next call.

    `act` returns an answer or an exception for each item; what it raises is the answer for all of them.
    """

    def __init__(self, threads: Threads, act: Callable[[Sequence[Item]], Sequence[Answer | BaseException]]) -> None:
        self._threads = threads
        self._act = act
        self._mutex = threading.Lock()
        self._waiting: deque[_Waiting[Item, Answer]] = deque()
        self._running = False

    def __len__(self) -> int:
        """Return how many items wait for a call."""
        return len(self._waiting)

    def add(self, item: Item, weight: int = 1) -> Future[Answer]:
        """Hand in an item of so many messages. Its answer can be cancelled until the call with it begins."""
        waiting = _Waiting[Item, Answer](item, weight, Future())
        with self._mutex:
            self._threads.check_open()
            if not self._running:
                self._threads.start(self._run)
                self._running = True
            self._waiting.append(waiting)
        return waiting.answer

    def _run(self) -> None:
        """Act on one batch after the other; between two of them, let other calls that wait for a thread go first."""
        while batch := self._next():
            try:
                answers = self._act([waiting.item for waiting in batch])
            except BaseException as exc:
                answers = [exc] * len(batch)
            for waiting, answer in zip(batch, answers, strict=True):
                if isinstance(answer, BaseException):
                    waiting.answer.set_exception(answer)
                else:
                    waiting.answer.set_result(answer)
            if self._waiting:
                with suppress(StoreClosed):  # it is being closed: what was handed in before is finished
                    self._threads.start(self._run)
                    return

    def _next(self) -> list[_Waiting[Item, Answer]]:
        """Return what goes into the next call; nothing ends the run."""
        batch: list[_Waiting[Item, Answer]] = []
        weight = 0
        with self._mutex:
            while self._waiting and (not batch or weight + self._waiting[0].weight <= _MOST):
                waiting = self._waiting.popleft()
                if waiting.answer.set_running_or_notify_cancel():
                    batch.append(waiting)
                    weight += waiting.weight
            self._running = bool(batch)
        return batch


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
