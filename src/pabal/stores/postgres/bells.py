"""Hearing the bell: a connection that listens for what other transactions made ready.

The bell is one channel for each schema, its word the name of a queue. Where the link breaks, the poll of whoever waits
is all that is left until it is there again.
"""

import os
import select
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from pabal.errors import StoreError
from pabal.sql.links import Link, Unreached, broken, hang_up
from pabal.sql.postgres import Server
from pabal.stores.postgres.schema import Schema

_SPARES = 4  # connections kept for the next watch: a waiting lease comes and goes
_LEAST_PAUSE = 0.5  # seconds between two tries to get a broken link back


class Bells:
    """Hands out watches, and keeps the connections of those that were closed."""

    def __init__(self, server: Server, schema: Schema) -> None:
        self._server = server
        self._schema = schema
        self._spares: list[Link] = []
        self._pid = os.getpid()

    def watch(self, queues: Sequence[str]) -> "BellWatch":
        """Return a watch that hears these queues from now on."""
        self._server.require_usable()
        return BellWatch(self, frozenset(queues))

    def listen(self) -> Link:
        """Return a connection that listens, or raise if there is none to be had."""
        self._leave_to_parent()
        while self._spares:
            link = self._spares.pop()
            if not link.closed and not broken(link):
                return link
            hang_up(link)
        link = self._server.connect()
        link.execute(self._schema(f'listen "{self._schema.bell}"'))
        return link

    def keep(self, link: Link) -> None:
        self._leave_to_parent()
        if link.closed or len(self._spares) >= _SPARES:
            hang_up(link)
        else:
            self._spares.append(link)

    def close(self) -> None:
        while self._spares:
            hang_up(self._spares.pop())

    def _leave_to_parent(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._server.disown(self._spares)
            self._spares = []


class BellWatch:
    """Wakes when one of its queues is rung."""

    def __init__(self, bells: Bells, queues: frozenset[str]) -> None:
        self._bells = bells
        self._queues = queues
        self._open = threading.Lock()  # held while the eventfd may be written, and for good once closed
        self._poll = select.epoll()  # first: it closes itself if no descriptor is left
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll.register(self._wake, select.EPOLLIN)
        self._link: Link | None = None
        self._fd = -1
        self._tried = float("-inf")
        self._listen()

    @property
    def woken_by(self) -> str:
        return "notify" if self._link else "poll"

    def wait(self, timeout: float) -> bool:
        end = time.monotonic() + max(0.0, timeout)
        if self._link is None and self._listen():
            return True  # something may have come while nobody listened
        while True:
            left = max(0.0, end - time.monotonic())
            ready = {fd for fd, _ in self._poll.poll(left)}
            if self._wake in ready:
                os.eventfd_read(self._wake)
                return True
            if self._link is not None and ready and self._heard(self._link):
                return True
            if not ready and time.monotonic() >= end:
                return False

    def fileno(self) -> int:
        """Return a descriptor that is readable when `wait` might not sleep: for loops that wait on many things."""
        return self._poll.fileno()

    def wake(self) -> None:
        # As in pabal.watch: never blocks, so that a signal handler may call it.
        if self._open.acquire(blocking=False):
            os.eventfd_write(self._wake, 1)
            self._open.release()

    def close(self) -> None:
        self._open.acquire()
        self._poll.close()
        os.close(self._wake)
        if self._link is not None:
            self._bells.keep(self._link)
            self._link = None

    def _listen(self) -> bool:
        if time.monotonic() - self._tried < _LEAST_PAUSE:
            return False
        self._tried = time.monotonic()
        try:
            self._link = self._bells.listen()
        except (StoreError, Unreached):
            return False
        self._fd = self._link.fileno()
        self._poll.register(self._fd, select.EPOLLIN)
        return True

    def _heard(self, link: Link) -> bool:
        words = link.words()
        if words is None:
            with suppress(OSError):  # it may be closed already, and so forgotten
                self._poll.unregister(self._fd)
            hang_up(link)
            self._link = None
            return True  # what was rung since the link broke was not heard
        return not self._queues.isdisjoint(words)
