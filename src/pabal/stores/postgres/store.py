"""The store on a PostgreSQL server: each call is one statement, and so one round trip and one transaction.

Times are the server's; the clock of the machine that asks is never read. What each statement does is in `queues_*.sql`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pabal.codec import Codec
from pabal.codecs.json import JsonCodec
from pabal.names import check_name
from pabal.sql.postgres import PATIENCE_SECONDS, Server
from pabal.store import Draft, Entry, Finding, Lease, Outcome, Published, Receipt, Settlement, State
from pabal.stores.postgres.bells import Bells, BellWatch
from pabal.stores.postgres.carrying import carry
from pabal.stores.postgres.check import check
from pabal.stores.postgres.leasing import Leasing
from pabal.stores.postgres.publishing import Publishing
from pabal.stores.postgres.queues import Queues
from pabal.stores.postgres.reads import Reads, cursor_of
from pabal.stores.postgres.rows import HELD, NUMBERS, READY, entry_of
from pabal.stores.postgres.schema import Schema
from pabal.stores.postgres.settle import Settling

_PURGE = "select pabal.purge(%s, %s::smallint[], %s, %s, %s::text[])"
_FACTS = """
select current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit'),
  (select value from pabal.meta where key = 'schema.queues')"""


class PostgresStore:
    """Messages on a PostgreSQL server. Threads, processes and machines may share it."""

    def __init__(
        self,
        url: str,
        *,
        schema: str = "pabal",
        codec: Codec | None = None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._codec = codec or JsonCodec()
        self._sql = Schema(schema)
        self._reads = Reads(self._sql)
        self._server = Server(url, patience=patience)
        self._queues = Queues(self._server, self._sql)
        self._publishing = Publishing(self._server, self._sql, self._queues, self._codec)
        self._leasing = Leasing(self._server, self._sql, self._queues, self._codec)
        self._bells = Bells(self._server, self._sql)
        try:
            self._server.run(lambda link: self._sql.migrate(link, __package__))
        except BaseException:
            self._server.close()
            raise

    @staticmethod
    def exists(url: str, *, schema: str = "pabal", patience: float = PATIENCE_SECONDS) -> bool:
        """Say whether a store is there, changing nothing."""
        server = Server(url, patience=patience)
        try:
            return server.read(lambda link: Schema(schema).version(link) > 0)
        finally:
            server.close()

    # Publishing and leasing

    def publish(self, drafts: Sequence[Draft]) -> list[Published]:
        """Store the messages durably, all or none."""
        return self._publishing.publish(drafts)

    def publish_in(self, connection: Any, drafts: Sequence[Draft]) -> list[Published]:
        """Publish inside a transaction of the application's own psycopg connection: it is there if that commits."""
        return self._publishing.publish_in(connection, drafts)

    def lease(self, queue: str, limit: int, seconds: float, *, consumer: str = "", token: str = "") -> list[Lease]:
        """Lease what is ready."""
        return self._leasing.lease(queue, limit, seconds, consumer, token)

    def expired(self, queue: str, limit: int) -> list[Lease]:
        """Take over what ran out."""
        return self._leasing.expired(queue, limit)

    def extend(self, receipts: Sequence[Receipt], seconds: float) -> list[Outcome]:
        """Move the end of each lease whose token is current."""
        return self._leasing.extend(receipts, seconds)

    def settle(self, settlements: Sequence[Settlement], *, durable: bool = False) -> list[Outcome]:
        """Apply each verdict that is current, with its follow-ups. Every commit here is durable."""
        self._server.require_usable()
        work = Settling(settlements, self._codec)
        for queue in {receipt.queue for receipt, _ in settlements}:
            self._queues.number(queue)
        self._queues.make(work.queues)
        outcomes: dict[int, Outcome] = {}
        for places in work.rounds:
            found = self._server.run(partial(work.run, places, self._queues.known, self._sql))
            outcomes.update(zip(places, found, strict=True))
        return [outcomes[place] for place in range(len(settlements))]

    # Looking

    def next_due(self, queue: str) -> float | None:
        """Return the seconds until time alone changes something here."""
        number = self._queues.number(queue)
        return None if number is None else self._server.read(lambda link: self._reads.next_due(link, number))

    def counts(self, queue: str) -> dict[State, int]:
        """Count the messages in each state."""
        number = self._queues.number(queue)
        if number is None:
            return dict.fromkeys(State, 0)
        return self._server.read(lambda link: self._reads.counts(link, number))

    def browse(self, queue: str, state: State, *, after: str = "", limit: int = 100) -> list[Entry]:
        """List messages of one state."""
        number = self._queues.number(queue)
        if number is None:
            return []
        rows = self._server.read(lambda link: self._reads.page(link, number, State(state), after, limit))
        return [entry_of(queue, row, cursor_of(row), self._codec) for row in rows]

    def find(self, queue: str, id: str) -> Entry | None:
        """Return one message, in whatever state it is."""
        number = self._queues.number(queue)
        row = None if number is None else self._server.read(lambda link: self._reads.find(link, number, id))
        return None if row is None else entry_of(queue, row, cursor_of(row), self._codec)

    def queues(self) -> list[str]:
        """Name every queue, sorted."""
        return self._queues.names()

    def settings(self, queue: str) -> Mapping[str, Any] | None:
        """Return the document given to `configure`, or None."""
        return self._queues.settings(queue)

    # Tending

    def revive(self, queue: str, ids: Sequence[str]) -> list[str]:
        """Make dead messages ready again."""
        number = self._queues.number(queue)
        if number is None:
            return []
        statement = self._sql("select pabal.revive(%s, %s::text[])")
        names = list(dict.fromkeys(ids))
        found = self._server.run(lambda link: link.execute(statement, (number, names)).fetchone(), repeatable=False)
        return list((found or ((),))[0])

    def purge(
        self, queue: str, state: State, *, age: float = 0.0, limit: int = 1000, ids: Sequence[str] | None = None
    ) -> int:
        """Remove a slice of what has been in this state long enough."""
        number = self._queues.number(queue)
        if number is None or state is State.INFLIGHT:
            return 0
        among = [READY, HELD] if state is State.READY else [NUMBERS[State(state)]]
        values = (number, among, age, limit, None if ids is None else list(ids))
        found = self._server.run(lambda link: link.execute(self._sql(_PURGE), values).fetchone())
        return int((found or (0,))[0])

    def carry(self, queue: str, entries: Sequence[Entry], *, window: float = 300.0) -> list[str]:
        """Take in messages as they stand in another store."""
        self._queues.make([queue])
        return carry(self._server, self._sql, self._codec, (queue, self._queues.known[queue]), entries, window)

    def configure(self, queue: str, settings: Mapping[str, Any]) -> None:
        """Keep a document for this queue and wake its watchers."""
        self._queues.configure(queue, settings)

    def facts(self) -> Mapping[str, str]:
        """Say where it is, how it is kept and what wakes its readers."""
        found = self._server.read(lambda link: link.execute(self._sql(_FACTS)).fetchone())
        version, fsync, synchronous, schema = found or ("", "", "", "")
        watch = self.watch([])
        woken_by = watch.woken_by
        watch.close()
        return {
            "place": f"{self._server.place}, schema {self._sql.name}",
            "format": f"queues schema {schema}",
            "server": f"PostgreSQL {version}, fsync {fsync}, synchronous_commit {synchronous}",
            "woken by": woken_by,
        }

    def check(self, *, repair: bool) -> list[Finding]:
        """Look for damage and leftovers, and mend them if asked."""
        return check(self._server, self._sql, self._codec, repair=repair)

    def watch(self, queues: Sequence[str]) -> BellWatch:
        """Listen for these queues."""
        return self._bells.watch([check_name(queue) for queue in queues])

    def close(self) -> None:
        """Close the connections."""
        self._server.close()
        self._bells.close()
