"""What happens in the directories of a store: one inotify instance for all its queues."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import Protocol

from pabal.watch import IGNORED, OVERFLOW, Inotify


class Reader(Protocol):
    """Who is told. `stale` means that something was missed."""

    stale: bool
    pending: deque[tuple[str, int, str]]  # directory, what happened, name


class Feed:
    """Hands out what happens in each directory to whoever watches it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # nobody may see the instance read and its events not yet handed out
        self._readers: dict[int, tuple[Reader, str]] = {}
        self._inotify: Inotify | None
        try:
            self._inotify = Inotify()
        except OSError:
            self._inotify = None

    @property
    def working(self) -> bool:
        return self._inotify is not None

    def watch(self, path: str, mask: int, reader: Reader) -> None:
        """Have what happens in a directory told to a reader, in place of an earlier watch on it."""
        with self._lock:
            if self._inotify is not None:
                try:
                    self._readers[self._inotify.add(path, mask)] = reader, path
                except OSError:  # no watches left: from here on all is listed again when it changed
                    self._close()

    def drain(self) -> None:
        """Hand out what has happened so far."""
        with self._lock:
            if self._inotify is not None:
                for watch, mask, name in self._inotify.events():
                    self._tell(watch, mask, name)

    def _tell(self, watch: int, mask: int, name: str) -> None:
        if mask & OVERFLOW:
            for reader, _ in self._readers.values():
                reader.stale = True
        elif watch in self._readers:
            reader, path = self._readers[watch]
            if mask & IGNORED:
                reader.stale = True
            else:
                reader.pending.append((path, mask, name))

    def close(self) -> None:
        with self._lock:
            self._close()

    def leave_to_parent(self) -> None:
        """In a forked child, where another thread of the parent may have held the lock."""
        self._close()

    def _close(self) -> None:
        inotify, self._inotify = self._inotify, None
        if inotify is not None:
            with suppress(OSError):
                inotify.close()
