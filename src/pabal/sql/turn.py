"""The file `<db>.lock`: writers of all processes queue on its flock; SQLite's own busy handler lets some starve."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_UN, flock
from functools import partial
from pathlib import Path

from pabal.errors import StoreFailed

_nothing = bool  # a function of C that does nothing


class Turn:
    """This process's place in the queue. `unlock` lets the next one in, also where nothing was taken.

    A signal handler may raise wherever a function of Python begins, and then nobody would ever be let in: `unlock` is
    one of C.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self.unlock: Callable[[], object] = _nothing

    @property
    def open(self) -> bool:
        return self._fd >= 0

    def prepare(self) -> None:
        """Open the file, made if need be."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.unlock = partial(flock, fd, LOCK_UN)  # first: nothing is taken that cannot be let go
        self._fd = fd

    def take(self) -> None:
        try:
            if self._fd < 0:
                self.prepare()
            flock(self._fd, LOCK_EX)
        except OSError as exc:
            raise StoreFailed(f"{exc.strerror} while queueing on {self._path}: repeat") from exc

    @contextmanager
    def held(self) -> Iterator[None]:
        self.take()
        try:
            yield
        finally:
            try:
                self.unlock()
            except OSError:
                self.close()

    def close(self) -> None:
        """Let go of the file, and so of the lock."""
        fd, self._fd, self.unlock = self._fd, -1, _nothing
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    __del__ = close
