"""Queues as rows: their numbers, which never change and are therefore remembered, and their settings."""

from collections.abc import Iterable, Mapping
from typing import Any

from pabal import jsontext
from pabal.errors import NameTaken
from pabal.names import check_name
from pabal.sql.postgres import Server
from pabal.stores.postgres.rows import Row
from pabal.stores.postgres.schema import Schema

_NUMBER = "select id from pabal.queues where name = %s"
_MAKE = """
with made as (insert into pabal.queues (name) values (%(name)s) on conflict do nothing returning id, name)
select id, name from made union all select id, name from pabal.queues where lower(name) = lower(%(name)s)"""
_CONFIGURE = """
with changed as (update pabal.queues set settings = %s where id = %s returning id)
select pabal.ring(array_agg(id)) from changed"""


class Queues:
    """The queues of one schema. `known` holds the numbers that were seen."""

    def __init__(self, server: Server, schema: Schema) -> None:
        self._server = server
        self._sql = schema
        self.known: dict[str, int] = {}

    def number(self, queue: str) -> int | None:
        """Return the number of a queue, or None if there is no such queue."""
        self._server.require_usable()
        number = self.known.get(queue)
        if number is None:
            check_name(queue)
            found = self._server.read(lambda link: link.execute(self._sql(_NUMBER), (queue,)).fetchone())
            if found is not None:
                number = self.known[queue] = found[0]
        return number

    def make(self, queues: Iterable[str]) -> None:
        """Know the numbers of these queues, which come into being here if need be."""
        self._server.require_usable()
        for queue in queues:
            if queue not in self.known:
                number, name = self._make(check_name(queue))
                if name != queue:
                    raise NameTaken(f"queue {queue!r} differs from {name!r} only in case: use one of them")
                self.known[queue] = number

    def _make(self, queue: str) -> tuple[int, str]:
        rows: list[Row] = []
        while not rows:  # empty if another made it meanwhile: then it is there to be seen the next time
            rows = self._server.run(lambda link: link.execute(self._sql(_MAKE), {"name": queue}).fetchall())
        return rows[0][0], rows[0][1]

    def names(self) -> list[str]:
        """Name every queue, sorted."""
        statement = self._sql("select name from pabal.queues order by name")
        return [row[0] for row in self._server.read(lambda link: link.execute(statement).fetchall())]

    def settings(self, queue: str) -> Mapping[str, Any] | None:
        """Return the document given to `configure`, or None."""
        statement = self._sql("select settings from pabal.queues where name = %s")
        found = self._server.read(lambda link: link.execute(statement, (queue,)).fetchone())
        settings: Mapping[str, Any] | None = jsontext.decode(found[0].encode()) if found and found[0] else None
        return settings

    def configure(self, queue: str, settings: Mapping[str, Any]) -> None:
        """Keep a document for this queue and wake its watchers."""
        text = jsontext.encode(dict(settings)).decode()
        self.make([queue])
        self._server.run(lambda link: link.execute(self._sql(_CONFIGURE), (text, self.known[queue])))
