"""Waiting messages in the order in which they are wanted: ready ones by lease order, others by when time changes them.

Entries are strings that sort in lease order; those of `delayed` and `expiring` have a time of 13 digits before them.
"""

from collections.abc import Callable
from heapq import heappop, heappush


class Heaps:
    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.anyones: list[str] = []  # ready for whoever comes
        self._ready: dict[str, list[str]] = {"": self.anyones}  # by target
        self.delayed: list[str] = []
        self.expiring: list[str] = []

    def push(self, entry: str, target: str) -> None:
        """Offer an entry to whom it is addressed to."""
        heap = self._ready.get(target)
        if heap is None:
            heap = self._ready[target] = []
        heappush(heap, entry)

    def pop(self, target: str) -> str | None:
        """Take what comes first of what is for anyone and for this one."""
        own = self._ready.get(target) if target else None
        if own and (not self.anyones or own[0] < self.anyones[0]):
            return heappop(own)
        return heappop(self.anyones) if self.anyones else None

    def delay(self, entry: str, due: int) -> None:
        heappush(self.delayed, f"{due:013}{entry}")

    def expire(self, entry: str, at: int) -> None:
        heappush(self.expiring, f"{at:013}{entry}")

    def next_time(self, waits: Callable[[str], bool]) -> int | None:
        """Return the earliest time at which something changes; entries that no longer wait are dropped on the way."""
        found = []
        for heap in (self.delayed, self.expiring):
            while heap and not waits(heap[0][13:]):
                heappop(heap)
            if heap:
                found.append(int(heap[0][:13]))
        return min(found, default=None)


def pop_due(heap: list[str], now: int) -> str | None:
    """Take the first entry of a heap of times, if its time has come."""
    return heappop(heap)[13:] if heap and int(heap[0][:13]) <= now else None
