"""inotify(7) through ctypes, to learn of new files without polling.

`Inotify` is one instance of the kernel. `Waker` ends a wait from another thread or from a signal handler. `PathWatch`
is a `pabal.store.Watch` over some paths. All of a process share one instance, because a user has few of them. It is
kept until the process ends: the kernel takes 10 ms to close one, and microseconds to begin and end a watch. While the
system has none left, a `PathWatch` only sleeps, and the slow poll of its user remains.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

ACCESS, ATTRIB, CLOSE_WRITE, MOVED_FROM, MOVED_TO, DELETE = 0x1, 0x4, 0x8, 0x40, 0x80, 0x200
MOVE_SELF = 0x800
OVERFLOW, IGNORED = 0x4000, 0x8000
_MASK_ADD = 0x20000000
ARRIVALS = CLOSE_WRITE | MOVED_TO
_HEADER = struct.Struct("iIII")
_LEAST_PAUSE = 0.5  # seconds between two tries to get an inotify instance


class Event(NamedTuple):
    watch: int
    mask: int
    name: str


class Inotify:
    """One inotify instance. The constructor raises OSError where the system has none left."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._libc, "inotify_init1"):
            raise OSError(errno.ENOSYS, "this system has no inotify")
        self.fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "no inotify instance to be had")

    def add(self, path: str | os.PathLike[str], mask: int) -> int:
        """Watch a path and return the number of the watch, which its events carry."""
        watch: int = self._libc.inotify_add_watch(self.fd, os.fsencode(path), mask)
        if watch < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), os.fspath(path))
        return watch

    def remove(self, watch: int) -> None:
        """End a watch. One that the kernel has ended already is no error."""
        self._libc.inotify_rm_watch(self.fd, watch)

    def events(self) -> Iterator[Event]:
        """Yield the events that have happened so far, without waiting."""
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

    def close(self) -> None:
        os.close(self.fd)


class _Descriptor:
    """A descriptor that is closed when nobody uses it any more."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.fd)  # not by the name of its module, which may be gone when the process ends


class Waker:
    """A descriptor that becomes readable by `wake` and stays so until `take`: it ends the wait of a loop."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._held: _Descriptor | None = _Descriptor(self.fd)

    def wake(self) -> None:
        """End the current or next wait, from any thread or signal handler."""
        # No lock, which a signal handler could not wait for: a thread that writes keeps the descriptor open.
        if (held := self._held) is not None:
            os.eventfd_write(held.fd, 1)

    def take(self) -> None:
        """Reset, so that the next wait sleeps again."""
        os.eventfd_read(self.fd)

    def close(self) -> None:
        self._held = None


class SharedInotify:
    """The inotify instance of this process, and the watches that share it. A forked child starts with none."""

    kind = "inotify"

    def __init__(self) -> None:
        self.generation = 0
        self._forget()
        os.register_at_fork(after_in_child=self._leave_to_parent)

    def _forget(self) -> None:
        self._lock = threading.RLock()
        self._inotify: Inotify | None = None
        self._members: dict[PathWatch, set[int]] = {}
        self._paths: dict[int, dict[PathWatch, int]] = {}  # by the number of the kernel's watch; values are masks

    def _leave_to_parent(self) -> None:
        inotify = self._inotify
        self._forget()
        self.generation += 1
        if inotify is not None:
            inotify.close()

    def join(self, watch: PathWatch) -> int:
        """Wake this watch from now on; return -1 if there is no instance or if a path cannot be watched."""
        with self._lock:
            try:
                inotify = self._inotify = self._inotify or Inotify()
                numbers = self._members.setdefault(watch, set())
                for path, mask in watch.paths.items():
                    number = inotify.add(path, mask | _MASK_ADD)
                    numbers.add(number)
                    masks = self._paths.setdefault(number, {})
                    masks[watch] = masks.get(watch, 0) | mask
                return inotify.fd
            except OSError:
                self.leave(watch)
                return -1
            except BaseException:
                self.leave(watch)
                raise

    def leave(self, watch: PathWatch) -> None:
        """Forget a watch."""
        with self._lock:
            numbers, inotify = self._members.pop(watch, set()), self._inotify
            for number in numbers:
                masks = self._paths.get(number, {})
                masks.pop(watch, None)
                if not masks and self._paths.pop(number, None) is not None and inotify is not None:
                    inotify.remove(number)

    def dispatch(self, reader: PathWatch) -> bool:
        """Read the events that have happened so far, and wake the watches that they are for; see `Source`."""
        found = False
        with self._lock:
            for number, mask, _ in self._inotify.events() if self._inotify is not None else ():
                masks = self._paths.get(number, {})
                if mask & OVERFLOW:
                    masks = dict.fromkeys(self._members, OVERFLOW)
                elif mask & IGNORED:
                    self._paths.pop(number, None)  # the path is gone
                for watch, wanted in masks.items():
                    if mask & (wanted | IGNORED):
                        if watch is reader:
                            found = True
                        else:
                            watch.wake()
        return found


