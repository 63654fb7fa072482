"""Disk space: publishing stops while there is still enough space to finish the work accepted before."""

import os
from contextlib import suppress
from pathlib import Path

from pabal.durable import BALLAST_BYTES, Ballast, translated
from pabal.errors import StoreFull
from pabal.sql.connection import Connection, SqliteError


class DiskReserve:
    """The ballast file beside a database, and the space that may replace it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = f"{path}.ballast"
        self.ballast = Ballast(Path(self._name))

    def require(self, connection: Connection | None = None) -> None:
        """Raise StoreFull unless enough space is kept for the work that was accepted before.

        Inside a transaction, free pages of the database file count as space.
        """
        if not os.access(self._name, os.F_OK):
            self._look(connection)

    def make(self, connection: Connection) -> bool:
        """Free the ballast, or else the space of the WAL; False if neither freed anything."""
        if self.ballast.release():
            return True
        wal = connection.filename_wal  # a path may be a link; the WAL lies beside its target
        size = os.path.getsize(wal)
        with suppress(SqliteError):
            connection.execute("pragma wal_checkpoint(truncate)").fetchall()
        return os.path.getsize(wal) < size

    def _look(self, connection: Connection | None) -> None:
        with translated(f"making {self._name}"):
            self.ballast.restore()
            room = os.statvfs(self._path.parent)
        free = 0
        if connection is not None:
            free = connection.execute("pragma freelist_count").get * connection.execute("pragma page_size").get
        if not self.ballast.present and room.f_bavail * room.f_frsize + free < BALLAST_BYTES:
            raise StoreFull(f"less than {BALLAST_BYTES >> 20} MiB left for {self._path}: free some space and repeat")
