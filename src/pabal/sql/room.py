"""Room on the disk: publishing stops while there is still enough to finish the work that was taken in before."""

import os
from contextlib import suppress
from pathlib import Path

from pabal.durable import BALLAST_BYTES, Ballast, translated
from pabal.errors import StoreFull
from pabal.sql.connection import Connection, SqliteError


class Room:
    """The ballast beside a database, and what may stand in for it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = f"{path}.ballast"
        self.ballast = Ballast(Path(self._name))

    def require(self, connection: Connection | None = None) -> None:
        """Raise StoreFull unless enough room is kept for the work that is already taken in.

        Inside a transaction, pages of the file that are free count as room.
        """
        if not os.access(self._name, os.F_OK):
            self._look(connection)

    def make(self, connection: Connection) -> bool:
        """Give up the ballast, or else what the WAL takes up; False if neither gives anything."""
        if self.ballast.release():
            return True
        wal = connection.filename_wal  # not beside a path that is a link
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
