"""Check and repair a damaged SQLite file: write its schema or build its indexes again, or copy its rows into a new one.

The new file is written back over the damaged one in one transaction, page by page. Other processes go on with it. The
damaged file is kept beside it under another name.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

import apsw

from pabal.durable import sync, translated, write_new
from pabal.errors import StoreFailed
from pabal.sql.connection import Connection, connect, open_reader, roll_back
from pabal.sql.migrate import META, set_fact
from pabal.sql.pages import PageFile
from pabal.sql.place import keep_copy

Value: TypeAlias = str | bytes | int | float | None
Rescue: TypeAlias = Callable[[Connection, PageFile], int]  # adds rows of the pages to new tables; returns how many
Prepare: TypeAlias = Callable[[Connection], object]  # makes the tables
Mend: TypeAlias = Callable[[Connection], int]  # mends rows inside a transaction; returns how many

_LIMIT = 50_000  # statements that are spent on the damaged pages of a table
_HOPELESS = 1000  # statements after which a table is given up of which nothing could be read
_SLICE = 1024  # rows that are copied by one statement
_MOST = 20  # problems that are listed
_LAST = (1 << 63) - 1
_LOCK_BYTE = 1 << 30  # SQLite never uses the page that holds it
_OBJECTS = """
select rowid, cast(type as blob), cast(name as blob), cast(tbl_name as blob), cast(sql as blob)
from main.sqlite_schema"""
_KINDS = (b"table", b"index", b"view", b"trigger")
_UNREADABLE = (apsw.CorruptError, apsw.NotADBError)
# The header of a file in WAL mode that says nothing about its pages, and a first page that belongs to no table: SQLite
# takes the file for a database, so it can be written over, but for a damaged one until that is done.
_PAGE_SIZE = 4096
_HEADER = b"SQLite format 3\0" + _PAGE_SIZE.to_bytes(2, "big") + bytes((2, 2, 0, 64, 32, 32)) + bytes(77)


class Fault(NamedTuple):
    """A damaged value in a row: where it is, what is wrong with it, and the statement that mends the row."""

    where: str
    problem: str
    remedy: str
    statement: str
    values: tuple[Value, ...]
    aside: tuple[str, Value] | None = None  # the damaged value, kept in `meta` under this key


def mend_faults(connection: Connection, faults: Sequence[Fault]) -> list[Fault]:
    """Mend these rows inside the caller's transaction; return the faults that are gone.

    A row with another value that its table does not allow, as one of another table has, stays as it is: a check of the
    file finds it.
    """
    mended = []
    for fault in faults:
        with suppress(apsw.ConstraintError):
            connection.execute(fault.statement, fault.values).fetchall()
            mended.append(fault)
            if fault.aside is not None:
                connection.execute(META).fetchall()
                set_fact(connection, *fault.aside)
    return mended


class Object(NamedTuple):
    """A table, index or view, as a row of `sqlite_schema` describes it."""

    kind: bytes
    name: bytes
    table: bytes
    statement: bytes | None  # none of an index that a constraint makes


def schema_of(prepare: Prepare) -> list[Object]:
    """Return the tables, indexes and views that `prepare` makes in an empty database."""
    connection = apsw.Connection(":memory:")
    try:
        prepare(connection)
        return list(_objects(connection).values())
    finally:
        connection.close()


def _objects(connection: Connection) -> dict[int, Object]:
    """Return the rows of the schema by their number. Their texts need not be UTF-8."""
    rows: list[tuple[int, bytes, bytes, bytes, bytes | None]] = connection.execute(_OBJECTS).fetchall()  # type: ignore[assignment]
    return {row[0]: Object(*row[1:]) for row in rows}


def _damaged_objects(connection: Connection, schema: Sequence[Object]) -> dict[int, Object]:
    """Return, by the number of the row, the objects that are there and not as they should be."""
    found = _objects(connection)
    missing = [wanted for wanted in schema if not _is_there(wanted, found.values())]
    others = {number: each for number, each in found.items() if not any(_is_whole(each, one) for one in schema)}
    damaged: dict[int, Object] = {}
    for wanted in list(missing):
        for number, each in others.items():
            same = each.name == wanted.name or each.statement is not None and each.statement == wanted.statement
            if same and number not in damaged and (each.kind == wanted.kind or each.kind not in _KINDS):
                damaged[number] = wanted
                missing.remove(wanted)
                break
    for wanted in missing:
        alike = [number for number, each in others.items() if number not in damaged and _may_be(each, wanted)]
        if len(alike) == 1:
            damaged[alike[0]] = wanted
    return damaged


def _is_there(wanted: Object, found: Iterable[Object]) -> bool:
    return any(_is_whole(each, wanted) for each in found)


def _is_whole(each: Object, wanted: Object) -> bool:
    """Return whether an object is this one, or this table with columns that another program added."""
    if each[:3] != wanted[:3] or each.statement is None or wanted.statement is None:
        return each == wanted
    same = len(os.path.commonprefix([each.statement, wanted.statement]))
    added = len(each.statement) > len(wanted.statement) and each.kind == b"table"
    return each == wanted or added and each.statement.endswith(wanted.statement[same:])


def _may_be(each: Object, wanted: Object) -> bool:
    """Return whether an object may be this one with damaged texts, and not that of another program."""
    return _lengths(each) == _lengths(wanted) and (each.kind == wanted.kind or each.kind not in _KINDS)


def _missing_objects(connection: Connection, schema: Sequence[Object]) -> list[Object]:
    """Return the tables and indexes that are not there, not even damaged, beside tables that are."""
    there = [*_objects(connection).values(), *_damaged_objects(connection, schema).values()]
    tables = {each.name for each in there if each.kind == b"table"}
    if not tables & {each.name for each in schema if each.kind == b"table" and each.name != b"meta"}:
        return []  # the tables of another program, or of the original system
    return [
        each
        for each in schema
        if not _is_there(each, there)
        and each.statement is not None
        and (each.kind == b"table" or each.kind == b"index" and each.table in tables)
    ]


def is_misdescribed(connection: Connection, schema: Sequence[Object]) -> bool:
    """Return whether the texts of the schema are damaged, and not only other ones."""
    found = _objects(connection)
    damaged = _damaged_objects(connection, schema)
    return any(_lengths(found[number]) == _lengths(each) for number, each in damaged.items())


def problems(path: Path, busy: float, schema: Sequence[Object] = ()) -> list[str]:
    """Return what SQLite finds wrong with the file: pages, indexes, rows that break a constraint. Compare the tables
    and indexes with the schema too.
    """
    try:
        connection, _ = open_reader(path, busy)
    except apsw.Error as exc:
        return [str(exc)]
    try:
        return _problems(connection, schema)
    finally:
        connection.close()


def _problems(connection: Connection, schema: Sequence[Object]) -> list[str]:
    try:
        found = connection.execute(f"pragma integrity_check({_MOST})").fetchall()
        # A view may have another text: SQLite writes it again when a table is renamed.
        damaged = [each for each in _damaged_objects(connection, schema).values() if each.kind != b"view"]
        return [
            *_page_problems(connection),
            *(f"the definition of {_called(each)} in the schema is damaged" for each in damaged),
            *(f"the {_called(each)} is missing" for each in _missing_objects(connection, schema)),
            *(str(row[0]) for row in found if row[0] != "ok"),
        ]
    except (apsw.Error, UnicodeDecodeError) as exc:
        return [str(exc)]


def _called(each: Object) -> str:
    return f"{each.kind.decode()} {each.name.decode()}"


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


def repair_file(path: Path, busy: float, schema: Sequence[Object], mend: Mend, rescue: Rescue | None) -> str:
    """Repair a damaged file in the way that loses least; return what was done."""
    kept = _restore_schema(path, busy, schema)
    done = f"its {'schema was written' if kept else 'indexes were built'} again"
    sound, kept = _rebuild_indexes(path, busy, schema, mend, kept)
    if not sound:
        return str(salvage(path, busy, mend, rescue, schema=schema, kept=kept))
    return f"{done}; the damaged file is {kept}" if kept else done


def _restore_schema(path: Path, busy: float, schema: Sequence[Object]) -> Path | None:
    """Write the damaged texts of the schema again; return the copy of the damaged file, or None if none was needed.

    Only texts of the same length: SQLite overwrites them where they are, and uses no other page.
    """
    kept = None
    with suppress(*_UNREADABLE):
        connection = _connect_despite(path, busy)
        try:
            found, damaged = _objects(connection), _damaged_objects(connection, schema)
            if not damaged or any(_lengths(found[number]) != _lengths(each) for number, each in damaged.items()):
                return None
            kept = keep_copy(path)
            connection.execute("begin immediate").fetchall()
            for number, each in damaged.items():
                values = [None if value is None else value.decode() for value in each]
                connection.execute(
                    "update sqlite_schema set type = ?, name = ?, tbl_name = ?, sql = ? where rowid = ?",
                    (*values, number),
                ).fetchall()
            version = int(connection.pragma("schema_version"))
            connection.pragma("schema_version", version + 1)  # so that others read the schema again
            connection.execute("commit").fetchall()
        finally:
            roll_back(connection)
            connection.close()
    return kept


def _lengths(each: Object) -> list[int]:
    return [-1 if value is None else len(value) for value in each]


def _connect_despite(path: Path, busy: float) -> Connection:
    """Open a file whose schema is damaged: SQLite then ignores the tables that it cannot make sense of."""
    connection = apsw.Connection(os.fspath(path))
    try:
        connection.set_busy_timeout(round(busy * 1000))
        connection.execute("pragma writable_schema = on").fetchall()
        connection.execute("select 1 from sqlite_schema limit 1").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _rebuild_indexes(
    path: Path, busy: float, schema: Sequence[Object], mend: Mend, kept: Path | None
) -> tuple[bool, Path | None]:
    """Build all indexes from the rows, also missing ones, and mend the rows; return whether the file is sound then.

    Return also the copy of the damaged file: `kept`, or a new one if rows had to be mended. Nothing is done if rows
    cannot be reached: the file would be sound without them. Nor if the list of free pages is damaged: an index would be
    written over pages that are in use.
    """
    try:
        connection = connect(path, busy)
    except _UNREADABLE:
        return False, kept
    try:
        if list(_page_problems(connection)):
            return False, kept
        connection.execute("begin immediate").fetchall()
        connection.execute("reindex").fetchall()
        for each in _missing_objects(connection, schema):
            if each.kind == b"index" and each.statement is not None:
                connection.execute(each.statement.decode()).fetchall()
        connection.execute("commit").fetchall()
        if _problems(connection, schema):
            return False, kept
        connection.execute("begin immediate").fetchall()
        if mend(connection) and kept is None:
            kept = keep_copy(path)  # with the rows as they were: nothing is committed yet
        connection.execute("commit").fetchall()
        return True, kept
    except apsw.Error:
        roll_back(connection)
        return False, kept
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


def salvage(
    path: Path,
    busy: float,
    mend: Mend,
    rescue: Rescue | None = None,
    *,
    schema: Sequence[Object] = (),
    kept: Path | None = None,
) -> Salvaged:
    """Copy what can be read into a new file and write that over the damaged one.

    `rescue` is called with the copied tables, before their indexes are made, and with the pages of the damaged file. It
    adds rows that are missing, and returns how many; without it, a file whose schema cannot be read is left as it is.
    Then `mend` is called with the tables. The objects of `schema` are
    made as it says, others as the file says. `kept` is a copy of the damaged file, if there is one already.
    """
    copy = kept or keep_copy(path)
    fresh = copy.with_name(f"{copy.name}.new")
    connection, whole = _connect_somehow(path, busy)
    pages = PageFile(copy)
    untouched = kept is None
    try:
        if pages.free is None and connection is not None:
            pages.free = _free_pages(connection)
        if not whole and rescue is None:
            raise StoreFailed(f"{path} was not changed: its schema cannot be read")
        adds: Rescue = rescue or (lambda new, old: 0)
        lost, rescued, found = _Copy(connection, whole, fresh, schema, mend, lambda new: adds(new, pages)).run()
        if not (whole or found):
            raise StoreFailed(f"{path} was not changed: its schema cannot be read, and nothing was found in its pages")
        untouched = False
        if connection is None:
            connection = _connect_to_overwrite(path, busy, copy)
        _write_over(connection, fresh)
    except StoreFailed:
        if untouched:
            _remove(copy)
        raise
    finally:
        pages.close()
        if connection is not None:
            connection.close()
        _remove(fresh)
    return Salvaged(copy, lost, rescued)


def _remove(path: Path) -> None:
    """Remove a database that nobody uses."""
    for end in ("", "-wal", "-shm", "-journal"):
        with suppress(FileNotFoundError):
            os.unlink(f"{path}{end}")


def _connect_somehow(path: Path, busy: float) -> tuple[Connection | None, bool]:
    """Open a damaged file, if that is possible; return whether all of its schema can be read too."""
    with suppress(*_UNREADABLE):
        return connect(path, busy), True
    with suppress(*_UNREADABLE):
        return _connect_despite(path, busy), False
    return None, False


def _connect_to_overwrite(path: Path, busy: float, copy: Path) -> Connection:
    """Open a file that SQLite does not take for a database, and of which there is a copy."""
    with translated(f"repairing {path}, of which {copy} is a copy"), open(path, "r+b") as file:
        file.write(_HEADER + bytes(1))
        sync(file.fileno())
    connection = apsw.Connection(os.fspath(path))
    connection.set_busy_timeout(round(busy * 1000))
    return connection


def _write_over(connection: Connection, fresh: Path) -> None:
    new = apsw.Connection(os.fspath(fresh))
    try:
        with connection.backup("main", new, "main") as backup:
            backup.step(-1)
    finally:
        new.close()
    connection.execute("pragma wal_checkpoint(truncate)").fetchall()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


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
        connection: Connection | None,
        whole: bool,
        fresh: Path,
        schema: Sequence[Object],
        mend: Mend,
        rescue: Callable[[Connection], int],
    ) -> None:
        self._damaged = connection
        self._whole = whole  # the schema can be read
        self._fresh = fresh
        self._schema = schema
        self._mend = mend
        self._rescue = rescue
        self._lost = 0

    def run(self) -> tuple[int, int, bool]:
        """Return how many places could not be read, how many rows were rescued, and whether our tables have rows."""
        os.close(write_new(self._fresh, b""))
        schema = self._statements()
        tables = {name: statement for (kind, name), statement in schema.items() if kind == "table"}
        new = apsw.Connection(os.fspath(self._fresh))
        try:
            for statement in tables.values():
                self._make(new, statement)
            made = {row[0] for row in new.execute("select name from sqlite_schema where type = 'table'").fetchall()}
            tables = {name: statement for name, statement in tables.items() if name in made}
            if self._damaged is not None:
                self._damaged.execute("attach ? as fresh", (os.fspath(self._fresh),)).fetchall()
                try:
                    for name, statement in tables.items():
                        self._copy_table(name, statement)
                    with suppress(apsw.Error):  # there only if a table has `autoincrement`
                        self._ask("insert or replace into fresh.sqlite_sequence select * from main.sqlite_sequence")
                finally:
                    self._damaged.execute("detach fresh").fetchall()
            rescued = self._rescue(new)
            own = tables.keys() & {
                each.name.decode() for each in self._schema if each.kind == b"table" and each.name != b"meta"
            }
            found = any(new.execute(f"select 1 from {_quoted(name)} limit 1").fetchall() for name in own)
            new.execute("begin").fetchall()
            self._mend(new)
            new.execute("commit").fetchall()
            new.execute(META).fetchall()
            set_fact(new, "salvaged_from", self._fresh.stem)
            for (kind, _), statement in schema.items():
                if kind != "table":
                    self._make(new, statement)
        finally:
            new.close()
        return self._lost, rescued, found

    def _make(self, new: Connection, statement: str) -> None:
        try:
            new.execute(statement).fetchall()
        except apsw.SQLError:  # its text is damaged
            self._lost += 1

    def _statements(self) -> dict[tuple[str, str], str]:
        """Return the statements that make the objects: as the file says it, or as they should be if that is damaged."""
        found: list[Object] = []
        if self._damaged is not None:
            with suppress(apsw.Error):
                damaged = _damaged_objects(self._damaged, self._schema)
                found = [each for number, each in _objects(self._damaged).items() if number not in damaged]
        schema = self._schema
        if self._whole and not {each.name for each in found} & {each.name for each in schema if each.kind == b"table"}:
            schema = ()  # the tables of another program, or of the original system
        statements: dict[tuple[str, str], str] = {}
        for each in (*found, *schema):
            with suppress(UnicodeDecodeError, AttributeError):  # not a text
                if each.statement is not None and not each.name.startswith(b"sqlite_"):
                    statements.setdefault((each.kind.decode(), each.name.decode()), each.statement.decode())
        return statements

    def _copy_table(self, name: str, statement: str) -> None:
        table = _Table(_quoted(name))
        columns, wanted = (self._columns(name, place) for place in ("main", "fresh"))
        if not columns:
            self._lost += 1  # SQLite does not know it
            return
        if self._whole and len(columns) != len(wanted):
            raise StoreFailed(
                f"nothing was copied: another program changed the table {name}, which has {len(columns)} columns; "
                f"expected {len(wanted)}: {', '.join(wanted)}"
            )
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

    def _columns(self, name: str, place: str) -> list[str]:
        rows = self._connection.execute("select name from pragma_table_info(?, ?)", (name, place)).fetchall()
        return [str(row[0]) for row in rows]

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
            if [at, *ids] != sorted({at, *ids}, reverse=select == table.backwards):
                return at  # it would not end
            at, many = ids[-1], _SLICE
        return at

    def _search(self, table: _Table, first: int, last: int) -> None:
        """Copy the rows between damaged pages: halve the range where one cannot be read, the largest first."""
        todo = deque([(first, last)])
        reached = False
        for tried in range(_LIMIT):
            if not todo or tried == _HOPELESS and not reached:
                break
            first, last = todo.popleft()
            try:
                ids = self._ids(table.between, (first, last))
                reached = True
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

    @property
    def _connection(self) -> Connection:
        assert self._damaged is not None
        return self._damaged

    def _ids(self, select: str, values: tuple[int, int]) -> list[int]:
        rows: list[tuple[int]] = self._connection.execute(select, values).fetchall()  # type: ignore[assignment]
        return [row[0] for row in rows]

    def _ask(self, statement: str, values: tuple[object, ...] = ()) -> None:
        self._connection.execute(statement, values).fetchall()
