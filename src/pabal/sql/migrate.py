"""Numbered migrations: `<component>_<n>.sql` beside the driver, and a schema version per component in `meta`.

Several components may share one database; each moves its own version. Runs inside the caller's transaction, so that a
crash leaves the old schema or the new one, whole.

A migration changes a table or an index. A higher version beside the tables and indexes of this release is damage.
"""

import re
from importlib import resources
from typing import Any, Protocol

import apsw

from pabal.errors import StoreRefused

META = "create table if not exists meta (key text primary key, value) without rowid"
_FACT = """
select typeof(value), case typeof(value) when 'text' then cast(value as blob) else value end from meta where key = ?"""


class Runner(Protocol):
    """A connection that can execute statements."""

    def execute(self, statements: str, bindings: tuple[Any, ...] = ..., /) -> Any: ...


def migrate(connection: Runner, component: str, package: str) -> int:
    """Bring the component's tables to the newest version; return it. Refuse a newer one than this release knows."""
    known = steps(component, package)
    newest = max(known)
    connection.execute(META)
    found = version(connection, component)
    if found > newest:
        raise StoreRefused(
            f"the database has schema {found} of {component}; this release knows {newest}: upgrade pabal to open it"
        )
    for number in range(found + 1, newest + 1):
        connection.execute(known[number])
    if found < newest:
        set_fact(connection, f"schema.{component}", newest)
    return newest


def is_current(connection: Runner, component: str, package: str) -> bool:
    """Return whether `migrate` would change nothing. Only reads. TypeError if the version of the tables is damaged.

    A higher version beside exactly the tables and indexes of this release is. With tables of others beside them, it is
    taken for that of a newer release.
    """
    names = {row[0] for row in connection.execute("select name from sqlite_schema where type = 'table'")}
    found = fact(connection, f"schema.{component}") if "meta" in names else None
    known = steps(component, package)
    if table_of(known[1]) in names and not (type(found) is int and found > 0):
        raise TypeError(f"the version of the tables of {component} is {found!r}")
    if type(found) is int and found > max(known) and _objects(connection) == _objects_of(known):
        raise TypeError(f"the version of the tables of {component} is {found}, and they are those of {max(known)}")
    return bool(found == max(known))


def _objects(connection: Runner) -> set[tuple[Any, ...]]:
    """Return the tables and indexes of a SQLite database, with their texts."""
    return set(connection.execute("select name, sql from sqlite_schema where type in ('table', 'index')"))


def _objects_of(known: dict[int, str]) -> set[tuple[Any, ...]]:
    """Return the tables and indexes that these migrations make."""
    connection = apsw.Connection(":memory:")
    try:
        connection.execute(META)
        for number in sorted(known):
            connection.execute(known[number])
        return _objects(connection)
    finally:
        connection.close()


def table_of(step: str) -> str:
    """Return the name of the first table that a migration makes."""
    return step.partition("create table ")[2].partition(" ")[0]


def restore_version(connection: Runner, component: str, package: str) -> None:
    """Note the version of the tables again if it was damaged."""
    connection.execute(META)
    try:
        is_current(connection, component, package)
    except TypeError:
        set_fact(connection, f"schema.{component}", max(steps(component, package)))


def version(connection: Runner, component: str) -> int:
    """Return the component's schema version; 0 if it has none."""
    return int(fact(connection, f"schema.{component}") or 0)


def fact(connection: Runner, key: str) -> Any:
    """Return one value of `meta`, or None. In a damaged text, bytes that are not UTF-8 are escaped."""
    for kind, value in connection.execute(_FACT, (key,)):
        return value.decode(errors="backslashreplace") if kind == "text" else value
    return None


def set_fact(connection: Runner, key: str, value: object) -> None:
    """Keep one value in `meta`."""
    connection.execute("insert or replace into meta (key, value) values (?, ?)", (key, value))


def steps(component: str, package: str) -> dict[int, str]:
    """Return the SQL of each migration beside a driver, by its number."""
    name = re.compile(rf"{re.escape(component)}_(\d+)\.sql")
    found = {}
    for file in resources.files(package).iterdir():
        if match := name.fullmatch(file.name):
            found[int(match[1])] = file.read_text("utf-8")
    return found
