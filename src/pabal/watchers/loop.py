"""The watch loop: look, make the events safe, and only then remember them."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from pabal.clock import Clock
from pabal.errors import WatchFailed
from pabal.jsontext import Json
from pabal.watchers.contract import Look, Watcher

LONGEST_PAUSE = 900.0  # seconds between two looks that fail
_WAITING = 1.0  # seconds until a watcher that gave way is asked again, if nothing wakes the loop earlier
_SHOWN_PROBLEMS = 3

E = TypeVar("E")


class Memory(Protocol[E]):
    """The durable memory of one watcher between two looks."""

    def look(self, now: float) -> Look:
        """Return the input of a look that begins now."""
        ...

    def unknown(self, events: Sequence[E]) -> Sequence[E]:
        """Return the events that were not reported before."""
        ...

    def remember(self, events: Sequence[E], cursor: Mapping[str, Json]) -> None:
        """Remember a step whose events are safe."""
        ...

    def finish(self, began: float) -> None:
        """Remember that a whole look, begun at this instant, is over."""
        ...


class WatchLoop(Generic[E]):
    """One watcher at work: a task of a service, or the main loop of a process.

    `emit` returns when the events are safe. `ended` is called after each look with its problem, empty if there was
    none, and with the seconds until the next look. After a failure that pause is twice the interval, then four times
    the interval, and so on.
    """

    def __init__(
        self,
        watcher: Watcher[E],
        memory: Memory[E],
        *,
        emit: Callable[[Sequence[E]], object],
        interval: Callable[[], float],
        clock: Clock,
        ended: Callable[[str, float], None] = lambda problem, pause: None,
    ) -> None:
        self._watcher = watcher
        self._memory = memory
        self._emit = emit
        self._interval = interval
        self._clock = clock
        self._ended = ended
        self._steps: Generator[bool, None, None] | None = None
        self._due = clock.boot()
        self._failures = 0
        self._problems: list[str] = []
        self.sent = 0

    def once(self) -> int:
        """Look once; return how many events were new. Raise WatchFailed if the look could not be finished."""
        before = self.sent
        for _ in self._look():
            pass
        return self.sent - before

    def run(self, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Look again and again, until something raises."""
        while True:
            self.step()
            if (pause := self.next_due()) > 0:
                sleep(pause)

    def step(self) -> None:
        """Take one step of a look, if a look is under way or due."""
        if self._steps is None:
            if self.next_due() > 0:
                return
            self._steps = self._look()
        try:
            waits = next(self._steps)
            self._due = self._clock.boot() + (_WAITING if waits else 0.0)
        except StopIteration:
            self._failures = 0
            self._rest("; ".join(self._problems[:_SHOWN_PROBLEMS]), self._interval())
        except WatchFailed as exc:
            self._failures += 1
            pause = min(LONGEST_PAUSE, self._interval() * 2.0 ** min(self._failures, 20))
            self._rest(str(exc), max(exc.after, pause))

    def next_due(self) -> float:
        return max(0.0, self._due - self._clock.boot())

    def close(self) -> None:
        if self._steps is not None:
            self._steps.close()

    def _rest(self, problem: str, pause: float) -> None:
        self._steps = None
        self._due = self._clock.boot() + pause
        self._ended(problem, pause)

    def _look(self) -> Generator[bool, None, None]:
        """Take one whole look; each step yields whether the watcher only waits."""
        began = self._clock.now()
        self._problems = []
        for found in self._watcher.poll(self._memory.look(began)):
            if found is None:
                yield True
                continue
            events = self._memory.unknown(found.events)
            if events:
                self._emit(events)
            self._memory.remember(events, found.cursor)
            self.sent += len(events)
            self._problems += found.problems
            yield False
        self._memory.finish(began)
