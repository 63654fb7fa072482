"""Wakeups by LISTEN and NOTIFY: one connection of a store listens for transactions that made something ready.

Each schema has one channel; the payload is the name of a queue. All watches of the store share the connection. While it
is broken, waiting consumers only have their slow poll. So it is behind a pooler that gives each transaction another
session, where no connection can listen: a notification sent to ourselves tells.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from pabal.errors import StoreError
from pabal.ids import new_token
from pabal.sql.postgres import Server
from pabal.sql.postgres_link import Link, Unreached, hang_up
from pabal.sql.schema import Schema
from pabal.watch import SharedWatch

_LEAST_PAUSE = 0.5  # seconds between two tries to connect again
_PROBE_SECONDS = 2.0  # how long a notification to ourselves may take


class Listener:
    """The connection that listens, and the watches that share it."""

    kind = "notify"

    def __init__(self, server: Server, schema: Schema) -> None:
        self._server = server
        self._schema = schema
        self._fresh()
        self.generation = 0

    def _fresh(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._link: Link | None = None
        self._watches: set[NotifyWatch] = set()
        self._tried = float("-inf")
        self._deaf = False  # nobody can listen behind this pooler

    def watch(self, queues: Sequence[str]) -> NotifyWatch:
        """Return a watch that is woken for these queues from now on."""
        self._server.require_usable()
        return NotifyWatch(self, frozenset(queues))

    def join(self, watch: NotifyWatch) -> int:
        self._leave_to_parent()
        with self._lock:
            self._watches.add(watch)
            link = self._link
            if link is None or len(self._watches) == 1:
                link = self._listen()
            return -1 if link is None else link.fileno()

    def leave(self, watch: NotifyWatch) -> None:
        """Forget a watch. After the last one the connection stays, but hears nothing: nobody would read it."""
        self._leave_to_parent()
        with self._lock:
            self._watches.discard(watch)
            if self._watches or self._link is None:
                return
            try:
                self._link.execute("unlisten *")
                self._link.notifications()
            except BaseException as exc:
                self._hang_up()
                if not isinstance(exc, Exception):
                    raise

    def dispatch(self, reader: NotifyWatch) -> bool:
        with self._lock:
            link = self._link
            payloads = None if link is None else link.notifications()
            if payloads is None:
                self._hang_up()
            woken = [
                watch  # also if the connection broke: what came since then was missed
                for watch in self._watches
                if payloads is None or not watch.queues.isdisjoint(payloads)
            ]
            for watch in woken:
                if watch is not reader:
                    watch.wake()
            return reader in woken

    def close(self) -> None:
        self._leave_to_parent()
        with self._lock:
            self._hang_up()

    def _listen(self) -> Link | None:
        """Listen, over the connection that is there or a new one; None if the server cannot be reached now."""
        link = self._link
        try:
            if link is not None:
                link.execute(self._schema(f'listen "{self._schema.bell}"'))
                return link
        except Exception:  # it broke while nobody used it
            self._hang_up()
        if self._deaf or time.monotonic() - self._tried < _LEAST_PAUSE:
            return None
        self._tried = time.monotonic()
        with suppress(StoreError, Unreached):
            self._link = self._server.connect()
            self.generation += 1
            try:
                self._deaf = self._link.pooled and not self._hears(self._link)
                if not self._deaf:
                    self._link.execute(self._schema(f'listen "{self._schema.bell}"'))
                    return self._link
            except Exception:
                self._tried = time.monotonic()
            self._hang_up()
        return None

    def _hears(self, link: Link) -> bool:
        """Return whether a notification arrives over a pooler. The channel is used once only."""
        channel = f"{self._schema.name}.{new_token()}"
        link.execute(self._schema(f'listen "{channel}"'))
        self._server.run(lambda other: other.execute("select pg_notify(%s, '')", (channel,)))
        end = time.monotonic() + _PROBE_SECONDS
        while (left := end - time.monotonic()) > 0:
            if link.readable(left) and (found := link.notifications()) != []:
                return found is not None
        return False

    def _hang_up(self) -> None:
        link, self._link = self._link, None
        self.generation += 1
        if link is not None:
            hang_up(link)

    def _leave_to_parent(self) -> None:
        if self._pid != os.getpid():
            link = self._link
            self._fresh()
            self.generation += 1
            if link is not None:
                self._server.disown([link])


class NotifyWatch(SharedWatch):
    """Wakes when a transaction made something ready in one of its queues."""

    def __init__(self, listener: Listener, queues: frozenset[str]) -> None:
        self.queues = queues
        super().__init__(listener)
