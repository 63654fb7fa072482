"""A SQLite file that many threads and processes write to: opening, queueing, committing, and what its errors mean.

- Writers of all processes queue on flock(<db>.lock) before they begin; SQLite's own busy handler lets some starve.
- A commit is synced if any caller in it was promised so; a synced commit syncs all that went before it.
- After an I/O error or a commit whose outcome is unknown the handle is broken: nothing more is read or written with it.
- No connection lives through a fork: SQLite's bookkeeping of locks would be wrong in the child.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

import apsw

from pabal.durable import BALLAST_BYTES, Ballast, make_dirs, sync_dir, translated
from pabal.errors import StoreClosed, StoreError, StoreFailed, StoreFull, StoreRefused, Uncertain
from pabal.sql.group import Group, Job

Connection: TypeAlias = apsw.Connection
Conflict: TypeAlias = apsw.ConstraintError
T = TypeVar("T")

LEAST_VERSION = "3.51.3"  # older ones can corrupt a WAL that two connections checkpoint at once
BUSY_SECONDS = 10
# What a wrong value or statement gets: it was rolled back and says nothing about the file.
_HARMLESS = (apsw.MismatchError, apsw.RangeError, apsw.TooBigError, apsw.ConstraintError, apsw.SQLError)
_READ_ONLY = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
WAL_BYTES = 16 << 20  # a WAL that grew beyond this is cut back when it starts over


class Transaction:
    """What a caller's work sees of the commit it is part of. `rings` names what the commit made ready."""

    __slots__ = ("_changes", "_execute", "connection", "many", "rings", "run")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.run: Callable[..., Any] = connection.execute
        self.many: Callable[..., Any] = connection.executemany
        self.rings: dict[str, int] = {}
        self._execute = connection.cursor().execute
        self._changes = connection.changes

    def change(self, statement: str, bindings: tuple[Any, ...]) -> int:
        """Run an update or delete; return how many rows it changed."""
        self._execute(statement, bindings)
        return self._changes()


