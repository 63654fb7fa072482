"""The store in one SQLite file: rows for messages, one commit for each call or for several that come at once.

Beside `<db>` lie `<db>.lock` (writers queue on it), `<db>.ballast` (room to finish work on a full disk) and
`<db>.bells/<queue>`, rung after each commit that made something ready, since the WAL itself moves too early.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pabal import jsontext
from pabal.clock import Clock, SystemClock
from pabal.codec import Codec
from pabal.codecs.json import JsonCodec
from pabal.errors import DecodeError, PabalError, Uncertain
from pabal.ids import new_token
from pabal.names import check_name
from pabal.sql.migrate import fact, migrate, set_fact
from pabal.sql.sqlite import BUSY_SECONDS, Conflict, Connection, Database, Transaction, table_names
from pabal.store import Draft, Entry, Finding, Lease, Outcome, Published, Receipt, Settlement, State
from pabal.stores.place import require_local
from pabal.stores.sqlite import moves, reads
from pabal.stores.sqlite.bells import Bells
from pabal.stores.sqlite.bodies import Bodies, InRow
from pabal.stores.sqlite.check import check
from pabal.stores.sqlite.desk import Desk
from pabal.stores.sqlite.rows import CORRUPT, INFLIGHT, STATES, failure_of, fault, read_message
from pabal.stores.sqlite.seed import Tables, adopt, prepare_tables, set_tables_aside, show_tables
from pabal.stores.sqlite.settle import Settling, set_aside
from pabal.watch import PathWatch

_USUAL = Tables()
SWEEPER_SECONDS = 5.0  # how long who took over a message has to settle it


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
        self._known: dict[str, int] = {}
        self._short: set[str] = set()  # queues whose last lease got less than it asked for
        self._boot_id = ""
        path = Path(os.path.abspath(path))
        require_local(path.parent)
        self._tables = tables
        self._db = Database(path, prepare=self._prepare, committed=self._ring, busy=busy)
        self._bells = Bells(path.with_name(f"{path.name}.bells"))
        self._desk = Desk(self._db, self._codec, self._bodies)

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
        sheets = self._desk.write_down(drafts)
        try:
            try:
                answers = self._db.write(lambda tx: self._insert(tx, sheets), durable=True)
            except Conflict:
                # An id that was said to be new is there: this repeats a publish whose outcome was unknown.
                answers = self._db.write(lambda tx: self._insert(tx, sheets, look=True), durable=True)
        except Uncertain as exc:
            raise Uncertain(str(exc), tuple(draft.message.id for draft in drafts)) from exc.__cause__
        except (PabalError, Conflict):
            self._bodies.drop(sheet.place for sheet in sheets)
            raise
        if self._bodies.apart:
            self._bodies.drop(sheet.place for sheet, answer in zip(sheets, answers, strict=True) if answer.duplicate)
        return answers

    def _insert(self, tx: Transaction, sheets: Sequence[moves.Sheet], look: bool = False) -> list[Published]:
        self._db.require_room(tx)
        self._bodies.confirm(sheet.place for sheet in sheets)
        return moves.insert(tx, self._known, sheets, self._clock.now(), limited=True, look=look)

    # Leasing

    def lease(self, queue: str, limit: int, seconds: float, *, consumer: str = "", token: str = "") -> list[Lease]:
        """Lease what is ready. Look before taking the write lock where there was too little last time."""
        number = self._number(queue)
        if number is None or limit <= 0:
            return []
        self._check_boot()
        if queue in self._short and not token:
            now = self._clock.now()
            if not self._db.read(lambda db: reads.anything(db, number, consumer, now)):
                return []
        leases: list[Lease] = []
        again = bool(token)
        token = token or new_token()
        while True:
            wanted = limit - len(leases)
            rows, held = self._take(number, wanted, seconds, consumer, token, again)
            leases += self._leases(queue, number, token, rows, 0 if held else 1)
            if held or len(rows) < wanted or len(leases) == limit:
                break
            again = False  # some could not be read and were set aside: take others in their place
        (self._short.add if len(leases) < limit else self._short.discard)(queue)
        return leases

    def _take(
        self, number: int, limit: int, seconds: float, consumer: str, token: str, again: bool
    ) -> tuple[list[moves.Row], bool]:
        def work(tx: Transaction) -> tuple[list[moves.Row], bool]:
            if again and (held := moves.held_by(tx, number, token)):
                return held, True
            now = self._clock.now()
            moves.promote(tx, number, now)
            rows = moves.ready(tx, number, consumer, now, limit)
            if rows:
                moves.lease(tx, rows, token, self._clock.boot() + seconds)
            return rows, False

        return self._db.write(work, durable=False, essential=True)

    def expired(self, queue: str, limit: int) -> list[Lease]:
        """Take over what ran out; the write lock is taken only if there is something."""
        number = self._number(queue)
        if number is None or limit <= 0:
            return []
        self._check_boot()
        now, boot, token = self._clock.now(), self._clock.boot(), new_token()
        if not self._db.read(lambda db: reads.lapsed(db, number, boot, now)):
            return []
        rows = self._db.write(
            lambda tx: moves.take_over(
                tx, number, limit, token=token, now=now, boot=boot, until=boot + SWEEPER_SECONDS
            ),
            durable=False,
            essential=True,
        )
        return self._leases(queue, number, token, rows, 0)

    def extend(self, receipts: Sequence[Receipt], seconds: float) -> list[Outcome]:
        """Move the end of each lease whose token is current."""
        self._check_boot()
        numbers = [self._number(receipt.queue) for receipt in receipts]

        def work(tx: Transaction) -> list[Outcome]:
            until = self._clock.boot() + seconds
            return [
                Outcome.APPLIED
                if number is not None and moves.extend(tx, number, receipt.id, receipt.token, until)
                else Outcome.LOST
                for receipt, number in zip(receipts, numbers, strict=True)
            ]

        return self._db.write(work, durable=False, essential=True)

    def _leases(self, queue: str, number: int, token: str, rows: Sequence[moves.Row], counted: int) -> list[Lease]:
        leases, unreadable = [], []
        for seq, id, attempt, due_at, failure, crc, place, _ in rows:
            attempt += counted
            try:
                message = read_message(self._codec, self._bodies, place, crc)
            except DecodeError as exc:
                unreadable.append((seq, *fault(exc, self._clock.now(), attempt)))
                continue
            leases.append(Lease(Receipt(queue, id, token), message, attempt, due_at, failure_of(failure)))
        if unreadable:
            self._db.write(
                lambda tx: set_aside(tx, number, queue, token, unreadable, self._clock.now()),
                durable=False,
                essential=True,
            )
        return leases

    # Settling

    def settle(self, settlements: Sequence[Settlement], *, durable: bool = False) -> list[Outcome]:
        """Apply each verdict that is current, with its follow-ups, in one commit."""
        for receipt, _ in settlements:
            if receipt.queue not in self._known:
                self._number(receipt.queue)
        then = {
            place: self._desk.write_down(verdict.then, essential=True)
            for place, (_, verdict) in enumerate(settlements)
            if verdict.then
        }
        work = Settling(settlements, self._known, then, files=self._bodies.apart)
        confirmed = [sheet.place for sheets in then.values() for sheet in sheets]

        def run(tx: Transaction) -> list[Outcome]:
            self._bodies.confirm(confirmed)
            return work(tx, self._clock.now())

        try:
            outcomes = self._db.write(run, durable=durable or bool(then), essential=True)
        except Uncertain:
            raise
        except PabalError:
            self._bodies.drop(confirmed)
            raise
        if self._bodies.apart:
            self._bodies.drop(work.unused)
        return outcomes

    # Looking

    def next_due(self, queue: str) -> float | None:
        """Return the seconds until time alone changes something here."""
        number = self._number(queue)
        if number is None:
            return None
        self._check_boot()
        now, boot = self._clock.now(), self._clock.boot()
        return self._db.read(lambda db: reads.next_due(db, number, now, boot))

    def counts(self, queue: str) -> dict[State, int]:
        """Count the messages in each state."""
        number = self._number(queue)
        if number is None:
            return dict.fromkeys(State, 0)
        return self._db.read(lambda db: reads.counts(db, number))

    def browse(self, queue: str, state: State, *, after: str = "", limit: int = 100) -> list[Entry]:
        """List messages of one state."""
        number = self._number(queue)
        if number is None:
            return []
        rows = self._db.read(lambda db: reads.page(db, number, State(state), after, limit))
        return [self._entry(queue, row) for row in rows]

    def find(self, queue: str, id: str) -> Entry | None:
        """Return one message, in whatever state it is."""
        number = self._number(queue)
        row = None if number is None else self._db.read(lambda db: reads.find(db, number, id))
        return None if row is None else self._entry(queue, row)

    def _entry(self, queue: str, row: reads.Row) -> Entry:
        _, id, state, attempt, due_at, _, _, failure, crc, place, token = row
        message, data = None, b""
        try:
            message = read_message(self._codec, self._bodies, place, crc)
        except DecodeError as exc:
            data = exc.data
        if state == CORRUPT and message is not None:
            message, data = None, self._bodies.get(place) or b""
        cursor, held = reads.cursor_of(row), token if state == INFLIGHT else ""
        return Entry(queue, id, STATES[state], attempt, due_at, message, failure_of(failure), data, cursor, held)

    def queues(self) -> list[str]:
        """Name every queue, sorted."""
        return self._db.read(
            lambda db: [row[0] for row in db.execute("select name from queues order by name collate binary")]
        )

    # Tending

    def revive(self, queue: str, ids: Sequence[str]) -> list[str]:
        """Make dead messages ready again."""
        number = self._number(queue)
        if number is None:
            return []

        def work(tx: Transaction) -> list[str]:
            now = self._clock.now()
            found = [id for id in ids if moves.revive(tx, number, id, now)]
            if found:
                tx.rings[queue] = number
            return found

        return self._db.write(work, durable=True, essential=True)

    def purge(
        self, queue: str, state: State, *, age: float = 0.0, limit: int = 1000, ids: Sequence[str] | None = None
    ) -> int:
        """Remove a slice of what has been in this state long enough, and the files that settled messages left."""
        number = self._number(queue)
        if number is None or state is State.INFLIGHT:
            return 0
        before = self._clock.now() - age if age > 0 else float("inf")
        removed = 0
        if self._db.read(lambda db: reads.purgeable(db.execute, number, state, before, 1, ids)):
            removed = self._db.write(
                lambda tx: moves.remove(tx, number, queue, reads.purgeable(tx.run, number, state, before, limit, ids)),
                durable=False,
                essential=True,
            )
            self._db.ballast.restore()
        self._sweep(limit)
        return removed

    def _sweep(self, limit: int) -> None:
        if self._bodies.apart and self._db.read(lambda db: db.execute("select exists (select 1 from spent)").get):
            # Synced, so that no power cut can bring back a row whose file is gone.
            self._bodies.drop(self._db.write(lambda tx: moves.take_spent(tx, limit), durable=True, essential=True))

    def settings(self, queue: str) -> Mapping[str, Any] | None:
        """Return the document given to `configure`, or None."""
        text = self._db.read(
            lambda db: (
                db.execute("select settings from queues where name = ?1 and name = ?1 collate binary", (queue,)).get
            )
        )
        settings: Mapping[str, Any] | None = None if text is None else jsontext.decode(text.encode())
        return settings

    def configure(self, queue: str, settings: Mapping[str, Any]) -> None:
        """Keep a document for this queue and wake its watchers."""
        text = jsontext.encode(dict(settings)).decode()
        check_name(queue)

        def work(tx: Transaction) -> None:
            number = moves.queue_id(tx, self._known, queue)
            tx.run("update queues set settings = ? where id = ?", (text, number))

        self._db.write(work, durable=True, essential=True)

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
            "ballast": "present" if self._db.ballast.present else "missing",
        }

    def check(self, *, repair: bool) -> list[Finding]:
        """Look for damage and leftovers, and mend them if asked."""
        self._check_boot()
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
        self._known.update(rings)
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
        self._settle_boot(connection)

    def _settle_boot(self, connection: Connection) -> None:
        boot_id = self._clock.boot_id
        if fact(connection, "boot_id") != boot_id:
            # Readings of another boot's clock mean nothing here: every lease made then has run out.
            connection.execute("update messages set moment = 0 where state = 2")
            set_fact(connection, "boot_id", boot_id)
            set_fact(connection, "booted_at", self._clock.now() - self._clock.boot())
        self._boot_id = boot_id

    def _check_boot(self) -> None:
        if self._clock.boot_id != self._boot_id:
            self._db.write(lambda tx: self._settle_boot(tx.connection), durable=False, essential=True)

    def _number(self, queue: str) -> int | None:
        number = self._known.get(queue)
        if number is None:
            check_name(queue)
            number = self._db.read(
                lambda db: (
                    db.execute("select id from queues where name = ?1 and name = ?1 collate binary", (queue,)).get
                )
            )
            if number is not None:
                self._known[queue] = number
        return number
