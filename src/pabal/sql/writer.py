"""The connection that writes: runs the jobs of one commit in one transaction, and brings it to the disk."""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pabal.durable import sync_data
from pabal.errors import Uncertain
from pabal.sql.connection import Connection, SqliteError, own_fault, roll_back, undone
from pabal.sql.group import Job

_PATIENCE = 1000  # milliseconds, for others who write
_CHUNK = 1 << 20  # bytes of the WAL at a time


class Transaction:
    """What a caller's work sees of the commit it is part of. `rings` names what the commit made ready.

    `run` answers with one cursor that all statements share: its rows are fetched before the next one runs.
    """

    __slots__ = ("_changes", "connection", "many", "rings", "run")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.run: Callable[..., Any] = connection.cursor().execute
        self.many: Callable[..., Any] = connection.executemany
        self.rings: dict[str, int] = {}
        self._changes = connection.changes

    def change(self, statement: str, bindings: tuple[Any, ...]) -> int:
        """Run an update or delete; return how many rows it changed."""
        self.run(statement, bindings)
        return self._changes()


class Writer:
    """One writing connection, as `connect` opens it. Used by one thread at a time.

    `seen_early`: others see a commit before it is synced, which is left to `flush`; else SQLite syncs it if any of its
    jobs was promised so.
    """

    def __init__(self, connection: Connection, *, seen_early: bool) -> None:
        self.connection = connection
        self._tx = Transaction(connection)
        self._synced: bool | None = True
        self._lost = False  # a sync failed: what the WAL holds may never reach the disk
        self._wal = -1
        if seen_early:
            self._wal = os.open(connection.filename_wal, os.O_RDWR | os.O_CLOEXEC)

    def commit(self, jobs: list[Job]) -> dict[str, int]:
        """Run the jobs, leave in each what came of it, and return what the commit made ready.

        An error of one job is its own. One that all share is raised and nothing was written, unless it is Uncertain.
        """
        tx, first, alone = self._tx, jobs[0], len(jobs) == 1
        synced = self._wal < 0 and (first.durable if alone else any(job.durable for job in jobs))
        if synced is not self._synced:
            self._synced = None  # a signal handler may raise before the answer is noted
            tx.run("pragma synchronous = full" if synced else "pragma synchronous = normal")
            self._synced = synced
        tx.rings = {}
        try:
            tx.run("begin immediate")
            if alone:
                first.result = first.work(tx)
            else:
                for job in jobs:
                    _run_apart(job, tx)
        except BaseException as exc:
            self.roll_back()
            if not (alone and own_fault(exc)):
                raise
            first.error = exc
            return {}
        try:
            tx.run("commit")
        except SqliteError as exc:
            if undone(exc):
                self.roll_back()
                raise
            raise Uncertain(
                f"{exc} while committing to {self.connection.filename}: it may or may not have been written"
            ) from exc
        return tx.rings

    def flush(self) -> None:
        """Bring all that was committed to the disk, or raise OSError: then nothing but `close` may follow."""
        if self._wal < 0:
            return
        try:
            sync_data(self._wal)
        except OSError:
            self._lost = True
            raise

    def roll_back(self) -> None:
        """End a transaction that was broken off."""
        roll_back(self.connection)

    def close(self) -> None:
        """Let go of all files. To be called again if it was interrupted."""
        if self._lost:
            with suppress(SqliteError, OSError):
                self._write_again()
            self._lost = False
        with suppress(SqliteError):
            self.connection.close(True)
        wal, self._wal = self._wal, -1
        if wal >= 0:
            with suppress(OSError):
                os.close(wal)

    __del__ = close

    def _write_again(self) -> None:
        """Write the WAL over itself and sync it. A failed sync has dropped pages which the kernel takes for written.

        Else they would be a hole on the disk, and a power cut would take all that was committed behind it, by anybody.
        """
        self.connection.set_busy_timeout(_PATIENCE)
        try:
            self.connection.execute("begin immediate")
            start = 0
            while data := os.pread(self._wal, _CHUNK, start):
                start += os.pwrite(self._wal, data, start)
            sync_data(self._wal)
        finally:
            self.roll_back()


def _run_apart(job: Job, tx: Transaction) -> None:
    tx.run("savepoint job")
    rings = dict(tx.rings)
    try:
        job.result = job.work(tx)
    except Exception as exc:
        if not own_fault(exc):
            raise
        tx.run("rollback to job")
        tx.rings = rings
        job.error = exc
    tx.run("release job")
