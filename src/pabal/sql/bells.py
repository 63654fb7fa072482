"""Wakeups between processes: a file of one byte for each queue, read after each commit that made something ready.

Watchers get an inotify event for the read. The database's own files change before the commit is visible, and for every
queue at once. Writing to the bell file would cost the next commit a tenth of its speed, because file systems keep
modification times.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from pabal.durable import make_dirs, translated
from pabal.filesystem import kept_open
from pabal.watch import ACCESS, PathWatch


class Bells:
    """The bell files of one database. The folder is made when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self._open: dict[str, int] = {}
        self._most = kept_open()  # there may be more queues than a process may open files
        self._folder = os.fspath(folder)

    def ring(self, queues: Iterable[str]) -> None:
        """Wake the watchers of these queues."""
        for queue in queues:
            try:
                fd = self._open.get(queue)
                if fd is None:
                    self._ring_new(queue)
                else:
                    os.pread(fd, 1, 0)
            except OSError:  # no space for a bell file: watchers look once a second all the same
                continue

    def watch(self, queues: Sequence[str]) -> PathWatch:
        """Return a watch that is woken for these queues from now on."""
        with translated(f"watching {self._folder}"):
            for queue in queues:
                os.close(self._open_file(queue))
            return PathWatch({f"{self._folder}/{queue}": ACCESS for queue in queues})

    def make_room(self) -> bool:
        """Close all files and keep fewer from now on: this process has no descriptors left. False if none was open."""
        self._most = min(self._most, len(self._open) // 2)
        found = bool(self._open)
        self.close()
        return found

    def close(self) -> None:
        with suppress(KeyError):  # until it is empty, which another thread may see to as well
            while True:
                os.close(self._open.popitem()[1])

    __del__ = close

    def _ring_new(self, queue: str) -> None:
        fd = self._open_file(queue)
        os.pread(fd, 1, 0)
        if len(self._open) >= self._most or self._open.setdefault(queue, fd) is not fd:
            os.close(fd)  # enough are open, or another thread was faster

    def _open_file(self, queue: str) -> int:
        """Open a bell file; make it if it is missing."""
        path, flags = f"{self._folder}/{queue}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(path, flags, 0o600)
        except FileNotFoundError:
            make_dirs(Path(self._folder))
            fd = os.open(path, flags, 0o600)
        try:
            if not os.fstat(fd).st_size:
                os.pwrite(fd, b"\n", 0)  # reading an empty file causes no event
        except OSError:
            os.close(fd)
            raise
        return fd
