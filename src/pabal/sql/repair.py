"""Check and repair a damaged SQLite file: build its indexes again, or copy the rows that can be read into a new one.

The new file is written back over the damaged one in one transaction, page by page. Other processes go on with it. The
damaged file is kept beside it under another name.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

import apsw

from pabal.durable import write_new
from pabal.sql.connection import Connection, connect, open_reader, roll_back
from pabal.sql.migrate import META, set_fact
from pabal.sql.pages import PageFile
from pabal.sql.place import keep_copy

Value: TypeAlias = str | bytes | int | float | None
Rescue: TypeAlias = Callable[[Connection, PageFile], int]  # adds rows of the pages to new tables; returns how many

_LIMIT = 50_000  # statements that are spent on the damaged pages of a table
_SLICE = 1024  # rows that are copied by one statement
_MOST = 20  # problems that are listed
_LAST = (1 << 63) - 1
_LOCK_BYTE = 1 << 30  # SQLite never uses the page that holds it
_SCHEMA = "select type, name, sql from main.sqlite_schema where sql is not null and name not like 'sqlite_%'"


class Fault(NamedTuple):
    """A damaged value in a row: where it is, what is wrong with it, and the statement that mends the row."""

    where: str
    problem: str
    remedy: str
    statement: str
    values: tuple[Value, ...]
    aside: tuple[str, Value] | None = None  # the damaged value, kept in `meta` under this key


def mend_faults(connection: Connection, faults: Sequence[Fault]) -> int:
    """Mend these rows inside the caller's transaction; return how many."""
    for fault in faults:
        if fault.aside is not None:
            connection.execute(META).fetchall()
            set_fact(connection, *fault.aside)
        connection.execute(fault.statement, fault.values).fetchall()
    return len(faults)


def problems(path: Path, busy: float) -> list[str]:
    """Return what SQLite finds wrong with the file: pages, indexes, rows that break a constraint."""
    try:
        connection, _ = open_reader(path, busy)
    except apsw.Error as exc:
        return [str(exc)]
    try:
        return _problems(connection)
    finally:
        connection.close()


def _problems(connection: Connection) -> list[str]:
    try:
        found = connection.execute(f"pragma integrity_check({_MOST})").fetchall()
        return [*_page_problems(connection), *(str(row[0]) for row in found if row[0] != "ok")]
    except (apsw.Error, UnicodeDecodeError) as exc:
        return [str(exc)]


def _page_problems(connection: Connection) -> Iterator[str]:
    """Yield what is wrong with the use of pages. SQLite does not check it in a schema whose last object is a view."""
    if unused := _unused_pages(connection):
        yield f"{unused} pages belong to no table: a page above them is damaged"
    connection.execute("begin").fetchall()  # so that nobody starts the WAL anew
    try:
        connection.execute("select 1 from sqlite_schema").fetchall()
        count = int(connection.pragma("freelist_count"))
        file = PageFile(Path(connection.filename), lambda which, at, many: connection.read("main", which, at, many)[1])
        if file.free is None or len(file.free) != count:
            yield "the list of free pages is damaged"
    finally:
        connection.execute("commit").fetchall()


def _unused_pages(connection: Connection) -> int:
    """Return how many pages are neither part of a table or index nor free."""
    pages = int(connection.pragma("page_count"))
    used = int(connection.execute("select count(*) from dbstat").get) + int(connection.pragma("freelist_count"))
    lock_page = _LOCK_BYTE // int(connection.pragma("page_size")) + 1  # never used
    return pages - used - (lock_page <= pages)


def _free_pages(connection: Connection) -> set[int] | None:
    """Return the free pages of a file whose list of them is damaged, if all others belong to tables and indexes."""
    with suppress(apsw.Error):
        if _unused_pages(connection) == 0:
            used = {int(str(row[0])) for row in connection.execute("select pageno from dbstat")}
            return set(range(1, int(connection.pragma("page_count")) + 1)) - used
    return None


def rebuild_indexes(path: Path, busy: float, mend: Callable[[Connection], object]) -> bool:
    """Build all indexes from the rows and mend these; return whether the file is sound afterwards.

    Nothing is done if rows cannot be reached: the file would be sound without them. Nor if the list of free pages is
    damaged: an index would be written over pages that are in use.
    """
    connection = connect(path, busy)
    try:
        if list(_page_problems(connection)):
            return False
        connection.execute("begin immediate").fetchall()
        connection.execute("reindex").fetchall()
        connection.execute("commit").fetchall()
        if _problems(connection):
            return False
        mend(connection)
        return True
    except apsw.Error:
        roll_back(connection)
        return False
    finally:
        connection.close()


class Salvaged(NamedTuple):
    """What a repair by copying did: the name under which the damaged file was kept, how many ranges of rows could not
    be read, and how many rows were found in pages that the tables do not reach.
    """

    kept: Path
    lost: int
    rescued: int

    def __str__(self) -> str:
        found = f", {self.rescued} rows were found in pages apart" if self.rescued else ""
        return f"its rows were copied, {self.lost} places could not be read{found}; the damaged file is {self.kept}"


def salvage(path: Path, busy: float, mend: Callable[[Connection], object], rescue: Rescue) -> Salvaged:
    """Copy what can be read into a new file and write that over the damaged one.

    `rescue` is called with the copied tables, before their indexes are made, and with the pages of the damaged file. It
    adds rows that are missing, and returns how many. Then `mend` is called with the tables.
    """
    kept = keep_copy(path)
    fresh = kept.with_name(f"{kept.name}.new")
    connection = connect(path, busy)
    pages = PageFile(kept)
    try:
        if pages.free is None:
            pages.free = _free_pages(connection)
        lost, rescued = _Copy(connection, fresh, mend, lambda new: rescue(new, pages)).run()
        new = apsw.Connection(os.fspath(fresh))
        try:
            with connection.backup("main", new, "main") as backup:
                backup.step(-1)
        finally:
            new.close()
        connection.execute("pragma wal_checkpoint(truncate)").fetchall()
    finally:
        pages.close()
        connection.close()
        for end in ("", "-wal", "-shm", "-journal"):
            with suppress(FileNotFoundError):
                os.unlink(f"{fresh}{end}")
    return Salvaged(kept, lost, rescued)


