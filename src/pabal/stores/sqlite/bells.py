"""A bell for each queue: a file of one byte, read after each commit that made something ready.

Whoever watches it hears the reading. The database's own files move before the commit is there to be seen, and for every
queue at once; touching the bell would cost the next commit a tenth of its speed, since file systems keep such times.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from pabal.durable import make_dirs, translated
from pabal.watch import ACCESS, PathWatch

_OPEN = 64  # bells kept open: one may see more queues than a process may have files


class Bells:
    def __init__(self, folder: Path) -> None:
        self._open: dict[str, int] = {}
        self._folder = os.fspath(folder)
        with translated(f"making {folder}"):
            make_dirs(folder)

    def ring(self, queues: Iterable[str]) -> None:
        """Wake whoever watches these queues."""
        for queue in queues:
            try:
                fd = self._open.get(queue)
                if fd is None:
                    self._ring_new(queue)
                else:
                    os.pread(fd, 1, 0)
            except OSError:  # no room for a bell: who waits looks once a second all the same
                continue

    def watch(self, queues: Sequence[str]) -> PathWatch:
        """Return a watch that hears these queues from now on."""
        with translated(f"watching {self._folder}"):
            for queue in queues:
                os.close(self._hang(queue))
            return PathWatch({f"{self._folder}/{queue}": ACCESS for queue in queues})

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    __del__ = close

    def _ring_new(self, queue: str) -> None:
        fd = self._hang(queue)
        os.pread(fd, 1, 0)
        if len(self._open) >= _OPEN or self._open.setdefault(queue, fd) is not fd:
            os.close(fd)  # there are enough, or another thread was faster

    def _hang(self, queue: str) -> int:
        """Open a bell, made if need be."""
        fd = os.open(f"{self._folder}/{queue}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not os.fstat(fd).st_size:
                os.pwrite(fd, b"\n", 0)  # nothing is heard of an empty file
        except OSError:
            os.close(fd)
            raise
        return fd
