"""A SQLite file that many threads and processes write to: commits, the queue of writers, broken handles.

- A durable write returns when it is on the disk; a sync covers all earlier commits too.
- After an I/O error, or a commit whose outcome is unknown, the handle is broken: it reads and writes nothing more.
- No connection lives through a fork: SQLite's bookkeeping of locks would be wrong in the child.
- Opening, reading and closing wait for no writer, which may be stopped; writers wait for a limited time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

from pabal.durable import make_dirs, sync_dir, translated, write_new
from pabal.errors import StoreClosed, StoreError, StoreFailed, Uncertain
from pabal.filesystem import require_own
from pabal.sql.connection import (
    BUSY_SECONDS,
    DOCTOR,
    Connection,
    NoRoom,
    SqliteError,
    breaks,
    connect,
    error_of,
    keep_wal,
    open_reader,
    require_version,
    shows_damage,
)
from pabal.sql.disk_reserve import DiskReserve
from pabal.sql.forks import survive_fork
from pabal.sql.group import Group, Job, fail
from pabal.sql.place import is_damaged_store, keep_lost_commits, real_path, require_one_name
from pabal.sql.repair import Fault, Mend, Object, Rescue, is_misdescribed, mend_faults, problems, repair_file, schema_of
from pabal.sql.writer import Transaction, Writer
from pabal.sql.writer_lock import WriterLock

T = TypeVar("T")

ROW_FAULTS = (UnicodeDecodeError, TypeError, AttributeError, IndexError)  # errors of work that read a damaged row
_CLOSE_SECONDS = 1.0  # how long a writer waits for others when it closes; after that it leaves the WAL as it is


class Write(Protocol):
    """`Group.write`, for work on a transaction."""

    def __call__(self, work: Callable[[Transaction], T], *, durable: bool, essential: bool = False) -> T: ...


class Database:
    """One SQLite file: a writing connection that callers share by group commit, and a reading connection beside it.

    `write(work, durable=…, essential=…)` runs the work in a transaction; see `Group.write`.
    `prepare` brings the schema up to date, inside a transaction. If `current` finds, only reading, that there is
    nothing to prepare, the first write does it. `committed` gets the wakeups of each commit. `mend` sets damaged rows
    aside and returns how many: it is called when work cannot make sense of what it reads, and the work is repeated.
    `doctor` is the command that repairs the file, for errors.
    With `seen_early`, other handles see a commit, and may write, before it is synced. Do not use it for numbers that
    must never be given twice: after a power cut, the numbers of the commits it undid are given again.
    `owner` is one more user, beside us and root, to whom the files may belong; see `require_own`.
    """

    write: Write

    def __init__(
        self,
        path: Path,
        *,
        prepare: Callable[[Connection], None],
        committed: Callable[[dict[str, int]], None],
        current: Callable[[Connection], bool] = lambda connection: False,
        mend: Callable[[Transaction], int] = lambda tx: 0,
        doctor: str = DOCTOR,
        busy: float = BUSY_SECONDS,
        seen_early: bool = False,
        owner: int | None = None,
    ) -> None:
        self.path = path = real_path(path)
        self.reserve = DiskReserve(path)
        self._busy = busy
        self._prepare = prepare
        self._committed = committed
        self._mend = mend
        self._seen_early = seen_early
        self._closed = False
        self._broken = ""
        self._remedy = "reopen it"
        self._doctor = doctor
        self._fresh_locks()
        require_version()
        require_one_name(path)
        with translated(f"opening {path}"):
            for beside in ("", ".lock", ".bells", ".counters", ".consumers"):
                require_own(f"{path}{beside}", owner)
        with self._writing, self._reading:
            if not self._is_current(current):
                self._open()
            else:
                with suppress(OSError):
                    self.reserve.ballast.restore()
        survive_fork(self)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run work that changes nothing, at the same time as other threads and processes write."""
        for again in (False, True):
            with self._reading:
                self.require_usable()
                try:
                    return work(self._reader or self._open_reader())
                except SqliteError as exc:
                    raise self._error(exc, "reading") from exc
                except ROW_FAULTS as exc:
                    fault = exc
                    self._drop_reader()  # its cursor may still stand where it was
                finally:
                    if self._reader is not None and not self._lasting:
                        self._drop_reader()
            if not again:
                self._set_rows_aside(fault)
        raise self._explained(fault) from fault

    def _set_rows_aside(self, fault: Exception) -> None:
        """Set damaged rows aside, because of an error of work that read one; if there are none, raise the error."""
        try:
            found = self.write(self._mend, durable=True, essential=True)
        except StoreError as exc:
            raise StoreFailed(f"a row of {self.path} is damaged ({fault}) and cannot be set aside: {exc}") from fault
        if not found:
            raise self._explained(fault)

    def _explained(self, fault: Exception) -> Exception:
        """Return the error for work that could not make sense of what it read: of a damaged file, or its own."""
        if found := self._problems():
            self._remedy = f"run `{self._doctor}`"
        elif not isinstance(fault, UnicodeDecodeError):
            return fault
        error = StoreFailed(f"{self.path} is damaged ({found[0] if found else fault}): run `{self._doctor}`")
        error.__cause__ = fault
        return error

    def require_usable(self) -> None:
        """Raise StoreClosed or StoreFailed if this handle was closed or is broken."""
        if self._closed:
            raise StoreClosed(f"{self.path} was closed")
        if self._broken:
            raise StoreFailed(
                f"this handle of {self.path} was given up after an error ({self._broken}): {self._remedy}"
            )

    def close(self) -> None:
        """Close all files. Call it again if it was interrupted."""
        with self._writing, self._reading:
            self._closed = True
            self._disconnect()

    # Check and repair

    def check(self, mend: Mend, rescue: Rescue | None = None, *, repair: bool) -> Iterator[tuple[str, str, str, bool]]:
        """Yield what is wrong with the file: the file, the problem, the remedy, and whether it was repaired.

        `mend` is called with the tables of a repaired file; `rescue` before, with the pages of the damaged one, to add
        rows that were not reached. Works on a broken handle, which can be used after a repair.
        """
        found = self._problems()
        remedy, done = "write its schema and its indexes again, or copy its rows", False
        if found and repair:
            try:
                remedy = self._repair(mend, rescue)
                done = not self._problems()
            except StoreFailed as exc:
                remedy = f"restore a copy; it could not be repaired: {exc}"
        for problem in found:
            yield str(self.path), problem, remedy, done

    def check_rows(
        self, look: Callable[[Connection], Sequence[Fault]], *, repair: bool
    ) -> Iterator[tuple[str, str, str, bool]]:
        """Yield what `look` finds wrong with rows, as `check` does. Some of it may be impossible to mend."""
        found, mended = self.read(look), set[tuple[str, str]]()
        if found and repair:
            done = self.write(lambda tx: mend_faults(tx.connection, look(tx.connection)), durable=True, essential=True)
            mended = {(fault.where, fault.problem) for fault in done}
        for fault in found:
            yield fault.where, fault.problem, fault.remedy, (fault.where, fault.problem) in mended

    def _problems(self) -> list[str]:
        return problems(self.path, self._busy, self._schema()) or ([self._broken] if self._broken else [])

    def _schema(self) -> list[Object]:
        """Return what the tables and indexes should be."""
        return schema_of(self._prepare)

    def _repair(self, mend: Mend, rescue: Rescue | None) -> str:
        """Repair a damaged file; return what was done."""
        with self._writing, self._reading:
            self._disconnect()
            try:
                with self._lock.held():
                    done = repair_file(self.path, self._busy, self._schema(), mend, rescue)
            except SqliteError as exc:
                raise error_of(exc, self.path, self._busy, "repairing", self._doctor) from exc
            except ROW_FAULTS as exc:
                raise StoreFailed(f"{self.path} was not changed: its rows make no sense ({exc})") from exc
            self._broken = ""
        return done

    def compact(self) -> tuple[int, int]:
        """Give free pages back to the file system; return the bytes before and after. Writers wait meanwhile."""
        with self._writing:
            self.require_usable()
            before = self._bytes()
            writer = self._writer or self._open()
            with translated(f"compacting {self.path}"), self._lock.held():
                try:
                    writer.connection.execute("vacuum").fetchall()
                    writer.connection.execute("pragma wal_checkpoint(truncate)").fetchall()
                except SqliteError as exc:
                    raise self._error(exc, "compacting") from exc
            return before, self._bytes()

    def _bytes(self) -> int:
        return sum(os.path.getsize(path) for end in ("", "-wal") if os.path.exists(path := f"{self.path}{end}"))

    # Opening

    def _fresh_locks(self) -> None:
        self._group = Group(self._commit)
        self.write = self._group.write
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._lock = WriterLock(self.path.with_name(f"{self.path.name}.lock"), self._busy)
        self._writer: Writer | None = None
        self._reader: Connection | None = None
        self._lasting = True  # the reader sees what others commit

    def _is_current(self, current: Callable[[Connection], bool]) -> bool:
        """Return whether there is nothing to prepare. Damage is reported by the calls that meet it, and by doctor."""
        try:
            if self.path.is_file() and self.path.stat().st_size and current(self._open_reader()):
                return True
        except SqliteError as exc:
            if shows_damage(exc) or is_damaged_store(self.path, exc) or self._is_misdescribed():
                self._give_up(str(exc))
                return True
        except ROW_FAULTS as exc:
            self._give_up(f"its tables cannot be read: {exc}")
            return True
        self._close_reader(held=False)  # leaves the WAL as it is: it may hold what cannot be read
        return False

    def _give_up(self, reason: str) -> None:
        self._break(reason)
        self._remedy = f"run `{self._doctor}`"

    def _is_misdescribed(self) -> bool:
        with suppress(SqliteError):
            return self._reader is not None and is_misdescribed(self._reader, self._schema())
        return False

    def _open(self) -> Writer:
        try:
            with translated(f"opening {self.path}"):
                make_dirs(self.path.parent)
                self._lock.prepare()
                with self._lock.held():
                    # Only if it is missing: closing a file drops the locks of all its handles in this process.
                    if not self.path.exists():
                        os.close(write_new(self.path, b""))
                    sync_dir(self.path.parent)
                    keep_lost_commits(self.path)
                    writer = self._connect()
            self._writer = writer
            with suppress(OSError):
                self.reserve.ballast.restore()
        except SqliteError as exc:
            raise self._error(exc, "opening") from exc
        finally:
            if self._writer is None:
                self._lock.close()
        return writer

    def _connect(self) -> Writer:
        connection = connect(self.path, self._busy)
        try:
            connection.execute("begin immediate")
            self._prepare(connection)
            connection.execute("commit")
            return Writer(connection, seen_early=self._seen_early)
        except BaseException:
            connection.close()
            raise

    def _open_reader(self) -> Connection:
        with self._held_if_free():
            self._reader, self._lasting = open_reader(self.path, self._busy)
        return self._reader

    @contextmanager
    def _held_if_free(self) -> Iterator[bool]:
        """Hold the lock of the writers, if it is free, on behalf of the reader: another thread may use `_lock`."""
        lock = WriterLock(self._lock.path, 0)
        try:
            with lock.held_if_free(0) as held:
                yield held
        finally:
            lock.close()

    # Committing

    def _commit(self, jobs: list[Job]) -> None:
        with self._writing:
            try:
                wakeups = self._write(jobs)
                if wakeups:
                    self._committed(wakeups)
                for job in jobs:
                    if job.durable and job.error is None and self._writer is not None:
                        try:
                            self._writer.flush()
                        except OSError as exc:
                            # First of all, and without a call: a signal handler may raise in any call.
                            self._broken = self._broken or "a commit could not be synced"
                            self._not_synced(jobs, exc)
                        break
            finally:
                if self._broken:
                    self._drop_writer()

    def _write(self, jobs: list[Job]) -> dict[str, int]:
        """Wait for the writer lock, commit the jobs, and return their wakeups."""
        writer = None
        try:
            if self._writer is None or self._broken:
                self.require_usable()
            writer = self._writer or self._open()
            self._lock.take()
            try:
                wakeups = writer.commit(jobs)
            except NoRoom:
                wakeups = self._one_by_one(writer, jobs)
            for job in jobs:
                if job.error is not None and isinstance(job.error, ROW_FAULTS):
                    wakeups |= self._repeat_mended(writer, job)
            return wakeups
        except (SqliteError, StoreError) as exc:
            self._fail(jobs, exc)
            return {}
        finally:
            # Also if a signal handler raised anywhere above: no other process may wait for a lock that nobody uses.
            try:
                if writer is not None and writer.connection.in_transaction:
                    writer.roll_back()
            finally:
                try:
                    self._lock.unlock()
                except OSError:
                    self._lock.close()

    def _repeat_mended(self, writer: Writer, job: Job) -> dict[str, int]:
        """Set damaged rows aside and run a job again that could not make sense of what it read."""
        mending = Job(self._mend, True, True)
        try:
            wakeups = writer.commit([mending])
            if mending.result and mending.error is None:
                job.error = job.result = None
                wakeups |= writer.commit([job])
            if isinstance(job.error, ROW_FAULTS):
                job.error = self._explained(job.error)
            return wakeups
        except SqliteError as exc:
            self._fail([job], exc)
            return {}

    def _not_synced(self, jobs: list[Job], exc: OSError) -> None:
        """Tell the callers that asked for a durable write that its outcome is unknown."""
        error = Uncertain(f"{self.path} was not synced ({exc}): it may or may not have been written")
        error.__cause__ = exc
        fail([job for job in jobs if job.durable and job.error is None], error)

    def _one_by_one(self, writer: Writer, jobs: list[Job]) -> dict[str, int]:
        """Commit each job by itself: jobs that need no new disk space must not fail with those that do."""
        wakeups: dict[str, int] = {}
        for job in jobs:
            try:
                self.require_usable()
                wakeups |= self._with_ballast(writer, job)
            except (SqliteError, StoreError) as exc:
                self._fail([job], exc)
        return wakeups

    def _with_ballast(self, writer: Writer, job: Job) -> dict[str, int]:
        while True:
            job.error = job.result = None  # left by an earlier try
            try:
                return writer.commit([job])
            except NoRoom:
                if not (job.essential and self.reserve.make(writer.connection)):
                    raise

    # Ending

    def _fail(self, jobs: list[Job], exc: SqliteError | StoreError) -> None:
        if isinstance(exc, Uncertain):
            self._break(str(exc.__cause__))
        fail(jobs, exc if isinstance(exc, StoreError) else self._error(exc, "writing"))

    def _error(self, exc: SqliteError, doing: str) -> StoreError:
        if shows_damage(exc):
            self._remedy = f"run `{self._doctor}`"
        if breaks(exc):
            self._break(str(exc))
        return error_of(exc, self.path, self._busy, doing, self._doctor)

    def _break(self, reason: str) -> None:
        self._broken = self._broken or reason

    def _disconnect(self) -> None:
        # The last handle to close copies the WAL into the file and removes it: not while another opens or writes.
        with self._lock.held_if_free(0 if self._writer is None else _CLOSE_SECONDS) as held:
            if self._writer is not None and not held:
                keep_wal(self._writer.connection)
            self._close_reader(held)
            self._drop_writer()
        self._lock.close()

    def _drop_reader(self) -> None:
        with self._held_if_free() as held:
            self._close_reader(held)

    def _close_reader(self, held: bool) -> None:
        if self._reader is not None:
            if not held:
                keep_wal(self._reader)
            self._reader.close(True)
            self._reader = None

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()  # may be interrupted: it is kept until all its files are closed
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
