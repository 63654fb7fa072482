"""Requests that wait for a message: which of them should ask again, and when."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from pabal.clock import Clock
from pabal.mailbox.watches import Watches
from pabal.store import Store

SLOW_POLL = 1.0  # seconds between looks at what nobody tells of
_LEAST_PAUSE = 0.1  # seconds: what is due for somebody else, or in a paused queue, must not keep us busy


class Waiting(Protocol):
    queue: str
    until: float  # on the boot clock


T = TypeVar("T", bound=Waiting)


class Parking(Generic[T]):
    """Asks the store what is due in a queue when it rang and once a second, not at every pass."""

    def __init__(self, store: Store, watch: Watches, clock: Clock) -> None:
        self._store = store
        self._watch = watch
        self._clock = clock
        self._parked: list[T] = []
        self._dues: dict[str, float] = {}  # of each queue that somebody waits for: on the boot clock
        self._looked = float("-inf")

    def add(self, task: T) -> None:
        """Keep a task that has just asked in vain."""
        self._parked.append(task)
        self._dues[task.queue] = self._read(task.queue, _LEAST_PAUSE)

    def take(self, rung: Iterable[str]) -> list[T]:
        """Take out those whose queue rang, whose time is over, or whose queue time alone has changed."""
        if not self._parked:
            return []
        now = self._clock.boot()
        ripe = {*rung}
        if now - self._looked >= SLOW_POLL:
            self._looked = now
            self._dues.clear()
            ripe.update(task.queue for task in self._parked if not self._watch.hears(task.queue))
        for queue in ripe:
            self._dues.pop(queue, None)
        ready = [task for task in self._parked if task.queue in ripe or task.until <= now or self._due(task) <= now]
        taken = set(map(id, ready))
        self._parked = [task for task in self._parked if id(task) not in taken]
        return ready

    def take_all(self) -> list[T]:
        parked, self._parked = self._parked, []
        return parked

    def next_due(self) -> float | None:
        """Return the seconds until `take` may find something though nothing rings."""
        if not self._parked:
            return None
        dues = [min(task.until, self._due(task)) for task in self._parked]
        if not all(self._watch.hears(task.queue) for task in self._parked):
            dues.append(self._looked + SLOW_POLL)
        return max(0.0, min(dues) - self._clock.boot())

    def _due(self, task: T) -> float:
        found = self._dues.get(task.queue)
        if found is None:
            found = self._dues[task.queue] = self._read(task.queue, 0.0)
        return found

    def _read(self, queue: str, least: float) -> float:
        due = self._store.next_due(queue)
        return float("inf") if due is None else self._clock.boot() + max(due, least)
