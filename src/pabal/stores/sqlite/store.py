"""The store in one SQLite file: rows for messages, one commit for each call or for several that come at once.

Beside `<db>` lie `<db>.lock` (writers queue on it), `<db>.ballast` (room to finish work on a full disk) and
`<db>.bells/<queue>`, rung after each commit that made something ready, since the WAL itself moves too early. A commit
is seen through other handles while it is on its way to the disk.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pabal.clock import Clock, SystemClock
from pabal.codec import Codec
from pabal.codecs.json import JsonCodec
from pabal.errors import PabalError, Uncertain
from pabal.names import check_name
from pabal.sql.connection import BUSY_SECONDS, Conflict, Connection, table_names
from pabal.sql.migrate import fact, migrate
from pabal.sql.sqlite import Database
from pabal.sql.writer import Transaction
from pabal.store import Draft, Entry, Finding, Lease, Outcome, Published, Receipt, Settlement, State
from pabal.stores.place import require_local
from pabal.stores.sqlite import reads
from pabal.stores.sqlite.bells import Bells
from pabal.stores.sqlite.bodies import Bodies, InRow
from pabal.stores.sqlite.boot import Boot
from pabal.stores.sqlite.carrying import Carrying
from pabal.stores.sqlite.check import check
from pabal.stores.sqlite.encoding import Encoded, Encoding
from pabal.stores.sqlite.inserting import insert
from pabal.stores.sqlite.leasing import Leasing
from pabal.stores.sqlite.queues import Queues
from pabal.stores.sqlite.rows import entry_of
from pabal.stores.sqlite.seed import Tables, adopt, prepare_tables, set_tables_aside, show_tables
from pabal.stores.sqlite.settle import Settling
from pabal.stores.sqlite.tending import Tending
from pabal.watch import PathWatch

_USUAL = Tables()


class SqliteStore:
    """Messages in one SQLite file. Threads and processes may share it."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock | None = None,
        codec: Codec | None = None,
        bodies: Bodies | None = None,
        busy: float = BUSY_SECONDS,
        tables: Tables = _USUAL,
    ) -> None:
        self._clock = clock or SystemClock()
        self._codec = codec or JsonCodec()
        self._bodies = bodies or InRow()
        self._tables = tables
        self._boot = Boot(self._clock)
        path = Path(os.path.abspath(path))
        require_local(path.parent)
        self._db = Database(path, prepare=self._prepare, committed=self._ring, busy=busy, seen_early=True)
        try:
            self._bells = Bells(path.with_name(f"{path.name}.bells"))
        except BaseException:
            self._db.close()
            raise
        self._queues = Queues(self._db)
        self._encoding = Encoding(self._db.room, self._codec, self._bodies)
        self._tending = Tending(self._db, self._queues, self._clock, self._bodies)
        self._carrying = Carrying(self._db, self._queues, self._clock, self._codec, self._bodies)
        self._leasing = Leasing(self._db, self._queues, self._boot, self._clock, self._codec, self._bodies)

    @staticmethod
    def exists(path: Path) -> bool:
        """Say whether a store, ours or of the original form, is there, touching nothing."""
        names = table_names(path)
        return "messages" in names and "queues" in names or "kv" in names and "msg_index" in names

    # Publishing

    def publish(self, drafts: Sequence[Draft]) -> list[Published]:
        """Store the messages durably, all or none."""
        if not drafts:
            return []
        items = self._encoding.encode(drafts)
        try:
            try:
                answers = self._db.write(partial(self._insert, items, False), durable=True)
            except Conflict:
                # An id that was said to be new is there: this repeats a publish whose outcome was unknown.
                answers = self._db.write(partial(self._insert, items, True), durable=True)
        except Uncertain as exc:
            raise Uncertain(str(exc), tuple(draft.message.id for draft in drafts)) from exc.__cause__
        except (PabalError, Conflict):
            self._bodies.drop(place for _, place, _ in items)
            raise
        if self._bodies.apart:
            self._bodies.drop(item[1] for item, answer in zip(items, answers, strict=True) if answer.duplicate)
        return answers

    def _insert(self, items: Sequence[Encoded], look: bool, tx: Transaction) -> list[Published]:
        self._db.room.require(tx.connection)
        if self._bodies.apart:
            self._bodies.confirm(place for _, place, _ in items)
        return insert(tx, self._queues.known, items, self._clock.now(), limited=True, look=look)

    # Leasing and settling

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
        """Apply each verdict that is current, with its follow-ups, in one commit."""
        known = self._queues.known
        then: dict[int, Sequence[Encoded]] = {}
        try:
            for place, (receipt, verdict) in enumerate(settlements):
                if receipt.queue not in known:
                    self._queues.number(receipt.queue)
                if verdict.then:
                    then[place] = self._encoding.encode(verdict.then, essential=True)
            work = Settling(settlements, then, known, self._clock, self._bodies)
            outcomes = self._db.write(work, durable=durable or bool(then), essential=True)
        except Uncertain:
            raise
        except PabalError:
            self._bodies.drop(place for items in then.values() for _, place, _ in items)
            raise
        if then:
            self._bodies.drop(work.unused)
        return outcomes

    # Looking

    def next_due(self, queue: str) -> float | None:
        """Return the seconds until time alone changes something here."""
        number = self._queues.number(queue)
        if number is None:
            return None
        self._boot.check(self._db)
        now, boot = self._clock.now(), self._clock.boot()
        return self._db.read(lambda db: reads.next_due(db, number, now, boot))

    def counts(self, queue: str) -> dict[State, int]:
        """Count the messages in each state."""
        number = self._queues.number(queue)
        if number is None:
            return dict.fromkeys(State, 0)
        return self._db.read(lambda db: reads.counts(db, number))

    def browse(self, queue: str, state: State, *, after: str = "", limit: int = 100) -> list[Entry]:
        """List messages of one state."""
        number = self._queues.number(queue)
        if number is None:
            return []
        rows = self._db.read(lambda db: reads.page(db, number, State(state), after, limit))
        return [self._entry(queue, row) for row in rows]

    def find(self, queue: str, id: str) -> Entry | None:
        """Return one message, in whatever state it is."""
        number = self._queues.number(queue)
        row = None if number is None else self._db.read(lambda db: reads.find(db, number, id))
        return None if row is None else self._entry(queue, row)

    def _entry(self, queue: str, row: reads.Row) -> Entry:
        return entry_of(queue, row, reads.cursor_of(row), self._codec, self._bodies)

    def queues(self) -> list[str]:
        """Name every queue, sorted."""
        return self._queues.names()

    def settings(self, queue: str) -> Mapping[str, Any] | None:
        """Return the document given to `configure`, or None."""
        return self._queues.settings(queue)

    # Tending

    def revive(self, queue: str, ids: Sequence[str]) -> list[str]:
        """Make dead messages ready again."""
        return self._tending.revive(queue, ids)

    def purge(
        self, queue: str, state: State, *, age: float = 0.0, limit: int = 1000, ids: Sequence[str] | None = None
    ) -> int:
        """Remove a slice of what has been in this state long enough, and files that settled messages left."""
        return self._tending.purge(queue, state, age, limit, ids)

    def carry(self, queue: str, entries: Sequence[Entry], *, window: float = 300.0) -> list[str]:
        """Take in messages as they stand in another store."""
        return self._carrying.carry(queue, entries, window)

    def configure(self, queue: str, settings: Mapping[str, Any]) -> None:
        """Keep a document for this queue and wake its watchers."""
        self._queues.configure(queue, settings)

    def facts(self) -> Mapping[str, str]:
        """Say where it is, what wakes its readers and whether it could finish its work on a full disk."""
        watch = self.watch([])
        watch.close()
        version = self._db.read(lambda db: fact(db, "schema.queues"))
        return {
            "place": str(self._db.path),
            "format": f"queues schema {version}",
            "bodies": "files" if self._bodies.apart else "rows",
            "woken by": watch.woken_by,
            "ballast": "present" if self._db.room.ballast.present else "missing",
        }

    def check(self, *, repair: bool) -> list[Finding]:
        """Look for damage and leftovers, and mend them if asked."""
        self._boot.check(self._db)
        return check(self._db, self._bodies, self._codec, self._clock, repair=repair)

    def close(self) -> None:
        """Release files and handles."""
        self._db.close()
        self._bells.close()

    # Waking

    def watch(self, queues: Sequence[str]) -> PathWatch:
        """Watch the bells of these queues."""
        self._db.require_usable()
        return self._bells.watch([check_name(queue) for queue in queues])

    def _ring(self, rings: dict[str, int]) -> None:
        self._queues.known.update(rings)
        self._bells.ring(rings)

    # Opening

    def _prepare(self, connection: Connection) -> None:
        if self._tables != _USUAL:
            prepare_tables(connection, self._tables)
        seed = set_tables_aside(connection)
        migrate(connection, "queues", __package__)
        if seed:
            adopt(connection, self._codec, self._bodies, self._clock)
        show_tables(connection, self._tables)
        self._boot.settle(connection)
