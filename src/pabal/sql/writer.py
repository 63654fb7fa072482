"""The connection that writes: runs the jobs of one commit in one transaction, synced if any of them was promised so."""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pabal.durable import sync_data
from pabal.errors import Uncertain
from pabal.sql.connection import Connection, SqliteError, own_fault, roll_back, undone
from pabal.sql.group import Job

_PATIENCE = 1000  # milliseconds, for those who read: a backup may take minutes, and nobody can write meanwhile


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

    `seen_early`: others see a commit before it is synced, which is left to `flush`.
    """

    def __init__(self, connection: Connection, *, seen_early: bool) -> None:
        self.connection = connection
        self._tx = Transaction(connection)
        self._seen_early = seen_early
        self._synced: bool | None = True
        self._lost = False  # a sync failed: what the WAL holds may never reach the disk
        self._wal = os.open(connection.filename_wal, os.O_RDWR | os.O_CLOEXEC) if seen_early else -1

    def commit(self, jobs: list[Job]) -> dict[str, int]:
        """Run the jobs, leave in each what came of it, and return what the commit made ready.

        An error of one job is its own. One that all share is raised and nothing was written, unless it is Uncertain.
        """
        tx, first, alone = self._tx, jobs[0], len(jobs) == 1
        synced = not self._seen_early and (first.durable if alone else any(job.durable for job in jobs))
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
        try:
            sync_data(self._wal)
        except OSError:
            self._lost = True
            raise

    def roll_back(self) -> None:
        """End a transaction that was broken off."""
        roll_back(self.connection)

    def close(self) -> None:
        """Let go of all files. Once only: later the number of the WAL may be that of another file."""
        try:
            if self._lost:
                self._empty_wal()
            with suppress(SqliteError):
                self.connection.close(True)
        finally:
            if self._wal >= 0:
                os.close(self._wal)

    def _empty_wal(self) -> None:
        """Copy what could not be synced into the database, and empty the WAL.

        A later commit that stood behind it there would be lost with it in a power cut; and what was synced before it
        would be laid over the copy, older pages among newer ones.
        """
        self.connection.set_busy_timeout(_PATIENCE)
        for _ in range(2):  # SQLite's own handle of the WAL hears of the failure too, once
            with suppress(SqliteError):
                self.connection.execute("pragma wal_checkpoint(truncate)").fetchall()
        with suppress(OSError):
            sync_data(self._wal)


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
