"""Connections to a SQLite file: how they are opened, what their errors mean, which SQLite version is needed."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

import apsw

from pabal.errors import StoreError, StoreFailed, StoreFull, StoreRefused
from pabal.filesystem import busy as lock_busy

Connection: TypeAlias = apsw.Connection
Conflict: TypeAlias = apsw.ConstraintError
SqliteError: TypeAlias = apsw.Error
NoRoom: TypeAlias = apsw.FullError

LEAST_VERSION = "3.51.3"  # older ones can corrupt a WAL that two connections checkpoint at once
BUSY_SECONDS = 30  # how long a writer waits for another program before it gives up
DOCTOR = "pabal doctor --repair"
WAL_BYTES = 16 << 20  # a larger WAL is cut back when SQLite starts it again
_URI = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI
_PASSING = (apsw.FullError, apsw.BusyError, apsw.LockedError)
# Caused by a wrong value or statement: it was rolled back, and the file is sound.
_HARMLESS = (apsw.MismatchError, apsw.RangeError, apsw.TooBigError, apsw.ConstraintError, apsw.SQLError)


def connect(path: Path, busy: float = BUSY_SECONDS) -> Connection:
    """Open a connection in WAL mode with full sync; raise StoreRefused if SQLite does not accept these settings."""
    connection = apsw.Connection(os.fspath(path))
    connection.set_busy_timeout(round(busy * 1000))
    # Otherwise SQLite plans a statement again whenever a parameter of a partial index changes, at ten times the cost.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    if sys.platform == "darwin":
        connection.execute("pragma fullfsync = on; pragma checkpoint_fullfsync = on").fetchall()
    _insist(connection, "journal_mode", "wal", "wal")
    _insist(connection, "synchronous", "full", 2)
    connection.execute(f"pragma journal_size_limit = {WAL_BYTES}").fetchall()
    return connection


def open_reader(path: Path, busy: float, *, mode: str = "rw") -> tuple[Connection, bool]:
    """Open a connection that only reads and waits for no writer; return it, and whether it sees later commits.

    SQLite wants to write beside a file even to read it. Where it may not, and there is no WAL, the file is read as it
    is now.
    """
    place = f"file:{quote(os.fspath(path))}"
    try:
        return _reading(f"{place}?mode={mode}", busy), True
    except (apsw.CantOpenError, apsw.ReadOnlyError):
        if not os.path.exists(path) or os.access(path.parent, os.W_OK):
            raise
        wal = f"{path}-wal"
        if os.path.exists(wal) and os.path.getsize(wal):
            raise StoreFailed(
                f"{wal} cannot be read where nothing may be written beside it: copy it and {path} elsewhere"
            ) from None
        return _reading(f"{place}?mode=ro&immutable=1", busy), False


def _reading(place: str, busy: float) -> Connection:
    connection = apsw.Connection(place, flags=_URI)
    try:
        connection.set_busy_timeout(round(busy * 1000))
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # as in `connect`
        connection.execute("pragma query_only = on").fetchall()
        connection.execute("select 1 from sqlite_schema").fetchall()  # opens the WAL
    except BaseException:
        connection.close()
        raise
    return connection


def keep_wal(connection: Connection) -> None:
    """Let the close of this connection leave the WAL to others, also if it is the last."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)


def require_version(found: str = apsw.sqlite_lib_version()) -> None:
    """Raise StoreRefused for a SQLite version that can corrupt a database with several writers."""
    if _numbers(found) < _numbers(LEAST_VERSION):
        raise StoreRefused(
            f"SQLite {found} can corrupt a shared database; {LEAST_VERSION} or later is needed: upgrade apsw"
        )


def error_of(exc: SqliteError, path: Path, busy: float, doing: str, doctor: str = DOCTOR) -> StoreError:
    """Return the error that the user gets for an error of SQLite."""
    if isinstance(exc, apsw.FullError):
        return StoreFull(f"no room left while {doing} {path}: free some space and repeat")
    if isinstance(exc, apsw.BusyError | apsw.LockedError):
        return lock_busy(busy, path, f"{path}-shm")
    if isinstance(exc, apsw.NotADBError):
        return StoreFailed(f"{path} is not a SQLite database: give another path or restore a copy")
    if isinstance(exc, apsw.CorruptError):
        return StoreFailed(f"{path} is damaged ({exc}): run `{doctor}`")
    if isinstance(exc, apsw.CantOpenError) and (link := _link_beside(path)):
        return StoreRefused(
            f"{link} is a symbolic link, and SQLite opens none there: remove the link; if you moved the file away"
            " yourself, move it back"
        )
    remedy = f"run `{doctor}`" if isinstance(exc, apsw.SQLError) else "reopen it and repeat"  # its schema is damaged
    return StoreFailed(f"{exc} while {doing} {path}: {remedy}")


def _link_beside(path: Path) -> str:
    """Return which of the files that SQLite keeps beside a database is a symlink, or ''."""
    return next((name for end in ("-wal", "-shm") if os.path.islink(name := f"{path}{end}")), "")


def breaks(exc: SqliteError) -> bool:
    """Return whether nothing more may be read or written after this error."""
    return not isinstance(exc, _PASSING + _HARMLESS)


def check_text(value: object) -> str:
    """Return a value that should be text; raise TypeError if it is not: its row or index is damaged."""
    if type(value) is not str:
        raise TypeError(f"found {type(value).__name__}, expected text")
    return value


def damaged_index(connection: Connection, doctor: str = DOCTOR) -> StoreFailed:
    """Return the error for a row that is not as an index says."""
    return StoreFailed(f"an index of {connection.filename} does not fit its rows: run `{doctor}`, which loses nothing")


def shows_damage(exc: SqliteError) -> bool:
    """Return whether this error says that the content of the file is damaged."""
    return isinstance(exc, apsw.CorruptError)


def undone(exc: SqliteError) -> bool:
    """Return whether a commit with this error certainly wrote nothing: its last frame is incomplete."""
    return isinstance(exc, apsw.FullError | apsw.BusyError)


def refused_values(exc: BaseException) -> bool:
    """Return whether a sound database refused the values of a statement."""
    return isinstance(exc, Conflict) or (isinstance(exc, StoreFailed) and isinstance(exc.__cause__, _HARMLESS))


def enforce_keys(connection: Connection) -> None:
    """Check foreign keys on this connection. Works inside a transaction too."""
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 1)


def own_fault(exc: BaseException) -> bool:
    """Return whether the caller's own work raised this, and not the database that all callers share."""
    return isinstance(exc, Conflict) or (isinstance(exc, Exception) and not isinstance(exc, apsw.Error))


def roll_back(connection: Connection) -> None:
    """End a transaction, if there is one: after some errors SQLite has rolled back already."""
    with suppress(apsw.Error):
        if connection.in_transaction:
            connection.execute("rollback")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _insist(connection: Connection, pragma: str, wanted: str, answer: object) -> None:
    connection.execute(f"pragma {pragma} = {wanted}").fetchall()
    found = connection.execute(f"pragma {pragma}").fetchall()[0][0]
    if found != answer:
        connection.close()
        raise StoreRefused(f"SQLite keeps {pragma} at {found!r} here, not {wanted}: use a local disk")
