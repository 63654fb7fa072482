"""A bell for each queue: an empty file, opened and closed after each commit that made something ready.

Whoever watches it hears that. The database's own files move before the commit is there to be seen, and for every queue
at once; touching the bell's times would cost the next commit a tenth of its speed, since the file system keeps them.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from pabal.durable import make_dirs, translated
from pabal.watch import PathWatch

_CLOSE_NOWRITE = 0x10


class Bells:
    def __init__(self, folder: Path) -> None:
        self._folder = os.fspath(folder)
        with translated(f"making {folder}"):
            make_dirs(folder)

    def ring(self, queues: Iterable[str]) -> None:
        """Wake whoever watches these queues."""
        for queue in queues:
            with suppress(OSError):  # no bell, nobody who hears it
                os.close(os.open(f"{self._folder}/{queue}", os.O_RDONLY | os.O_CLOEXEC))

    def watch(self, queues: Sequence[str]) -> PathWatch:
        """Return a watch that hears these queues from now on."""
        with translated(f"watching {self._folder}"):
            return PathWatch({self._hang(queue): _CLOSE_NOWRITE for queue in queues})

    def _hang(self, queue: str) -> str:
        path = f"{self._folder}/{queue}"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        return path
