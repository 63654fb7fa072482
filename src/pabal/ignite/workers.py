"""A few threads for what may take its time: the loop goes on, and is woken when one of them is done."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from pabal.store import Watch

A = TypeVar("A")
R = TypeVar("R")
_THREADS = 4


class Elsewhere:
    """Runs functions in other threads, made when the first is needed."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._pool: ThreadPoolExecutor | None = None

    def run(self, function: Callable[[A], R], argument: A) -> Future[R]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="ignite-wake")
        future = self._pool.submit(function, argument)
        future.add_done_callback(lambda done: self._watch.wake())
        return future

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
