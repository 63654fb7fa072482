"""A bell for each queue: a file touched after each commit that made something ready, for whoever watches it.

The database's own files move before the commit is there to be seen, and for every queue at once.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from pabal.durable import make_dirs, translated
from pabal.watch import ATTRIB, CLOSE_WRITE, PathWatch


class Bells:
    def __init__(self, folder: Path) -> None:
        self._folder = os.fspath(folder)
        with translated(f"making {folder}"):
            make_dirs(folder)

    def ring(self, queues: Iterable[str]) -> None:
        """Wake whoever watches these queues."""
        for queue in queues:
            try:
                os.utime(f"{self._folder}/{queue}")
            except OSError:
                with suppress(OSError):  # no bell: whoever waits polls beneath
                    self._touch(queue)

    def watch(self, queues: Sequence[str]) -> PathWatch:
        """Return a watch that hears these queues from now on."""
        with translated(f"watching {self._folder}"):
            return PathWatch({self._touch(queue): ATTRIB | CLOSE_WRITE for queue in queues})

    def _touch(self, queue: str) -> str:
        path = f"{self._folder}/{queue}"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        return path
