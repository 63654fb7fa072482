"""A watch over file descriptors: a loop sleeps on it until one is readable or another thread wakes it."""

from __future__ import annotations

import select
from typing import Protocol, runtime_checkable

from pabal.store import Watch
from pabal.watch import Waker


@runtime_checkable
class PollableWatch(Watch, Protocol):
    """A watch for loops that wait on many things."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when `wait` might not sleep."""
        ...


class FdWatch:
    """A `pabal.store.Watch` over descriptors, which may be added and removed. Only its own thread may add or wait."""

    def __init__(self) -> None:
        self._waker = Waker()
        self._poll = select.poll()
        self._poll.register(self._waker.fd, select.POLLIN)

    def add(self, fd: int) -> None:
        """Wake when this descriptor is readable, until it is removed."""
        self._poll.register(fd, select.POLLIN)

    def remove(self, fd: int) -> None:
        self._poll.unregister(fd)

    def wait(self, timeout: float) -> bool:
        """Sleep until a descriptor is readable, woken or timed out; True unless timed out."""
        ready = {fd for fd, _ in self._poll.poll(max(0, -(-timeout * 1000 // 1)))}
        if self._waker.fd in ready:
            self._waker.take()
        return bool(ready)

    def wake(self) -> None:
        """End the current or next `wait`, from any thread or signal handler."""
        self._waker.wake()

    def close(self) -> None:
        self._waker.close()
