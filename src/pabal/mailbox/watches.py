"""Everything that wakes the manager: requests that arrive, queues that ring, and whoever calls `wake`.

A user may have few inotify instances, and clients need theirs. So queues share a fixed number of watches: the first
ones have one each, later ones ring together with others. A queue that cannot be heard is no error; `hears` tells.
"""

from __future__ import annotations

import select
from contextlib import suppress

from pabal.errors import StoreError
from pabal.store import Store, Waitable
from pabal.watch import Inotify, PathWatch, Waker

GROUPS = 24
MOST_HEARD = 1024


class _Group:
    """Queues that ring together."""

    def __init__(self) -> None:
        self.queues: set[str] = set()
        self.watch: PathWatch | None = None
        self.rang = False


class Watches:
    """A `pabal.store.Watch` over the requests and over queues, which are added as somebody waits for them."""

    def __init__(self, inotify: Inotify | None) -> None:
        self._waker = Waker()
        self._poll = select.epoll()
        self._poll.register(self._waker.fd, select.EPOLLIN)
        if inotify is not None:
            self._poll.register(inotify.fd, select.EPOLLIN)
        self._groups = [_Group() for _ in range(GROUPS)]
        self._heard: dict[str, _Group] = {}  # the one that was asked for longest ago comes first

    def wait(self, timeout: float) -> bool:
        """Sleep until there is something to do. What rang stays so until it is taken."""
        ready = {fd for fd, _ in self._poll.poll(max(0.0, timeout))}
        if self._waker.fd in ready:
            self._waker.take()
        return bool(ready)

    def wake(self) -> None:
        """End the current or next wait, from any thread or signal handler."""
        self._waker.wake()

    def hears(self, queue: str) -> bool:
        return queue in self._heard

    def add(self, store: Store, queue: str) -> bool:
        """Hear this queue from now on; False if it was heard already, or cannot be."""
        if queue in self._heard:
            self._heard[queue] = self._heard.pop(queue)
            return False
        if not isinstance(store, Waitable):
            return False
        if len(self._heard) >= MOST_HEARD:
            oldest = next(iter(self._heard))
            self._heard.pop(oldest).queues.discard(oldest)  # it may still ring until its group is made anew
        group = min(self._groups, key=lambda each: len(each.queues))
        with suppress(StoreError):
            watch = store.watch([*group.queues, queue])
            if isinstance(watch, PathWatch) and watch.woken_by == "inotify":
                self._replace(group, watch)
                group.queues.add(queue)
                self._heard[queue] = group
                return True
            watch.close()
        return False

    def _replace(self, group: _Group, watch: PathWatch) -> None:
        self._poll.register(watch.fileno(), select.EPOLLIN)
        if group.watch is not None:
            group.rang |= group.watch.wait(0.0)  # after the new one began to listen: nothing falls between the two
            self._poll.unregister(group.watch.fileno())
            group.watch.close()
        group.watch = watch

    def rung(self) -> list[str]:
        """Take the queues that rang, or may have: those of a group ring together."""
        ready = {fd for fd, _ in self._poll.poll(0.0)}
        found: list[str] = []
        for group in self._groups:
            rang, group.rang = group.rang, False
            if group.watch is not None and group.watch.fileno() in ready:
                rang |= group.watch.wait(0.0)
            found += group.queues if rang else ()
        return found

    def close(self) -> None:
        self._waker.close()
        self._poll.close()
        for group in self._groups:
            if group.watch is not None:
                group.watch.close()
