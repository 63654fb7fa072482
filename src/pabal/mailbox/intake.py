"""Which request files to take next: told by inotify, in name order, in slices that no flood can fill alone."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from pabal.watch import ARRIVALS, MOVE_SELF, OVERFLOW, Inotify

SLICE = 500
_MOST_KNOWN = 50_000  # names kept in memory; the rest is found by listing again


class Intake:
    """The names that wait in a folder. What came lately is taken beside what has been waiting, not after it."""

    def __init__(self, folder: str, *, watched: bool = True) -> None:
        self._folder = folder
        self._fresh: deque[str] = deque()
        self._backlog: deque[str] = deque()
        self._stuck: set[str] = set()
        self._unlisted = True  # there may be names that nobody told us of
        self.inotify: Inotify | None = None
        if not watched:
            return
        with suppress(OSError):
            self.inotify = Inotify()
            self.inotify.add(folder, ARRIVALS | MOVE_SELF)

    def look(self) -> None:
        """Have the folder listed at the next take."""
        self._unlisted = True

    def ignore(self, name: str) -> None:
        """Never take this name again: it is nothing that can be claimed."""
        self._stuck.add(name)

    @property
    def waiting(self) -> int:
        """How many names are known to wait."""
        return len(self._fresh) + len(self._backlog)

    def take(self) -> list[str]:
        """Return the next names, in order."""
        self._hear()
        if self._unlisted and not self._backlog:
            self._list()
        lately = list(_popped(self._fresh, SLICE // 2 if self._backlog else SLICE))
        return sorted({*lately, *_popped(self._backlog, SLICE - len(lately))})

    def give_back(self, names: list[str]) -> None:
        """Have names that were not taken after all come first the next time."""
        self._backlog.extendleft(reversed(names))

    def _hear(self) -> None:
        if self.inotify is None:
            self._unlisted = True
            return
        for event in self.inotify.events():
            if event.mask & OVERFLOW or len(self._fresh) >= _MOST_KNOWN:
                self._unlisted = True
            elif not event.name:  # of the folder itself: another in its place would not be heard
                raise FileNotFoundError(errno.ENOENT, "it was moved or removed", self._folder)
            elif not is_draft(event.name):
                self._fresh.append(event.name)

    def _list(self) -> None:
        with os.scandir(self._folder) as entries:
            usable = (entry.name for entry in entries if not is_draft(entry.name) and entry.name not in self._stuck)
            names = list(islice(usable, _MOST_KNOWN))
        self._unlisted = len(names) == _MOST_KNOWN
        self._backlog.extend(sorted(set(names).difference(self._fresh)))

    def close(self) -> None:
        if self.inotify is not None:
            self.inotify.close()


def is_draft(name: str) -> bool:
    """Say whether a file is still being written, by its name."""
    return name.startswith(".") or name.endswith(".tmp")


def _popped(names: deque[str], most: int) -> Iterator[str]:
    while names and most > 0:
        most -= 1
        yield names.popleft()
