"""The database under the topics of one file: one that was given up after an error is opened anew by the next call.

Nothing more is read or written with what was given up. All that a driver or a member remembers is in the file too, and
fenced there, so that it may go on with the new one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pabal.errors import StoreClosed, StoreFailed
from pabal.sql.connection import Connection
from pabal.sql.migrate import migrate
from pabal.sql.sqlite import Database
from pabal.sql.writer import Transaction

T = TypeVar("T")

log = logging.getLogger("pabal")


class Handle:
    """What a Database offers, for as long as the driver is open. Threads may share it."""

    def __init__(self, path: Path, *, committed: Callable[[dict[str, int]], None]) -> None:
        self.path = path
        self._committed = committed
        self._mutex = threading.Lock()
        self._closed = False
        self._database: Database | None = self._open()
        self.room = self._database.room

    def write(self, work: Callable[[Transaction], T], *, durable: bool, essential: bool = False) -> T:
        """Run the work in a transaction and return its result once committed, synced if `durable`."""
        try:
            return self._usable().write(work, durable=durable, essential=essential)
        except StoreClosed as exc:
            raise self._told(exc) from exc

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run work that changes nothing, beside whatever is being written."""
        try:
            return self._usable().read(work)
        except StoreClosed as exc:
            raise self._told(exc) from exc

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            if self._database is not None:
                self._database.close()

    def _usable(self) -> Database:
        database = self._database
        try:
            if database is not None:
                database.require_usable()
                return database
        except StoreFailed:
            pass
        return self._anew(database)

    def _anew(self, given_up: Database | None) -> Database:
        with self._mutex:
            if self._closed:
                raise StoreClosed(f"{self.path} was closed")
            if self._database is given_up and given_up is not None:
                self._database = None
                given_up.close()
            if self._database is None:
                self._database = self._open()
                log.warning("%s was opened anew after an error", self.path)
            return self._database

    def _told(self, exc: StoreClosed) -> StoreClosed | StoreFailed:
        """Return what to tell of a database that another thread found broken and closed under this one."""
        return exc if self._closed else StoreFailed(f"{self.path} failed under another thread: repeat")

    def _open(self) -> Database:
        return Database(self.path, prepare=_prepare, committed=self._committed)


def _prepare(connection: Connection) -> None:
    migrate(connection, "topics", __package__)
