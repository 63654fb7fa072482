"""The file `<db>.lock`: writers of all processes queue on its flock; SQLite's own busy handler lets some starve."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_UN, flock
from pathlib import Path

from pabal.errors import StoreFailed


class Turn:
    """This process's place in the queue."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    @property
    def open(self) -> bool:
        return self._fd >= 0

    def prepare(self) -> None:
        """Open the file, made if need be."""
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self) -> None:
        try:
            if self._fd < 0:
                self.prepare()
            flock(self._fd, LOCK_EX)
        except OSError as exc:
            raise StoreFailed(f"{exc.strerror} while queueing on {self._path}: repeat") from exc

    def give_back(self) -> None:
        """Let the next one in, also where nothing was taken."""
        try:
            if self._fd >= 0:
                flock(self._fd, LOCK_UN)
        except OSError:
            self.close()  # nobody else must wait for it: closing gives it up

    @contextmanager
    def held(self) -> Iterator[None]:
        self.take()
        try:
            yield
        finally:
            self.give_back()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)
