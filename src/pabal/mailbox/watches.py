"""Everything that wakes the manager: requests that arrive, queues that ring, and whoever calls `wake`."""

from __future__ import annotations

import os
import select
import threading
from contextlib import suppress
from typing import Protocol, runtime_checkable

from pabal.errors import StoreError
from pabal.store import Store, Waitable, Watch
from pabal.watch import Inotify


@runtime_checkable
class _Pollable(Protocol):
    def fileno(self) -> int: ...


class Watches:
    """A `pabal.store.Watch` over the requests and over queues, which are added as somebody waits for them."""

    def __init__(self, inotify: Inotify | None) -> None:
        self._open = threading.Lock()  # held while the bell may be rung, and for good once closed
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.epoll()
        self._poll.register(self._bell, select.EPOLLIN)
        if inotify is not None:
            self._poll.register(inotify.fd, select.EPOLLIN)
        self._queues: dict[str, Watch] = {}
        self._names: dict[int, str] = {}

    def wait(self, timeout: float) -> bool:
        """Sleep until there is something to do. What rang stays so until it is taken."""
        ready = {fd for fd, _ in self._poll.poll(max(0.0, timeout))}
        if self._bell in ready:
            os.eventfd_read(self._bell)
        return bool(ready)

    def wake(self) -> None:
        """End the current or next wait, from any thread or signal handler."""
        if self._open.acquire(blocking=False):
            os.eventfd_write(self._bell, 1)
            self._open.release()

    def add(self, store: Store, queue: str) -> bool:
        """Hear this queue from now on; False if it was heard already, or cannot be."""
        if queue in self._queues or not isinstance(store, Waitable):
            return False
        with suppress(StoreError):
            watch = store.watch([queue])
            self._queues[queue] = watch
            if isinstance(watch, _Pollable):
                self._poll.register(watch.fileno(), select.EPOLLIN)
                self._names[watch.fileno()] = queue
            return True
        return False

    def rung(self) -> list[str]:
        """Take the queues that rang."""
        names = [self._names[fd] for fd, _ in self._poll.poll(0.0) if fd in self._names]
        return [name for name in names if self._queues[name].wait(0.0)]

    def close(self) -> None:
        self._open.acquire()
        self._poll.close()
        os.close(self._bell)
        for watch in self._queues.values():
            watch.close()