class Source(Protocol):
    """A source of events that many watches share: an inotify instance, or a connection that listens."""

    kind: str
    generation: int  # changes when the descriptor that `join` returned is no longer of use

    def join(self, watch: Any) -> int:
        """Wake this watch from now on; return the descriptor to wait on, or -1 while there is none."""
        ...

    def leave(self, watch: Any) -> None: ...

    def dispatch(self, reader: Any) -> bool:
        """Read the events that have happened so far, and wake the watches that they are for.

        The watch that reads is not woken: return whether there was one for it.
        """
        ...


class SharedWatch:
    """A watch on a shared source. Where there is none, it only sleeps, and now and then asks again for one.

    The source is in the epoll set of each watch, so that the kernel wakes one waiting thread for an event. That thread
    dispatches it: so no thread is needed only to read.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._open()

    def _open(self) -> None:
        self._pid = os.getpid()
        self._poll = select.epoll()  # first: it closes itself if the waker gets no descriptor
        self._waker = Waker()
        self._poll.register(self._waker.fd, select.EPOLLIN)
        self._join()

    def _join(self) -> bool:
        self._tried = time.monotonic()
        self._fd = self._source.join(self)
        self._generation = self._source.generation
        if self._fd < 0:
            return False
        self._poll.register(self._fd, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        return True

    @property
    def woken_by(self) -> str:
        return self._source.kind if self._fd >= 0 and self._generation == self._source.generation else "poll"

    def wait(self, timeout: float) -> bool:
        end = time.monotonic() + timeout
        if self._pid != os.getpid():
            self._start_afresh()
        if self.woken_by == "poll" and time.monotonic() - self._tried >= _LEAST_PAUSE and self._join():
            return True  # something may have happened while nothing was watched
        try:
            while ready := [fd for fd, _ in self._poll.poll(max(0.0, end - time.monotonic()))]:
                found = self._waker.fd in ready
                if found:
                    self._waker.take()
                if len(ready) > found:
                    # Also if this watch was woken: the kernel wakes one thread for an event, which may be for another.
                    found |= self._source.dispatch(self)
                if found:
                    return True
            return False
        except BaseException:
            self._source.dispatch(self)  # a signal handler raised after the kernel had chosen this thread
            raise

    def fileno(self) -> int:
        """Return a descriptor that is readable when `wait` might not sleep, for loops that wait on many things."""
        return self._poll.fileno()

    def wake(self) -> None:
        self._waker.wake()

    def close(self) -> None:
        if self._pid == os.getpid():
            self._source.leave(self)
        self._poll.close()
        self._waker.close()

    def _start_afresh(self) -> None:
        # In a forked child: the epoll set and the waker are those of the parent.
        self.close()
        self._open()


_shared = SharedInotify()


class PathWatch(SharedWatch):
    """Wakes when one of the events in its mask happens to one of the paths."""

    lasting = True  # the kernel joins equal events, and forgets all beyond a number

    def __init__(self, paths: Mapping[str, int]) -> None:
        self.paths = dict(paths)
        super().__init__(_shared)
