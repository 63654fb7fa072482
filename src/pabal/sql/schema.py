"""A PostgreSQL schema with the tables and functions of a component, kept up to date by numbered migrations.

An advisory lock lets one process at a time migrate; the steps and the new version are one transaction.
"""

import re
from typing import LiteralString

from pabal.errors import InvalidUrl, StoreRefused
from pabal.sql.migrate import steps
from pabal.sql.postgres_link import Link

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}")
_HERE = re.compile(r"\bpabal\.")
_META = "create table if not exists pabal.meta (key text primary key, value text not null)"


class Schema:
    """The schema of a component. A call turns SQL written for the schema `pabal` into SQL for this one."""

    def __init__(self, name: str, component: str = "queues") -> None:
        if not _NAME.fullmatch(name):
            raise InvalidUrl(f"schema must be a small letter and up to 40 of a-z, 0-9 and _; found {name!r:.60}")
        self.name = name
        self._component = component
        self._key = f"schema.{component}"
        self.bell = f"{name}.bell"
        self._turned: dict[str, LiteralString] = {}

    def __call__(self, statement: str) -> LiteralString:
        """Return the statement with `pabal.` replaced by this schema, whose name was checked."""
        turned = self._turned.get(statement)
        if turned is None:
            turned = self._turned[statement] = _HERE.sub(f"{self.name}.", statement)
        return turned

    def version(self, link: Link) -> int:
        """Return the version of the tables; 0 if there are none."""
        found = link.execute("select to_regclass(%s) is not null", (f"{self.name}.meta",)).fetchone()
        if not (found and found[0]):
            return 0
        row = link.execute(self("select value from pabal.meta where key = %s"), (self._key,)).fetchone()
        return int(row[0]) if row else 0

    def migrate(self, link: Link, package: str) -> None:
        """Bring the tables to the newest version; refuse a newer one than this release knows."""
        known = steps(self._component, package)
        newest = max(known)
        if self._require(self.version(link), newest) == newest:
            return
        with link.transaction():
            link.execute("select pg_advisory_xact_lock(hashtextextended(%s, 20261116))", (f"{self.name}.schema",))
            link.execute(self("create schema if not exists pabal.").rstrip("."))
            link.execute(self(_META))
            for number in range(self._require(self.version(link), newest) + 1, newest + 1):
                link.execute(self(known[number]))
            link.execute(
                self("insert into pabal.meta values (%s, %s) on conflict (key) do update set value = excluded.value"),
                (self._key, str(newest)),
            )

    def _require(self, found: int, newest: int) -> int:
        if found > newest:
            raise StoreRefused(
                f"the database has schema {found} of {self._component}; "
                f"this release knows {newest}: upgrade pabal to open it"
            )
        return found
