"""A watch over file descriptors: a loop sleeps on it until one is readable or somebody wakes it."""

from __future__ import annotations

import os
import select
import threading


class FdWatch:
    """A `pabal.store.Watch` over any number of descriptors, which come and go. Only its own thread may add or wait."""

    def __init__(self) -> None:
        self._open = threading.Lock()  # held while the bell may be rung, and for good once closed
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._bell, select.POLLIN)

    def add(self, fd: int) -> None:
        """Wake when this descriptor is readable, until it is removed."""
        self._poll.register(fd, select.POLLIN)

    def remove(self, fd: int) -> None:
        self._poll.unregister(fd)

    def wait(self, timeout: float) -> bool:
        """Sleep until a descriptor is readable, woken or timed out; True unless timed out."""
        ready = {fd for fd, _ in self._poll.poll(max(0, -(-timeout * 1000 // 1)))}
        if self._bell in ready:
            os.eventfd_read(self._bell)
        return bool(ready)

    def wake(self) -> None:
        """End the current or next `wait`, from any thread or signal handler."""
        if self._open.acquire(blocking=False):
            os.eventfd_write(self._bell, 1)
            self._open.release()

    def close(self) -> None:
        self._open.acquire()
        os.close(self._bell)
