"""What metrics are made of: counts over a sliding time and histograms of durations."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Any

BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 86400.0)  # seconds
_SLOTS = 60


class Rate:
    """Counts what happened in the last `window` seconds, to a sixtieth of it."""

    __slots__ = ("_slots", "_width", "window")

    def __init__(self, window: float) -> None:
        self.window = window
        self._width = window / _SLOTS
        self._slots: deque[list[float]] = deque()  # [which slot of time, how many]

    def add(self, count: float, now: float) -> None:
        slot = now // self._width
        if self._slots and self._slots[-1][0] == slot:
            self._slots[-1][1] += count
        else:
            self._slots.append([slot, count])
            self._forget(slot)

    def count(self, now: float) -> float:
        """Return how many there were within the window."""
        self._forget(now // self._width)
        return sum(count for _, count in self._slots)

    def per_second(self, now: float, since: float) -> float:
        """Return the mean rate over the window, or over the time `since` counting began if that is shorter."""
        return self.count(now) / max(1.0, min(self.window, now - since))

    def _forget(self, slot: float) -> None:
        while self._slots and self._slots[0][0] <= slot - _SLOTS:
            self._slots.popleft()


class Histogram:
    """Durations by how long they were."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, part: float) -> float | None:
        """Return the bound below which this part of the durations lies; None if there are none."""
        wanted = part * self.count
        seen = 0
        for bound, count in zip(BOUNDS, self.counts, strict=False):
            seen += count
            if seen and seen >= wanted:
                return bound
        return BOUNDS[-1] if self.count else None

    def cumulative(self) -> list[tuple[str, int]]:
        """Return how many were at most as long as each bound, the last of them endless."""
        found, seen = [], 0
        for bound, count in zip([*(f"{bound:g}" for bound in BOUNDS), "+Inf"], self.counts, strict=True):
            seen += count
            found.append((bound, seen))
        return found

    def document(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "sum": round(self.total, 6),
            "p50": self.quantile(0.5),
            "p90": self.quantile(0.9),
            "p99": self.quantile(0.99),
            "buckets": dict(self.cumulative()),
        }
