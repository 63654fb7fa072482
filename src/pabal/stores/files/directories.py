"""The directories of a queue where no inotify tells of them: what they hold, and whether they have changed since."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pabal.stores.files.spool import Spool

_SETTLED_NS = 2_000_000_000  # a directory's time of change is trusted once it is this old


class Directories:
    def __init__(self, spool: Spool, *, native: bool) -> None:
        self._waiting = spool.waiting
        self._all = (*spool.waiting, spool.inflight)
        self._native = native
        self._seen: tuple[int, ...] = ()

    def mark(self) -> None:
        """Take them as seen."""
        self._seen = self._times()

    def changed(self) -> bool:
        """Say whether they may have changed since they were marked."""
        times = self._times()
        # The system's own clock, for these are the system's times: too young a change may hide another.
        return times != self._seen or time.time_ns() - max(times) < _SETTLED_NS

    def waiting(self) -> list[tuple[str, str]]:
        """Return (name, directory) of every waiting file, sorted."""
        return sorted((name, path) for path in self._waiting for name in self._list(path))

    def _list(self, path: str) -> list[str]:
        if self._native:
            return os.listdir(path)
        # A layout of an application may keep other directories in here.
        return [entry.name for entry in os.scandir(path) if not entry.is_dir(follow_symlinks=False)]

    def _times(self) -> tuple[int, ...]:
        return tuple(os.stat(path).st_mtime_ns for path in self._all)
