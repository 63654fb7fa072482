"""A database that survives errors: the next call replaces a broken handle by a new one.

The broken handle is never used again. This is for users that keep their state in the file and fence it there. A store
of queues is not one of them: it fails together with its database, because its promises are those of one handle.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pabal.errors import StoreClosed, StoreFailed
from pabal.sql.connection import Connection
from pabal.sql.disk_reserve import DiskReserve
from pabal.sql.forks import survive_fork
from pabal.sql.place import real_path
from pabal.sql.sqlite import Database
from pabal.sql.writer import Transaction

T = TypeVar("T")

log = logging.getLogger("pabal")


class Handle:
    """A Database that reopens itself; `open` makes it from the path. The first call opens it. Threads may share it."""

    def __init__(self, path: Path, open: Callable[[Path], Database]) -> None:
        self.path = path = real_path(path)
        self.reserve = DiskReserve(path)
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
            raise self._closed_error(exc) from exc

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run work that changes nothing, at the same time as other threads and processes write."""
        try:
            return self.opened().read(work)
        except StoreClosed as exc:
            raise self._closed_error(exc) from exc

    def opened(self) -> Database:
        """Return a usable database; raise the StoreError that says why it cannot be opened."""
        database = self._database
        try:
            if database is not None:
                database.require_usable()
                return database
        except StoreFailed:
            pass
        return self._reopen(database)

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
        self._mutex = threading.Lock()  # the thread that held it in the parent does not exist here

    def _reopen(self, broken: Database | None) -> Database:
        with self._mutex:
            if self._closed:
                raise StoreClosed(f"{self.path} was closed")
            if broken is not None and self._database is broken:
                self._database = None
                self._failed = True
                broken.close()
            if self._database is None:
                self._database = self._open(self.path)
                if self._failed:
                    log.warning("%(place)s was opened anew after an error", {"place": str(self.path)})
            return self._database

    def _closed_error(self, exc: StoreClosed) -> StoreClosed | StoreFailed:
        """Return the error to raise: another thread may have found the database broken and closed it."""
        return exc if self._closed else StoreFailed(f"{self.path} failed under another thread: repeat")
