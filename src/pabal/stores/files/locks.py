"""A lock in a file: against threads and processes, and never left with a forked child.

A lock belongs to the open file, which a fork shares: a child that lives on would keep it for a parent that died. So a
child closes its descriptors at once, and opens the file anew when it needs it. The same thread may enter again. An
exception of a signal handler may strike between any two steps in here: `let_go` frees whatever the thread holds still.
"""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from contextlib import suppress

from pabal.errors import StoreClosed

_MOST_IDLE = 64  # files that are kept open, among the locks of one store, though nobody holds them
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class FileLock:
    """A context manager that holds the lock."""

    def __init__(self, path: str, idle: dict[FileLock, None] | None = None) -> None:
        """Make the lock of a file. `idle`: those of one store whose files are open, the one used last at the end."""
        self._path = path
        self._idle = {} if idle is None else idle
        self._threads = threading.RLock()  # knows by itself who holds it, whatever strikes in between
        self._depth = 0
        self._fd = -1
        self._closed = False
        _locks.add(self)

    def __enter__(self) -> None:
        self._threads.acquire()
        if self._depth == 0:
            try:
                fcntl.flock(self.open(), fcntl.LOCK_EX)
            except (OSError, StoreClosed):
                self._threads.release()
                raise
        self._depth += 1

    def __exit__(self, *exc: object) -> None:
        self._depth -= 1
        try:
            if self._depth == 0:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
                self._rest()
        finally:
            self._threads.release()

    def _rest(self) -> None:
        """Keep the file open for the next time, and close what is over the limit of those that were used before."""
        self._idle.pop(self, None)
        self._idle[self] = None
        if len(self._idle) > _MOST_IDLE:
            for lock in list(self._idle)[:-_MOST_IDLE]:
                lock._close_idle()

    def _close_idle(self) -> None:
        if not self._threads.acquire(blocking=False):
            return  # another thread's at this moment
        try:
            if self._depth == 0:
                self._idle.pop(self, None)
                self._drop()
        finally:
            self._threads.release()

    def open(self) -> int:
        """Return the descriptor of the file, opened if need be. Only where no other thread can have the lock."""
        if self._closed:
            raise StoreClosed("this store is closed")
        if self._fd < 0:
            with _opening:
                self._fd = os.open(self._path, _FLAGS, 0o600)
        return self._fd

    def let_go(self) -> None:
        """Free what this thread holds, however often it entered."""
        if not self._threads.acquire(blocking=False):
            return  # another thread's
        self._depth = 0
        if self._fd >= 0:
            with suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        with suppress(RuntimeError):  # no longer ours
            while True:
                self._threads.release()

    def close(self) -> None:
        """Close the file once nobody holds the lock; who comes later is told."""
        with self._threads:
            self._closed = True
            self._idle.pop(self, None)
            self._drop()

    def leave_to_parent(self) -> None:
        """In a forked child: the descriptor, and the threads that may hold the lock, are the parent's."""
        self._threads, self._depth = threading.RLock(), 0
        self._idle.pop(self, None)
        self._drop()

    def _drop(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)


_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()
_opening = threading.Lock()  # held while a file is opened, and through a fork: no child has one that nobody knows of


def _in_child() -> None:
    for lock in list(_locks):
        lock.leave_to_parent()
    _opening.release()


os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_in_child)
