"""The manager's own figures: the durations of its requests, and what happened in each queue lately.

The counts themselves are kept by the store. The manager looks at them from time to time and compares.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Any, NamedTuple

from pabal.clock import Clock
from pabal.mailbox.stats import Answered
from pabal.queues.metrics import histogram_document
from pabal.store import DURATIONS, Counters

MINUTE, HOUR = 60.0, 3600.0
_APART = 15.0  # seconds between two looks that are kept


class Look(NamedTuple):
    """The counts of a queue at one moment."""

    at: float
    counters: Counters

    @property
    def failed(self) -> int:
        return self.counters.retried + self.counters.dropped + sum(self.counters.dead.values())


class Metrics:
    """The figures of one manager since its start."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.started = clock.boot()
        self.requests = Histogram()
        self._looks: dict[str, deque[Look]] = {}
        self.looked = False  # at all queues once: a queue that is new after that began with nothing

    @property
    def uptime(self) -> float:
        return self._clock.boot() - self.started

    def answered(self, request: Answered) -> None:
        """Record the duration of a request."""
        self.requests.add(request.seconds)

    def look(self, queue: str, counters: Counters) -> None:
        """Remember the counts of a queue, to compare with later ones."""
        now = self._clock.boot()
        looks = self._looks.get(queue)
        if looks is None:
            looks = self._looks[queue] = deque([Look(self.started, Counters())] if self.looked else [])
        if not looks or now - looks[-1].at >= _APART:
            looks.append(Look(now, counters))
        while len(looks) > 1 and now - looks[1].at >= HOUR:
            looks.popleft()

    def lately(self, queue: str, counters: Counters) -> dict[str, Any]:
        """Return what happened in the last minute, and how many messages became dead in the last hour by reason."""
        now = self._clock.boot()
        new, old = Look(now, counters), self._before(queue, now - MINUTE)
        seconds = max(1.0, now - old.at)
        acked, failed = max(0, counters.acked - old.counters.acked), new.failed - old.failed
        dropped = counters.dropped - old.counters.dropped
        hour_ago = self._before(queue, now - HOUR).counters.dead
        return {
            "inPerSecond": round(max(0, counters.published - old.counters.published) / seconds, 3),
            "outPerSecond": round(max(0, acked + dropped) / seconds, 3),
            "failureRate": round(failed / (acked + failed), 3) if failed > 0 else 0.0,
            "deadLetters": {
                code: {"total": count, "lastHour": max(0, count - hour_ago.get(code, 0))}
                for code, count in counters.dead.items()
            },
        }

    def _before(self, queue: str, at: float) -> Look:
        """Return the last look that is as old as this, or the first."""
        looks = self._looks[queue]
        return next((look for look in reversed(looks) if look.at <= at), looks[0])


class Histogram:
    """A histogram of durations."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(DURATIONS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(DURATIONS, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)

    def document(self) -> dict[str, Any]:
        return histogram_document(self.counts, self.total)
