"""A bell for each queue that a client waits for: a file of one byte, read when the queue rings.

Clients hear the reading and write nothing, so that one file serves them all whoever they are.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

_KEPT = 86400.0  # seconds after the last wish for it that a bell is still rung after a restart


class Bells:
    def __init__(self, folder: str, *, shared: bool) -> None:
        self._folder = folder
        self._mode = 0o640 if shared else 0o600
        self._open: dict[str, int] = {}

    def hung(self) -> list[str]:
        """Name the queues whose bells an earlier run left and somebody may still listen to; remove the others."""
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if time.time() - entry.stat(follow_symlinks=False).st_mtime < _KEPT:
                    found.append(entry.name)
                else:
                    os.unlink(entry.path)
        return found

    def hang(self, queue: str) -> str:
        """Make sure that a queue has its bell; return where it is."""
        path = f"{self._folder}/{queue}"
        if queue not in self._open:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, self._mode)
            os.fchmod(fd, self._mode)
            os.pwrite(fd, b"\n", 0)  # nothing is heard of an empty file
            self._open[queue] = fd
        os.utime(self._open[queue])
        return path

    def ring(self, queue: str) -> None:
        fd = self._open.get(queue)
        if fd is not None:
            with suppress(OSError):
                os.pread(fd, 1, 0)

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])
