"""Ids with a number that counts within a day, `task-20260207-001`, also after a crash.

The file holds the last reserved number, `20260207:041`, written durably before the first id of a block is used: a crash
leaves a gap, never the same id twice, and a stop gives back what was not used. Any number of processes and threads may
share it. If the file is lost or damaged, the ids in the queue show the last number.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from pabal.clock import Clock
from pabal.durable import make_dirs, replace_whole, translated
from pabal.filesystem import locked

_KEPT = re.compile(r"(\d{8}):(\d{3,})\s*", re.ASCII)


class IdSequence:
    """The ids of one kind. `highest` finds the largest number of a day that is in use, for when the file is lost."""

    def __init__(self, path: Path, prefix: str, clock: Clock, highest: Callable[[str], int]) -> None:
        self._path = path
        self._prefix = prefix
        self._clock = clock
        self._highest = highest
        self.block = 1  # ids that are reserved at once
        self._turn = threading.Lock()
        self._day = ""
        self._next = self._end = 0

    def expect(self, count: int) -> None:
        """Reserve this many ids at once, which are then taken one by one."""
        with self._turn:
            day = self._today()
            if day != self._day or self._end - self._next < count:
                self._reserve(day, max(self.block, count))

    def take(self, count: int = 1) -> list[str]:
        """Return new ids, which no other process gets."""
        with self._turn:
            return [self._take(left) for left in range(count, 0, -1)]

    def give_back(self) -> None:
        """Give back the reserved ids that were not taken, unless another process reserved more since."""
        with self._turn, translated(f"counting in {self._path}"):
            if self._next < self._end:
                with locked(f"{self._path}.lock"):
                    if self._last(self._day) == self._end - 1:
                        replace_whole(self._path, f"{self._day}:{self._next - 1:03}\n".encode())
                self._end = self._next

    def _take(self, left: int) -> str:
        day = self._today()
        if day != self._day or self._next >= self._end:
            self._reserve(day, max(self.block, left))
        self._next += 1
        return f"{self._prefix}-{day}-{self._next - 1:03}"

    def _today(self) -> str:
        return datetime.fromtimestamp(self._clock.now(), UTC).strftime("%Y%m%d")

    def _reserve(self, day: str, count: int) -> None:
        with translated(f"counting in {self._path}"):
            make_dirs(self._path.parent)
            with locked(f"{self._path}.lock"):
                last = self._last(day)
                replace_whole(self._path, f"{day}:{last + count:03}\n".encode())
        self._day, self._next, self._end = day, last + 1, last + count + 1

    def _last(self, day: str) -> int:
        try:
            kept = _KEPT.fullmatch(self._path.read_text("ascii", "replace"))
        except FileNotFoundError:
            kept = None
        if kept is None:
            return self._highest(f"{self._prefix}-{day}-")
        return int(kept[2]) if kept[1] == day else 0