class Database:
    """One SQLite file: a writing connection that its callers share by group commit, a reading one beside it.

    `prepare` brings the schema up to date, inside a transaction; `committed` hears what each commit made ready.
    """

    def __init__(
        self,
        path: Path,
        *,
        prepare: Callable[[Connection], None],
        committed: Callable[[dict[str, int]], None],
        busy: float = BUSY_SECONDS,
    ) -> None:
        self.path = path
        self._busy = busy
        self.ballast = Ballast(path.with_name(f"{path.name}.ballast"))
        self._ballast_name = f"{path}.ballast"
        self._prepare = prepare
        self._committed = committed
        self._closed = False
        self._broken = ""
        self._fresh_locks()
        with self._writing:
            self._open()
        _survive_fork(self)

    def write(self, work: Callable[[Transaction], T], *, durable: bool, essential: bool = False) -> T:
        """Run the work in a transaction and return its result once committed, synced if `durable`.

        Essential work may use up the ballast when the disk is full.
        """
        result: T = self._group.run(Job(work, durable, essential))
        return result

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run work that changes nothing, beside whatever is being written."""
        with self._reading:
            self.require_usable()
            try:
                return work(self._reader or self._open_reader())
            except apsw.Error as exc:
                raise self._error(exc, "reading") from exc

    def require_room(self, tx: Transaction | None = None) -> None:
        """Raise StoreFull unless enough room is kept for the work that is already taken in.

        Inside a transaction, pages of the file that are free count as room.
        """
        try:
            os.stat(self._ballast_name)
        except OSError:
            with translated(f"making {self._ballast_name}"):
                self.ballast.restore()
                room = os.statvfs(self.path.parent)
            free = tx.run("pragma freelist_count").get * tx.run("pragma page_size").get if tx else 0
            if not self.ballast.present and room.f_bavail * room.f_frsize + free < BALLAST_BYTES:
                raise StoreFull(
                    f"less than {BALLAST_BYTES >> 20} MiB left for {self.path}: free some space and repeat"
                ) from None

    def close(self) -> None:
        with self._writing, self._reading:
            if self._closed:
                return
            self._closed = True
            self._disconnect()

    # Opening

    def _fresh_locks(self) -> None:
        self._group = Group(self._commit)
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._writer: Connection | None = None
        self._reader: Connection | None = None
        self._lock_fd = -1
        self._synced = True

    def _open(self) -> Connection:
        require_version(apsw.sqlite_lib_version())
        with translated(f"opening {self.path}"):
            make_dirs(self.path.parent)
            self._lock_fd = _touch(self.path.with_name(f"{self.path.name}.lock"))
            os.close(_touch(self.path))
            sync_dir(self.path.parent)
        try:
            with translated(f"opening {self.path}"), self._turn():
                self._writer = self._connect(self._prepare)
            with suppress(OSError):
                self.ballast.restore()
        except apsw.Error as exc:
            raise self._error(exc, "opening") from exc
        finally:
            if self._writer is None and self._lock_fd >= 0:
                os.close(self._lock_fd)
                self._lock_fd = -1
        if self._writer is None:
            raise StoreFailed(f"the lock of {self.path} could not be given back: repeat")
        return self._writer

    def _connect(self, prepare: Callable[[Connection], None]) -> Connection:
        connection = connect(self.path, self._busy)
        try:
            connection.execute("begin immediate")
            prepare(connection)
            connection.execute("commit")
        except BaseException:
            connection.close()
            raise
        self._synced = True
        self._transaction = Transaction(connection)
        return connection

    def _open_reader(self) -> Connection:
        self._reader = connect(self.path, self._busy)
        self._reader.execute("pragma query_only = on")
        return self._reader

    def require_usable(self) -> None:
        """Raise StoreClosed or StoreFailed if nothing can be done with this handle any more."""
        if self._closed:
            raise StoreClosed(f"{self.path} was closed")
        if self._broken:
            raise StoreFailed(f"this handle of {self.path} was given up after an error ({self._broken}): reopen it")

    # Committing

    @contextmanager
    def _turn(self) -> Iterator[None]:
        self._lock()
        try:
            yield
        finally:
            self._unlock()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
        except OSError as exc:
            raise StoreFailed(f"{exc.strerror} while queueing for {self.path}: repeat") from exc

    def _unlock(self) -> None:
        if self._lock_fd < 0:
            return
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_UN)
        except OSError:
            # Nobody else must wait for it: closing gives it up, and the next call opens all anew.
            self._drop_writer()
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _commit(self, jobs: list[Job]) -> None:
        with self._writing:
            connection = self._writer
            try:
                if connection is None or self._broken:
                    self.require_usable()
                    connection = self._open()
                self._lock()
                rings = self._in_turn(connection, jobs)
            except StoreError as exc:
                _fail(jobs, exc)
                return
            finally:
                # Also when a signal handler raised anywhere above: nobody else may wait for what we held.
                if connection is not None and connection.in_transaction:
                    _roll_back(connection)
                if self._broken:
                    self._drop_writer()
                self._unlock()
        if rings:
            self._committed(rings)

    def _in_turn(self, connection: Connection, jobs: list[Job]) -> dict[str, int]:
        try:
            return self._transact(connection, jobs)
        except apsw.FullError as exc:
            if len(jobs) > 1:
                # Whoever can do without new room shall not fail with those who cannot.
                return {key: value for job in jobs for key, value in self._in_turn(connection, [job]).items()}
            if jobs[0].essential and self._make_room(connection):
                return self._in_turn(connection, jobs)
            _fail(jobs, self._error(exc, "writing"))
        except apsw.Error as exc:
            _fail(jobs, self._error(exc, "writing"))
        except Uncertain as exc:
            _fail(jobs, exc)
        return {}

    def _make_room(self, connection: Connection) -> bool:
        """Give up the ballast, or else what the WAL takes up; False if neither gives anything."""
        if self.ballast.release():
            return True
        wal = f"{self.path}-wal"
        size = os.path.getsize(wal)
        with suppress(apsw.Error):
            connection.execute("pragma wal_checkpoint(truncate)").fetchall()
        return os.path.getsize(wal) < size

    def _transact(self, connection: Connection, jobs: list[Job]) -> dict[str, int]:
        execute = connection.execute
        alone = len(jobs) == 1
        synced = jobs[0].durable if alone else any(job.durable for job in jobs)
        if synced is not self._synced:
            execute("pragma synchronous = full" if synced else "pragma synchronous = normal")
            self._synced = synced
        transaction = self._transaction
        transaction.rings = {}
        for job in jobs:
            job.error = job.result = None  # what an earlier try left
        try:
            execute("begin immediate")
            if alone:
                jobs[0].result = jobs[0].work(transaction)
            else:
                for job in jobs:
                    _run_apart(connection, job, transaction)
        except BaseException as exc:
            _roll_back(connection)
            if not (alone and _own_fault(exc)):
                raise
            jobs[0].error = exc
            return {}
        try:
            execute("commit")
        except (apsw.FullError, apsw.BusyError):
            _roll_back(connection)  # the frame that would have committed was not written whole
            raise
        except apsw.Error as exc:
            self._break(str(exc))
            raise Uncertain(f"{exc} while committing to {self.path}: it may or may not have been written") from exc
        return transaction.rings

    # Ending

    def _error(self, exc: apsw.Error, doing: str) -> StoreError:
        if isinstance(exc, apsw.FullError):
            return StoreFull(f"no room left while {doing} {self.path}: free some space and repeat")
        if isinstance(exc, apsw.BusyError | apsw.LockedError):
            return StoreFailed(
                f"another program kept {self.path} locked for {self._busy:g} seconds: repeat when it ends"
            )
        if not isinstance(exc, _HARMLESS):
            self._break(str(exc))
        if isinstance(exc, apsw.NotADBError):
            return StoreFailed(f"{self.path} is not a SQLite database: give another path or restore a copy")
        if isinstance(exc, apsw.CorruptError):
            return StoreFailed(f"{self.path} is damaged ({exc}): run `pabal doctor`, then restore a copy")
        return StoreFailed(f"{exc} while {doing} {self.path}: reopen it and repeat")

    def _break(self, reason: str) -> None:
        self._broken = self._broken or reason

    def _disconnect(self) -> None:
        if self._lock_fd < 0:
            return
        # The last one to close copies the WAL home and removes it: not while another opens or writes.
        with self._turn():
            if self._reader is not None:
                self._reader.close(True)
                self._reader = None
            self._drop_writer()
        os.close(self._lock_fd)
        self._lock_fd = -1

    def _drop_writer(self) -> None:
        if self._writer is not None:
            with suppress(apsw.Error):
                self._writer.close(True)
            self._writer = None

    def before_fork(self) -> None:
        self._writing.acquire()
        self._reading.acquire()
        self._disconnect()

    def after_fork_in_parent(self) -> None:
        self._reading.release()
        self._writing.release()

    def after_fork_in_child(self) -> None:
        self._fresh_locks()


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


def require_version(found: str) -> None:
    """Refuse a SQLite that can corrupt what several connections write."""
    if _numbers(found) < _numbers(LEAST_VERSION):
        raise StoreRefused(
            f"SQLite {found} can corrupt a shared database; {LEAST_VERSION} or later is needed: upgrade apsw"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _insist(connection: Connection, pragma: str, wanted: str, answer: object) -> None:
    connection.execute(f"pragma {pragma} = {wanted}").fetchall()
    found = connection.execute(f"pragma {pragma}").fetchall()[0][0]
    if found != answer:
        connection.close()
        raise StoreRefused(f"SQLite keeps {pragma} at {found!r} here, not {wanted}: use a local disk")


def _touch(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _fail(jobs: list[Job], error: BaseException) -> None:
    for job in jobs:
        job.error = _copy(error) if len(jobs) > 1 else error


def _copy(error: BaseException) -> BaseException:
    # Each caller raises its own: a traceback belongs to one thread.
    twin = type(error)(*error.args)
    twin.__cause__ = error.__cause__
    return twin


def _run_apart(connection: Connection, job: Job, transaction: Transaction) -> None:
    connection.execute("savepoint job")
    rings = dict(transaction.rings)
    try:
        job.result = job.work(transaction)
    except Exception as exc:
        if not _own_fault(exc):
            raise
        connection.execute("rollback to job")
        transaction.rings = rings
        job.error = exc
    connection.execute("release job")


def _own_fault(exc: BaseException) -> bool:
    """Say whether this came from the caller's work, and not from the database that all of them share."""
    return isinstance(exc, Conflict) or (isinstance(exc, Exception) and not isinstance(exc, apsw.Error))


def _roll_back(connection: Connection) -> None:
    # Some errors have rolled back already.
    with suppress(apsw.Error):
        if connection.in_transaction:
            connection.execute("rollback")


def _survive_fork(database: Database) -> None:
    reference = weakref.ref(database)

    def hook(name: str) -> Callable[[], Any]:
        def run() -> None:
            if (found := reference()) is not None:
                getattr(found, name)()

        return run

    os.register_at_fork(
        before=hook("before_fork"),
        after_in_parent=hook("after_fork_in_parent"),
        after_in_child=hook("after_fork_in_child"),
    )
