"""The table of queues: numbers, which never change and are therefore cached, and settings."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pabal import jsontext
from pabal.clock import Clock
from pabal.codec import Codec
from pabal.errors import NameTaken
from pabal.names import check_name
from pabal.sql.postgres import Server
from pabal.sql.schema import Schema
from pabal.store import Counters, KnownSettings, State
from pabal.stores.postgres.consumers import PostgresRegister
from pabal.stores.postgres.counters import PostgresCounters
from pabal.stores.rows import STATES, Row, not_empty, read_settings

_NUMBER = "select id from pabal.queues where name = %s"
_MAKE = """
with made as (insert into pabal.queues (name) values (%(name)s) on conflict do nothing returning id, name),
  found as (
    select id, name from made union all select id, name from pabal.queues where lower(name) = lower(%(name)s)
  ),
  again as (delete from pabal.meta where key in (select 'deleted.' || id from found))
select id, name from found"""
_LISTED = """
select name from pabal.queues as q where not exists (select from pabal.meta where key = 'deleted.' || q.id)
or exists (select from pabal.messages where queue_id = q.id) order by name"""
_DELETE = "select pabal.delete_queue(%s, %s)"
_CONFIGURE = """
with changed as (
    update pabal.queues set settings = %(settings)s
    where id = %(queue)s and (%(any)s or settings::jsonb is not distinct from %(known)s::jsonb) returning id
  ),
  again as (delete from pabal.meta where key in (select 'deleted.' || id from changed)),
  rung as (select pabal.ring(array_agg(id)) from changed having count(*) > 0)
select (select count(*) from changed), (select count(*) from rung)"""


class Queues:
    """The server of a store and its queues: the base of the other parts of the store.

    `_clock` is that of the client: it only tells how far the instants in a call lie ahead. `_known` caches the numbers
    of queues. `_sql` turns statements to the schema of the store.
    """

    def __init__(self, server: Server, schema: Schema, codec: Codec, clock: Clock) -> None:
        self._server = server
        self._sql = schema
        self._codec = codec
        self._clock = clock
        self._known: dict[str, int] = {}
        self._counters = PostgresCounters(server, schema, self._known, clock)
        self._consumers = PostgresRegister(server, schema, clock)

    def counters(self, queue: str) -> Counters:
        """Return the cumulative counts of a queue."""
        self._number(queue)
        return self._counters.total(queue)

    def queues(self) -> list[str]:
        """Return the name of every queue, sorted."""
        return [row[0] for row in self._server.read(lambda link: link.execute(self._sql(_LISTED)).fetchall())]

    def settings(self, queue: str) -> Mapping[str, Any] | None:
        """Return the document given to `configure`, or None."""
        statement = self._sql("select settings from pabal.queues where name = %s")
        found = self._server.read(lambda link: link.execute(statement, (queue,)).fetchone())
        return read_settings(queue, found[0] if found else None)

    def configure(self, queue: str, settings: Mapping[str, Any], *, known: KnownSettings = ...) -> bool:
        """Keep a document for this queue and wake its watchers; with `known`, only if it has that document now."""
        values: dict[str, Any] = {"settings": jsontext.encode(dict(settings)).decode(), "any": known is ...}
        values["known"] = jsontext.encode(dict(known)).decode() if isinstance(known, Mapping) else None
        self._make([queue])
        values["queue"] = self._known[queue]
        found = self._server.run(lambda link: link.execute(self._sql(_CONFIGURE), values).fetchone())
        return found is not None and found[0] > 0

    def delete(self, queue: str, *, force: bool = False) -> int:
        """Remove a queue. Its row stays, since other handles know the number; `meta` says that it was deleted."""
        number = self._number(queue)
        if number is None:
            return 0
        found = self._server.run(lambda link: link.execute(self._sql(_DELETE), (number, force)).fetchone())
        counts = Counter[State]()
        for state, count in jsontext.decode((found or ("{}",))[0].encode()).items():
            counts[STATES[int(state)]] += count
        if counts and not force:
            raise not_empty(queue, counts)
        return sum(counts.values())

    def _number(self, queue: str) -> int | None:
        """Return the number of a queue, or None if there is no such queue."""
        self._server.require_usable()
        number = self._known.get(queue)
        if number is None:
            check_name(queue)
            found = self._server.read(lambda link: link.execute(self._sql(_NUMBER), (queue,)).fetchone())
            if found is not None:
                number = self._known[queue] = found[0]
        return number

    def _make(self, queues: Iterable[str]) -> None:
        """Make those of these queues that are missing; afterwards `_known` has the numbers of all."""
        self._server.require_usable()
        for queue in queues:
            if queue not in self._known:
                number, name = self._make_one(check_name(queue))
                if name != queue:
                    raise NameTaken(f"queue {queue!r} differs from {name!r} only in case: use one of them")
                self._known[queue] = number

    def _make_one(self, queue: str) -> tuple[int, str]:
        rows: list[Row] = []
        while not rows:  # empty if another process made it at the same time: the next look finds it
            rows = self._server.run(lambda link: link.execute(self._sql(_MAKE), {"name": queue}).fetchall())
        return rows[0][0], rows[0][1]
