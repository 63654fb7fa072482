"""The writing connection of a SQLite file: runs the jobs of one commit in one transaction and syncs it."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from pabal.durable import sync_data
from pabal.errors import Uncertain
from pabal.sql.connection import Connection, SqliteError, damaged_index, own_fault, roll_back, undone
from pabal.sql.group import Job

_BUSY_MS = 1000  # how long a broken handle waits for other writers before it rewrites the WAL
_CHUNK = 1 << 20  # bytes of the WAL at a time
_ROWS = 20  # rows inserted or updated by one statement


class Transaction:
    """The commit as one caller's work sees it.

    `run` executes a statement and returns a cursor that all statements share: fetch its rows before the next one runs.
    `many` executes a statement for each of many rows of values. `changes` returns how many rows the last statement
    changed. `wakeups` collects the names to wake after the commit, each with its number.
    """

    __slots__ = ("changes", "connection", "many", "run", "wakeups")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.run: Callable[..., Any] = connection.cursor().execute
        self.many: Callable[..., Any] = connection.executemany
        self.changes: Callable[[], int] = connection.changes
        self.wakeups: dict[str, int] = {}

    def change(self, statement: str, bindings: tuple[Any, ...]) -> int:
        """Run an update or delete; return how many rows it changed."""
        self.run(statement, bindings)
        return self.changes()

    def change_each(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run an update or delete for each of these rows of values; raise StoreFailed if one changes no row.

        Then an index led to a row that is not as the index says. Without the error it would be found again for ever.
        """
        before = self.connection.total_changes()
        self.many(statement, rows)
        if self.connection.total_changes() - before != len(rows):
            raise damaged_index(self.connection)


class Insert:
    """An insert into some columns of a table: `one` is the statement for a single row.

    Many rows go twenty to a statement, which then searches each index once for all of them.
    """

    def __init__(self, table: str, columns: str) -> None:
        self._width = columns.count(",") + 1
        row = f"({', '.join('?' * self._width)})"
        self.one = f"insert into {table} ({columns}) values {row}"
        self._many = f"{self.one}{f', {row}' * (_ROWS - 1)}"

    def run(self, tx: Transaction, values: list[Any]) -> None:
        """Store any number of rows, whose values stand one after the other."""
        start, wide = 0, self._width * _ROWS
        while len(values) - start >= wide:
            tx.run(self._many, values[start : (start := start + wide)])
        while start < len(values):
            tx.run(self.one, values[start : (start := start + self._width)])


class Update:
    """An update of the rows with certain keys, many to a statement.

    In `statement`, `{}` stands for the comparison of the column `key`, and the other values are numbered from ?1 on.
    `one` is the statement for a single key, `many` that for twenty.
    """

    def __init__(self, statement: str, key: str, values: int) -> None:
        self.one = statement.replace("{}", f"{key} = ?{values + 1}")
        numbers = ", ".join(f"?{number}" for number in range(values + 1, values + 1 + _ROWS))
        self.many = statement.replace("{}", f"{key} in ({numbers})")

    def run(self, tx: Transaction, values: tuple[Any, ...], keys: Sequence[Any]) -> int:
        """Update the rows with these keys, all with the same values; return how many rows were changed."""
        before, start = tx.connection.total_changes(), 0
        while len(keys) - start >= _ROWS:
            tx.run(self.many, (*values, *keys[start : (start := start + _ROWS)]))
        for key in keys[start:]:
            tx.run(self.one, (*values, key))
        return tx.connection.total_changes() - before


class Writer:
    """One writing connection, as `connect` opens it. Used by one thread at a time.

    With `seen_early`, other handles see a commit before it is synced, and `flush` syncs it. Without, SQLite syncs a
    commit if any of its jobs is durable.
    """

    def __init__(self, connection: Connection, *, seen_early: bool) -> None:
        self.connection = connection
        self._tx = Transaction(connection)
        self._synced: bool | None = True
        self._lost = False  # a sync failed: the frames in the WAL may never reach the disk
        self._wal = -1
        if seen_early:
            self._wal = os.open(connection.filename_wal, os.O_RDWR | os.O_CLOEXEC)

    def commit(self, jobs: list[Job]) -> dict[str, int]:
        """Run the jobs, leave the outcome in each, and return the names that the commit wakes.

        An error of one job stays with that job. An error that all jobs share is raised; then nothing was written,
        unless it is Uncertain.
        """
        tx, first, alone = self._tx, jobs[0], len(jobs) == 1
        synced = self._wal < 0 and (first.durable if alone else any(job.durable for job in jobs))
        if synced is not self._synced:
            self._synced = None  # a signal handler may raise before the answer is noted
            tx.run("pragma synchronous = full" if synced else "pragma synchronous = normal")
            self._synced = synced
        tx.wakeups = {}
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
        return tx.wakeups

    def flush(self) -> None:
        """Sync everything that was committed, or raise OSError: after that only `close` may be called."""
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
        """Close all files. Call it again if it was interrupted."""
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
        """Write the WAL over itself and sync it.

        A failed sync has dropped pages that the kernel takes for written. Left alone they would be a hole in the file
        on the disk, and a power cut would take everything that any process committed behind it.
        """
        self.connection.set_busy_timeout(_BUSY_MS)
        try:
            self.connection.execute("begin immediate")
            start = 0
            while data := os.pread(self._wal, _CHUNK, start):
                start += os.pwrite(self._wal, data, start)
            sync_data(self._wal)
        finally:
            self.roll_back()


def _run_apart(job: Job, tx: Transaction) -> None:
    """Run a job inside a savepoint, so that its error undoes nothing else."""
    tx.run("savepoint job")
    wakeups = dict(tx.wakeups)
    try:
        job.result = job.work(tx)
    except Exception as exc:
        if not own_fault(exc):
            raise
        tx.run("rollback to job")
        tx.wakeups = wakeups
        job.error = exc
    tx.run("release job")
