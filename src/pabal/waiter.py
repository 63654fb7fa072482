"""Leasing with patience: woken by a bell, with a slow poll beneath it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pabal.delivery import Delivery
from pabal.store import Watch

if TYPE_CHECKING:
    from pabal.queue import Queue

SLOW_POLL = 1.0  # seconds between looks when no bell rings
_LEAST_PAUSE = 0.002  # seconds: what is due for somebody else must not keep this one busy


class Waiter:
    """Leases with patience: arms a watch only when there is nothing to take, and keeps it for the next time."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._watch: Watch | None = None
        self._stopped = False

    def lease(self, limit: int, seconds: float | None, wait: float) -> list[Delivery]:
        deadline = time.monotonic() + wait
        while True:
            found = self._queue._take(limit, seconds)
            remaining = deadline - time.monotonic()
            if found or remaining <= 0 or self._stopped:
                return found
            if self._watch is None and (watch := self._queue.watch()) is not None:
                self._watch = watch  # armed: look once more before sleeping
                continue
            self._sleep(min(remaining, SLOW_POLL))

    def stop(self) -> None:
        """End the current wait and every later one at once, from any thread."""
        self._stopped = True
        watch = self._watch
        if watch is not None:
            watch.wake()

    def _sleep(self, most: float) -> None:
        due = None if self._queue.policy.paused else self._queue.store.next_due(self._queue.name)
        pause = most if due is None else min(most, max(due, _LEAST_PAUSE))
        if self._watch is None:
            time.sleep(pause)
        else:
            self._watch.wait(pause)

    def __enter__(self) -> Waiter:
        return self

    def __exit__(self, *exc: object) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
