"""A database that goes on after an error: one that was given up is opened anew by the next call.

Nothing more is read or written with what was given up. This is for those whose memory is in the file too, and fenced
there: a store of queues is given up with its database, since its promises are those of one handle.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pabal.errors import StoreClosed, StoreFailed
from pabal.sql.connection import Connection
from pabal.sql.forks import survive_fork
from pabal.sql.room import Room
from pabal.sql.sqlite import Database
from pabal.sql.writer import Transaction

T = TypeVar("T")

log = logging.getLogger("pabal")


class Handle:
    """What the Database that `open` makes of a path offers, until it is closed. The first call opens the file.

    Threads may share it.
    """

    def __init__(self, path: Path, open: Callable[[Path], Database]) -> None:
        self.path = path
        self.room = Room(path)
        self._open = open
        self._mutex = threading.Lock()
        self._closed = False
        self._failed = False
        self._database: Database | None = None
        survive_fork(self)

    def write(self, work: Callable[[Transaction], T], *, durable: bool, essential: bool = False) -> T:
        """Run the work in a transaction and return its result once committed, synced if `durable`."""
        try:
            return self.opened().write(work, durable=durable, essential=essential)
        except StoreClosed as exc:
            raise self._told(exc) from exc

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run work that changes nothing, beside whatever is being written."""
        try:
            return self.opened().read(work)
        except StoreClosed as exc:
            raise self._told(exc) from exc

    def opened(self) -> Database:
        """Return the database as it is now; raise the StoreError that says why it cannot be opened."""
        database = self._database
        try:
            if database is not None:
                database.require_usable()
                return database
        except StoreFailed:
            pass
        return self._anew(database)

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            if self._database is not None:
                self._database.close()

    def before_fork(self) -> None:
        pass

    def after_fork_in_parent(self) -> None:
        pass

    def after_fork_in_child(self) -> None:
        self._mutex = threading.Lock()  # a thread that holds it in the parent is not there to give it back

    def _anew(self, given_up: Database | None) -> Database:
        with self._mutex:
            if self._closed:
                raise StoreClosed(f"{self.path} was closed")
            if given_up is not None and self._database is given_up:
                self._database = None
                self._failed = True
                given_up.close()
            if self._database is None:
                self._database = self._open(self.path)
                if self._failed:
                    log.warning("%s was opened anew after an error", self.path)
            return self._database

    def _told(self, exc: StoreClosed) -> StoreClosed | StoreFailed:
        """Return what to tell of a database that another thread found broken and closed under this one."""
        return exc if self._closed else StoreFailed(f"{self.path} failed under another thread: repeat")
