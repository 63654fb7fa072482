"""A bell for each queue that a client waits for: a file of one byte, read when the queue rings.

Clients hear the reading and write nothing, so that one file serves them all whoever they are.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

_KEPT = 86400.0  # seconds after the last wish for it that a bell is still rung after a restart
MOST_HUNG = 1024  # then the one that nobody wished for longest is taken down; who listens to it still looks by himself
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC


class Bells:
    def __init__(self, folder: str, *, shared: bool) -> None:
        self._folder = folder
        self._mode = 0o640 if shared else 0o600
        self._hung: dict[str, None] = {}  # the one wished for longest ago comes first

    def hung(self) -> list[str]:
        """Name the queues whose bells an earlier run left and somebody may still listen to; remove the others."""
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                wished = entry.stat(follow_symlinks=False).st_mtime
                if time.time() - wished < _KEPT:
                    found.append((wished, entry.name))
                else:
                    os.unlink(entry.path)
        return [name for _, name in sorted(found)]

    def hang(self, queue: str) -> None:
        """Make sure that a queue has its bell."""
        path = f"{self._folder}/{queue}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | _FLAGS, self._mode)
        try:
            os.fchmod(fd, self._mode)
            os.pwrite(fd, b"\n", 0)  # nothing is heard of an empty file; and it says when it was wished for
        finally:
            os.close(fd)
        self._hung.pop(queue, None)
        self._hung[queue] = None
        if len(self._hung) > MOST_HUNG:
            oldest = next(iter(self._hung))
            del self._hung[oldest]
            with suppress(OSError):
                os.unlink(f"{self._folder}/{oldest}")

    def ring(self, queue: str) -> None:
        if queue in self._hung:
            with suppress(OSError):
                fd = os.open(f"{self._folder}/{queue}", os.O_RDONLY | _FLAGS)
                try:
                    os.read(fd, 1)
                finally:
                    os.close(fd)
