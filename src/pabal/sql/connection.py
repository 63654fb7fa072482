"""Connections to a SQLite file: how they are opened, what their errors mean, what the library must be able to do."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

import apsw

from pabal.errors import StoreError, StoreFailed, StoreFull, StoreRefused

Connection: TypeAlias = apsw.Connection
Conflict: TypeAlias = apsw.ConstraintError
SqliteError: TypeAlias = apsw.Error
NoRoom: TypeAlias = apsw.FullError

LEAST_VERSION = "3.51.3"  # older ones can corrupt a WAL that two connections checkpoint at once
BUSY_SECONDS = 10
WAL_BYTES = 16 << 20  # a WAL that grew beyond this is cut back when it starts over
_READ_ONLY = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
_PASSING = (apsw.FullError, apsw.BusyError, apsw.LockedError)
# What a wrong value or statement gets: it was rolled back and says nothing about the file.
_HARMLESS = (apsw.MismatchError, apsw.RangeError, apsw.TooBigError, apsw.ConstraintError, apsw.SQLError)


def connect(path: Path, busy: float = BUSY_SECONDS) -> Connection:
    """Open one connection, in WAL mode and synced; refuse it if SQLite will not have it so."""
    connection = apsw.Connection(os.fspath(path))
    connection.set_busy_timeout(round(busy * 1000))
    # Else a plan that might use a partial index is made anew whenever a parameter changes, at ten times the cost.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    if sys.platform == "darwin":
        connection.execute("pragma fullfsync = on; pragma checkpoint_fullfsync = on").fetchall()
    _insist(connection, "journal_mode", "wal", "wal")
    _insist(connection, "synchronous", "full", 2)
    connection.execute(f"pragma journal_size_limit = {WAL_BYTES}").fetchall()
    return connection


def table_names(path: Path) -> set[str]:
    """Name the tables of a database without changing anything; none if it is not there or no database."""
    if not path.is_file():
        return set()
    try:
        connection = apsw.Connection(f"file:{quote(os.path.abspath(path))}?mode=ro", flags=_READ_ONLY)
        try:
            return {row[0] for row in connection.execute("select name from sqlite_schema where type = 'table'")}
        finally:
            connection.close()
    except (apsw.NotADBError, apsw.CantOpenError):
        return set()
    except apsw.Error as exc:
        raise StoreFailed(f"{exc} while looking at {path}") from exc


def require_version(found: str = apsw.sqlite_lib_version()) -> None:
    """Refuse a SQLite that can corrupt what several connections write."""
    if _numbers(found) < _numbers(LEAST_VERSION):
        raise StoreRefused(
            f"SQLite {found} can corrupt a shared database; {LEAST_VERSION} or later is needed: upgrade apsw"
        )


def error_of(exc: SqliteError, path: Path, busy: float, doing: str) -> StoreError:
    """Return what a user is told of an error, wherever it came up."""
    if isinstance(exc, apsw.FullError):
        return StoreFull(f"no room left while {doing} {path}: free some space and repeat")
    if isinstance(exc, apsw.BusyError | apsw.LockedError):
        return StoreFailed(f"another program kept {path} locked for {busy:g} seconds: repeat when it ends")
    if isinstance(exc, apsw.NotADBError):
        return StoreFailed(f"{path} is not a SQLite database: give another path or restore a copy")
    if isinstance(exc, apsw.CorruptError):
        return StoreFailed(f"{path} is damaged ({exc}): run `pabal doctor`, then restore a copy")
    return StoreFailed(f"{exc} while {doing} {path}: reopen it and repeat")


def breaks(exc: SqliteError) -> bool:
    """Say whether nothing more may be read or written after this error."""
    return not isinstance(exc, _PASSING + _HARMLESS)


def undone(exc: SqliteError) -> bool:
    """Say whether a commit that failed so is known to have written nothing: its last frame was not written whole."""
    return isinstance(exc, apsw.FullError | apsw.BusyError)


def refused_values(exc: BaseException) -> bool:
    """Say whether a sound database will not take what a statement brought."""
    return isinstance(exc, Conflict) or (isinstance(exc, StoreFailed) and isinstance(exc.__cause__, _HARMLESS))


def enforce_keys(connection: Connection) -> None:
    """Check foreign keys on this connection, also if it is in a transaction already."""
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 1)


def own_fault(exc: BaseException) -> bool:
    """Say whether this came from the caller's work, and not from the database that all of them share."""
    return isinstance(exc, Conflict) or (isinstance(exc, Exception) and not isinstance(exc, apsw.Error))


def roll_back(connection: Connection) -> None:
    """End a transaction, if there is one: some errors have rolled back already."""
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