class _Table:
    """The statements for one table."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.copy = f"insert or ignore into fresh.{name} select * from main.{name} not indexed"
        ids = f"select rowid from main.{name} not indexed where rowid"
        self.between = f"{ids} between ? and ?"
        self.forwards = f"{ids} > ? order by rowid limit ?"
        self.backwards = f"{ids} < ? order by rowid desc limit ?"


class _Copy:
    """Copies the tables of a damaged database into a new one, range by range of row ids."""

    def __init__(
        self,
        connection: Connection,
        fresh: Path,
        mend: Callable[[Connection], object],
        rescue: Callable[[Connection], int],
    ) -> None:
        self._connection = connection
        self._fresh = fresh
        self._mend = mend
        self._rescue = rescue
        self._lost = 0

    def run(self) -> tuple[int, int]:
        os.close(write_new(self._fresh, b""))
        schema = self._connection.execute(_SCHEMA).fetchall()
        new = apsw.Connection(os.fspath(self._fresh))
        try:
            for _, _, statement in [row for row in schema if row[0] == "table"]:
                new.execute(str(statement)).fetchall()
            self._connection.execute("attach ? as fresh", (os.fspath(self._fresh),)).fetchall()
            try:
                for _, name, statement in [row for row in schema if row[0] == "table"]:
                    self._copy_table(str(name), str(statement))
                with suppress(apsw.Error):  # there only if a table has `autoincrement`
                    self._ask("insert or replace into fresh.sqlite_sequence select * from main.sqlite_sequence")
            finally:
                self._connection.execute("detach fresh").fetchall()
            rescued = self._rescue(new)
            self._mend(new)
            new.execute(META).fetchall()
            set_fact(new, "salvaged_from", self._fresh.stem)
            for _, _, statement in [row for row in schema if row[0] != "table"]:
                new.execute(str(statement)).fetchall()
        finally:
            new.close()
        return self._lost, rescued

    def _copy_table(self, name: str, statement: str) -> None:
        table = _Table('"' + name.replace('"', '""') + '"')
        with suppress(apsw.Error):  # this finds rows too whose pages are not in order
            self._ask(f"{table.copy} where true")  # without a condition SQLite copies rows that it has not read
            return
        if "without rowid" in statement.lower():
            self._copy_sorted(table, "")
            self._copy_sorted(table, " desc")
            self._lost += 1
            return
        last = self._walk(table, -_LAST - 1, table.forwards)
        if last is not None:
            first = self._walk(table, _LAST, table.backwards)
            if first is not None:
                self._search(table, last + 1, first - 1)

    def _walk(self, table: _Table, at: int, select: str) -> int | None:
        """Copy rows from one end of the table on; return the row behind which none can be read, or None at the end."""
        many = _SLICE
        while many:
            try:
                ids = self._ids(select, (at, many))
            except apsw.Error:
                many //= 2
                continue
            self._copy_rows(table, ids)
            if len(ids) < many:
                return None
            ordered = sorted(ids, reverse=select == table.backwards)
            if ids != ordered or ids[0] == at:
                return at  # it would not end
            at, many = ids[-1], _SLICE
        return at

    def _search(self, table: _Table, first: int, last: int) -> None:
        """Copy the rows between damaged pages: halve the range where one cannot be read, the largest first."""
        todo = deque([(first, last)])
        for _ in range(_LIMIT):
            if not todo:
                break
            first, last = todo.popleft()
            try:
                ids = self._ids(table.between, (first, last))
                self._copy_rows(table, ids)
            except apsw.Error:
                if first >= last:
                    self._lost += 1
                else:
                    middle = (first + last) // 2
                    todo += [(first, middle), (middle + 1, last)]
        self._lost += len(todo)

    def _copy_rows(self, table: _Table, ids: list[int]) -> None:
        """Copy rows with these ids, one by one if one of them cannot be read."""
        if not ids:
            return
        try:
            self._ask(f"{table.copy} where rowid between ? and ?", (min(ids), max(ids)))
        except apsw.Error:
            for id in ids:
                try:
                    self._ask(f"{table.copy} where rowid = ?", (id,))
                except apsw.Error:
                    self._lost += 1

    def _copy_sorted(self, table: _Table, direction: str) -> None:
        """Copy a table without row ids in the order of its key, up to the first row that cannot be read."""
        keys = self._connection.execute(f"select name from pragma_table_info({table.name}) where pk order by pk")
        order = ", ".join([f'"{row[0]}"{direction}' for row in keys])
        page = f"order by {order} limit ? offset ?"
        at, many = 0, _SLICE
        while many:
            try:
                self._ask(f"{table.copy} {page}", (many, at))
                found = self._ids(f"select 1 from main.{table.name} not indexed {page}", (many, at))
            except apsw.Error:
                many //= 2
                continue
            if len(found) < many:
                return
            at += many

    def _ids(self, select: str, values: tuple[int, int]) -> list[int]:
        rows: list[tuple[int]] = self._connection.execute(select, values).fetchall()  # type: ignore[assignment]
        return [row[0] for row in rows]

    def _ask(self, statement: str, values: tuple[object, ...] = ()) -> None:
        self._connection.execute(statement, values).fetchall()
