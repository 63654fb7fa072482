"""Back up and restore a database, with the body files that it names, while it is in use.

SQLite copies the database as it is at one moment. The files of messages that are settled meanwhile must not go before
they are copied: until the backup ends, or its process was killed a minute ago, nobody removes them (`KEPT_UNTIL`).
"""

import os
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pabal.durable import make_dirs, translated, write_new
from pabal.errors import StoreFailed, StoreMissing
from pabal.filesystem import is_read_only
from pabal.sql.connection import Connection, open_reader
from pabal.sql.migrate import set_fact
from pabal.sql.place import copy_database, copy_files, no_database, real_path
from pabal.stores.archive import ArchiveWriter, Kept, Progress, extract, require_free
from pabal.stores.sqlite.bodies import BodyFolder, body_files
from pabal.stores.sqlite.maintain import KEPT_UNTIL
from pabal.stores.sqlite.queues import Queues

DATABASE, BODIES = "pabal.db", "bodies"
_KEEP_SECONDS, _RENEW_SECONDS = 60.0, 10.0
_NAMES = """
select seq, document, (select name from queues where queues.id = queue_id) || '/' || messages.id || '.json'
from messages where typeof(document) = 'text' and seq > ? order by seq limit 1000"""


def backup_database(path: Path, archive: ArchiveWriter) -> Path:
    """Add a copy of the database to a backup, whatever tables it has; return the copy, which goes with the archive."""
    copy = archive.scratch / DATABASE
    copy_database(path, copy)
    archive.add_file(DATABASE, copy)
    return copy


def restore_database(path: Path, backup: Path, progress: Progress) -> Kept:
    """Make a database from a backup."""
    path = real_path(path)
    return extract(backup, "sqlite", {DATABASE: path}, progress, free=_beside(path))


def restore_hybrid(db: Path, bodies: Path, backup: Path, progress: Progress) -> Kept:
    """Make a database and its body files from a backup."""
    db = real_path(db)
    return extract(backup, "hybrid", {BODIES: bodies.absolute(), DATABASE: db}, progress, free=_beside(db))


_SMALLEST_PAGE = 512  # bytes, of any SQLite database


def _beside(db: Path) -> list[Path]:
    """Return the files from which SQLite would apply changes of another database to a new one of this name."""
    return [Path(f"{db}-wal"), Path(f"{db}-journal")]


def salvage_store(source: Path, target: Path, bodies: tuple[Path, Path] | None = None) -> tuple[Path, Path]:
    """Copy a damaged database as it is to a new place, with its body files if there are any. The source stays.

    Return the real paths of the database and of its copy.
    """
    source, target = real_path(source), real_path(target)
    require_free(target, *_beside(target), *(bodies[1:] if bodies else ()))
    size, log = (path.stat().st_size if path.is_file() else 0 for path in (source, Path(f"{source}-wal")))
    if not size + log:
        raise StoreMissing(f"no database at {source}: correct the URL")
    if 0 < size < _SMALLEST_PAGE:
        raise StoreFailed(no_database(source))
    make_dirs(target.parent)
    if bodies:
        for name, _ in body_files(bodies[0]):
            with translated(f"copying {name}"):
                make_dirs((bodies[1] / name).parent)
                with (bodies[0] / name).open("rb") as body, os.fdopen(write_new(bodies[1] / name, b""), "wb") as copy:
                    shutil.copyfileobj(body, copy)
    copy_files(source, target)
    return source, target


class Copier(Queues):
    def backup(self, archive: ArchiveWriter) -> None:
        """Add the database and all body files that it names to a backup."""
        bodies = self._bodies
        if not isinstance(bodies, BodyFolder):
            backup_database(self._db.path, archive)
            return
        try:
            self._keep_bodies(_KEEP_SECONDS)
            renewed = time.monotonic()
            for seq, name, usual in _names_in(backup_database(self._db.path, archive)):
                if time.monotonic() - renewed > _RENEW_SECONDS:
                    self._keep_bodies(_KEEP_SECONDS)
                    renewed = time.monotonic()
                data = bodies.get(name)
                if data is None:
                    if not self._db.read(partial(_is_named, seq, name)):
                        raise StoreFailed(f"{name} was removed before it was copied: was this process stopped? Repeat")
                    name, data = usual, bodies.get(usual)  # a repair finds it there if its row is damaged
                if data is not None:
                    archive.add_data(f"{BODIES}/{name}", data, self._clock.now())
        finally:
            self._keep_bodies(0.0)

    def _keep_bodies(self, seconds: float) -> None:
        """Let no process remove body files for so long. On a read-only file system that cannot be noted."""
        if is_read_only(self._db.path):
            return  # if one is removed through another mount, the backup fails
        until = self._clock.now() + seconds
        self._db.write(lambda tx: set_fact(tx.connection, KEPT_UNTIL, until), durable=False, essential=True)


def _is_named(seq: int, name: str, db: Connection) -> bool:
    """Return whether a row still names this file: then the file was missing before."""
    return bool(db.execute("select 1 from messages where seq = ? and document = ?", (seq, name)).get)


def _names_in(copy: Path) -> Iterator[tuple[int, str, str]]:
    """Yield, from a copy of a database that nobody else uses, each row that names a file, and the usual name of it."""
    connection, _ = open_reader(copy, 1.0)
    try:
        seq = -1 << 63
        while True:
            rows = connection.execute(_NAMES, (seq,)).fetchall()
            if not rows:
                return
            for number, name, usual in rows:
                seq = int(str(number))
                yield seq, str(name), str(usual)
    finally:
        connection.close()
