"""A SQLite file that many threads and processes write to: who commits, who queues, when a handle is given up.

- Who was promised that a commit is on the disk is answered when it is; what is synced syncs all that went before it.
- After an I/O error or a commit whose outcome is unknown the handle is broken: nothing more is read or written with it.
- No connection lives through a fork: SQLite's bookkeeping of locks would be wrong in the child.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TypeVar

from pabal.durable import make_dirs, sync_dir, translated
from pabal.errors import StoreClosed, StoreError, StoreFailed, Uncertain
from pabal.sql.connection import (
    BUSY_SECONDS,
    Connection,
    NoRoom,
    SqliteError,
    breaks,
    connect,
    error_of,
    require_version,
)
from pabal.sql.forks import survive_fork
from pabal.sql.group import Group, Job, fail
from pabal.sql.room import Room
from pabal.sql.turn import Turn
from pabal.sql.writer import Transaction, Writer

T = TypeVar("T")


class Database:
    """One SQLite file: a writing connection that its callers share by group commit, a reading one beside it.

    `prepare` brings the schema up to date, inside a transaction; `committed` hears what each commit made ready.
    `seen_early`: other handles see a commit, and may write, while it is still on its way to the disk. Not for numbers
    that must never be given twice: those of a commit that a power cut undid are given again.
    """

    def __init__(
        self,
        path: Path,
        *,
        prepare: Callable[[Connection], None],
        committed: Callable[[dict[str, int]], None],
        busy: float = BUSY_SECONDS,
        seen_early: bool = False,
    ) -> None:
        self.path = path
        self.room = Room(path)
        self._busy = busy
        self._prepare = prepare
        self._committed = committed
        self._seen_early = seen_early
        self._closed = False
        self._broken = ""
        self._fresh_locks()
        with self._writing:
            self._open()
        survive_fork(self)

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
            except SqliteError as exc:
                raise self._error(exc, "reading") from exc

    def require_usable(self) -> None:
        """Raise StoreClosed or StoreFailed if nothing can be done with this handle any more."""
        if self._closed:
            raise StoreClosed(f"{self.path} was closed")
        if self._broken:
            raise StoreFailed(f"this handle of {self.path} was given up after an error ({self._broken}): reopen it")

    def close(self) -> None:
        """Let go of all files. To be called again if it was interrupted."""
        with self._writing, self._reading:
            self._closed = True
            self._disconnect()

    # Opening

    def _fresh_locks(self) -> None:
        self._group = Group(self._commit)
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._turn = Turn(self.path.with_name(f"{self.path.name}.lock"))
        self._writer: Writer | None = None
        self._reader: Connection | None = None

    def _open(self) -> Writer:
        require_version()
        try:
            with translated(f"opening {self.path}"):
                make_dirs(self.path.parent)
                self._turn.prepare()
                with self._turn.held():
                    # Only then: closing a file gives up the locks of every handle of it in this process.
                    if not self.path.exists():
                        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
                    sync_dir(self.path.parent)
                    writer = self._connect()
            self._writer = writer
            with suppress(OSError):
                self.room.ballast.restore()
        except SqliteError as exc:
            raise self._error(exc, "opening") from exc
        finally:
            if self._writer is None:
                self._turn.close()
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
        self._reader = connect(self.path, self._busy)
        self._reader.execute("pragma query_only = on")
        return self._reader

    # Committing

    def _commit(self, jobs: list[Job]) -> None:
        with self._writing:
            try:
                rings = self._write(jobs)
                if rings:
                    self._committed(rings)
                for job in jobs:
                    if job.durable and job.error is None:
                        self._flush(jobs)
                        break
            finally:
                if self._broken:
                    self._drop_writer()

    def _write(self, jobs: list[Job]) -> dict[str, int]:
        """Commit the jobs in their turn, and return what they made ready."""
        writer = None
        try:
            if self._writer is None or self._broken:
                self.require_usable()
            writer = self._writer or self._open()
            self._turn.take()
            try:
                return writer.commit(jobs)
            except NoRoom:
                return self._one_by_one(writer, jobs)
        except (SqliteError, StoreError) as exc:
            self._fail(jobs, exc)
            return {}
        finally:
            # Also when a signal handler raised anywhere above: nobody else may wait for what we held.
            try:
                if writer is not None and writer.connection.in_transaction:
                    writer.roll_back()
            finally:
                try:
                    self._turn.unlock()
                except OSError:
                    self._turn.close()

    def _flush(self, jobs: list[Job]) -> None:
        """Sync what was committed; if it fails, those who were promised so hear that it is uncertain."""
        try:
            if self._writer is not None:
                self._writer.flush()
        except OSError as exc:
            # First of all, and without a call: a signal handler may raise in any.
            self._broken = self._broken or "a commit could not be synced"
            error = Uncertain(f"{self.path} was not synced ({exc}): it may or may not have been written")
            error.__cause__ = exc
            fail([job for job in jobs if job.durable and job.error is None], error)

    def _one_by_one(self, writer: Writer, jobs: list[Job]) -> dict[str, int]:
        """Commit each for itself: whoever can do without new room shall not fail with those who cannot."""
        rings: dict[str, int] = {}
        for job in jobs:
            try:
                self.require_usable()
                rings |= self._with_room(writer, job)
            except (SqliteError, StoreError) as exc:
                self._fail([job], exc)
        return rings

    def _with_room(self, writer: Writer, job: Job) -> dict[str, int]:
        while True:
            job.error = job.result = None  # what an earlier try left
            try:
                return writer.commit([job])
            except NoRoom:
                if not (job.essential and self.room.make(writer.connection)):
                    raise

    # Ending

    def _fail(self, jobs: list[Job], exc: SqliteError | StoreError) -> None:
        if isinstance(exc, Uncertain):
            self._break(str(exc.__cause__))
        fail(jobs, exc if isinstance(exc, StoreError) else self._error(exc, "writing"))

    def _error(self, exc: SqliteError, doing: str) -> StoreError:
        if breaks(exc):
            self._break(str(exc))
        return error_of(exc, self.path, self._busy, doing)

    def _break(self, reason: str) -> None:
        self._broken = self._broken or reason

    def _disconnect(self) -> None:
        # The last one to close copies the WAL home and removes it: not while another opens or writes.
        with self._turn.held() if self._turn.open else nullcontext():
            if self._reader is not None:
                self._reader.close(True)
                self._reader = None
            self._drop_writer()
        self._turn.close()

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()  # may be interrupted: it is kept until it has let go of all
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
