"""inotify through ctypes: learn that a file appeared without asking for it.

`Inotify` is the raw instance, `Waker` ends a wait from elsewhere, `PathWatch` is a `pabal.store.Watch` over some paths
that falls back to sleeping where inotify is not to be had, so that its user's own slow poll is all that is left.
"""

import ctypes
import errno
import os
import select
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

ACCESS, ATTRIB, CLOSE_WRITE, MOVED_FROM, MOVED_TO, DELETE = 0x1, 0x4, 0x8, 0x40, 0x80, 0x200
MOVE_SELF = 0x800
OVERFLOW, IGNORED = 0x4000, 0x8000
ARRIVALS = CLOSE_WRITE | MOVED_TO
_HEADER = struct.Struct("iIII")


class Event(NamedTuple):
    watch: int
    mask: int
    name: str


class Inotify:
    """One inotify instance. Raises OSError at construction where the system has none left to give."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._libc, "inotify_init1"):
            raise OSError(errno.ENOSYS, "this system has no inotify")
        self.fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "no inotify instance to be had")

    def add(self, path: str | os.PathLike[str], mask: int) -> int:
        """Watch a path; return the number that its events carry."""
        watch: int = self._libc.inotify_add_watch(self.fd, os.fsencode(path), mask)
        if watch < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), os.fspath(path))
        return watch

    def events(self) -> Iterator[Event]:
        """Take what has happened so far, without waiting."""
        while True:
            try:
                data = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return
            offset = 0
            while offset < len(data):
                watch, mask, _, size = _HEADER.unpack_from(data, offset)
                start = offset + _HEADER.size
                offset = start + size
                yield Event(watch, mask, os.fsdecode(data[start:offset].rstrip(b"\0")))
            if len(data) < 1 << 15:
                return

    def drain(self) -> None:
        """Forget what has happened so far."""
        with suppress(BlockingIOError):
            while len(os.read(self.fd, 1 << 16)) >= 1 << 15:
                pass

    def close(self) -> None:
        os.close(self.fd)


class Waker:
    """A descriptor that is readable once woken, until taken: what ends the wait of a loop."""

    def __init__(self) -> None:
        self._open = threading.Lock()  # held while the descriptor may be written to, and for good once closed
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wake(self) -> None:
        """End the current or next wait, from any thread or signal handler."""
        # Who cannot have the lock meets another waker or the closing itself: nothing is left to do. Never blocks, so
        # that a signal handler may call it.
        if self._open.acquire(blocking=False):
            os.eventfd_write(self.fd, 1)
            self._open.release()

    def take(self) -> None:
        """Let the next wait sleep again."""
        os.eventfd_read(self.fd)

    def close(self) -> None:
        self._open.acquire()
        os.close(self.fd)


class PathWatch:
    """Wakes when anything happens, as its mask says, to one of the paths."""

    def __init__(self, paths: Mapping[str, int]) -> None:
        self._poll = select.epoll()  # first: it closes itself if no descriptor is left for the waker
        self._waker = Waker()
        self._poll.register(self._waker.fd, select.EPOLLIN)
        self._inotify: Inotify | None = None
        try:
            self._inotify = Inotify()
            for path, mask in paths.items():
                self._inotify.add(path, mask)
            self._poll.register(self._inotify.fd, select.EPOLLIN)
        except OSError:
            if self._inotify is not None:
                self._inotify.close()
                self._inotify = None

    @property
    def woken_by(self) -> str:
        return "inotify" if self._inotify else "poll"

    def wait(self, timeout: float) -> bool:
        ready = {fd for fd, _ in self._poll.poll(max(0.0, timeout))}
        if self._waker.fd in ready:
            self._waker.take()
        if self._inotify is not None and self._inotify.fd in ready:
            self._inotify.drain()
        return bool(ready)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `wait` would not sleep: for loops that wait on many things."""
        return self._poll.fileno()

    def wake(self) -> None:
        self._waker.wake()

    def close(self) -> None:
        self._waker.close()
        self._poll.close()
        if self._inotify is not None:
            self._inotify.close()
