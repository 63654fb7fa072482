"""Lease, extend, take over. Messages that cannot be read are set aside, and others are leased in their place.

Statements select ids first and then change rows by key: an update over a subselect costs many times as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from heapq import merge
from itertools import islice, takewhile
from operator import itemgetter
from typing import Any

from pabal.clock import Clock
from pabal.errors import DecodeError, StoreFailed
from pabal.ids import CONSUMER_TAG, consumer_tag, lease_token
from pabal.message import drop_expiry_if_revived
from pabal.sql.connection import Conflict, Connection, check_text, damaged_index
from pabal.sql.migrate import fact, set_fact
from pabal.sql.writer import Transaction, Update
from pabal.store import Lease, Outcome, Receipt
from pabal.stores.rows import Row, by_group, failure_of, log_corrupt, read_message, unreadable
from pabal.stores.sqlite.groups import release, turn_of
from pabal.stores.sqlite.queues import Queues

SWEEPER_SECONDS = 5.0  # the lease of a consumer that took over an expired message and must settle it
_PROMOTED_AT_ONCE = 10_000

_COLUMNS = "seq, id, attempt, due_at, failure, crc, document, priority, expires_at, grp"
# The last columns say whether a delayed message is due, and whether there is one for consumer ?5: if neither, as usual,
# one statement is enough.
_READY = f"""
select {_COLUMNS}, exists (select 1 from messages where queue_id = ?1 and state = 1 and due_at <= ?3),
  exists (select 1 from messages where queue_id = ?1 and state = 0 and target = ?5)
from messages where queue_id = ?1 and state = 0 and target = ?2 and (expires_at is null or expires_at > ?3)
order by priority desc, due_at, id limit ?4"""
# Queue and state are compared: an entry of a damaged index may lead to any row.
_LEASE_BY = """
update messages set state = 2, attempt = attempt + 1, token = ?1, lease_until = ?2, state_since = ?3
where {} and +queue_id = ?4 and state = """
_LEASE = Update(f"{_LEASE_BY} 0", "seq", 4)
_LEASE_HELD = Update(f"{_LEASE_BY} 3", "seq", 4)
# Those after a member of a group, and whether each may be leased with it.
_SUCCESSORS = f"""
select {_COLUMNS}, state = 3 and target in ('', ?5) and (expires_at is null or expires_at > ?4)
from messages where queue_id = ?1 and grp = ?2 and state < 4 and seq > ?3 order by seq limit ?6"""
_DUE = "select seq, grp from messages where queue_id = ? and state = 1 and due_at <= ? order by due_at limit ?"
_PROMOTE = """
update messages set state = ?, state_since = due_at where seq = ? and queue_id = ? and state = 1 and due_at <= ?"""
_HELD_BY = f"""
select {_COLUMNS} from messages indexed by messages_inflight
where queue_id = ? and state = 2 and token = ? order by priority desc, due_at, id"""
_IS_HELD = "select 1 from messages not indexed where seq = ? and queue_id = ? and state = 2 and token = ?"
_LAPSED = f"""
select {_COLUMNS}, token from messages
where queue_id = ? and state = 2 and lease_until <= ? order by lease_until limit ?"""
_EXPIRED = f"""
select {_COLUMNS}, '' from messages
where queue_id = ? and expires_at <= ? and state <> 2 and state < 4 order by expires_at limit ?"""
_TAGS = "select distinct substr(token, 1, ?) from messages indexed by messages_inflight where state = 2"
_TAKE_OVER = """
update messages set state = 2, token = ?, lease_until = ? where seq = ? and queue_id = ?
and (state = 2 and lease_until <= ? or state <> 2 and state < 4 and expires_at <= ?)"""
# As in a settlement: a null breaks the statement where the row has another id than the index.
_EXTEND = """
update messages set lease_until = iif(id = ?3, ?1, null) where queue_id = ?2 and id = ?3 and state = 2 and token = ?4"""
_SET_ASIDE = "update messages set state = ?, state_since = ?, failure = ? where seq = ? and state = 2 and token = ?"
# Is there a message for this consumer, or a delayed message that is due?
_ANYTHING = """
select exists (select 1 from messages where queue_id = ?1 and state = 1 and due_at <= ?3)
  or exists (select 1 from messages where queue_id = ?1 and state = 0 and target = ''
             and (expires_at is null or expires_at > ?3))
  or exists (select 1 from messages where queue_id = ?1 and state = 0 and target = ?2
             and (expires_at is null or expires_at > ?3))"""
_ANY_LAPSED = """
select exists (select 1 from messages where queue_id = ?1 and state = 2 and lease_until <= ?2)
  or exists (select 1 from messages where queue_id = ?1 and expires_at <= ?3 and state <> 2 and state < 4)"""
_NEXT = """
select (select min(due_at) from messages where queue_id = ?1 and state = 1) - ?2,
  (select min(lease_until) from messages where queue_id = ?1 and state = 2) - ?3,
  (select min(expires_at) from messages where queue_id = ?1 and expires_at > ?4 and state <> 2 and state < 4) - ?2"""

_seq_of, _group_of = itemgetter(0), itemgetter(9)


def _order_of(row: Row) -> tuple[Any, ...]:
    return -row[7], row[3], row[1]


class Leaser(Queues):
    _boot_id = ""  # the boot of which the leases in the database are known to be
    _empty: dict[str, int]  # how many leases in a row found a queue empty

    def lease(
        self,
        queue: str,
        limit: int,
        seconds: float,
        *,
        consumer: str = "",
        token: str = "",
        successive: bool = False,
    ) -> list[Lease]:
        """Lease ready messages.

        A consumer that found the queue empty twice looks before it takes the write lock. After the first time it does
        not: it was woken because there is a message, and unless others are faster a look only costs time.
        """
        number = self._known.get(queue) or self._number(queue)
        if number is None or limit <= 0:
            return []
        if self._clock.boot_id != self._boot_id:
            self._end_leases_of_other_boots()
        tag = self._consumers.tag(consumer, token)
        if self._empty.get(queue, 0) > 1 and not token and not self._anything(number, consumer):
            return []
        asked = again = bool(token)
        token = token or lease_token(tag)
        leases: list[Lease] = []
        now = self._clock.now()
        while True:
            wanted = limit - len(leases)
            take = partial(self._take, number, wanted, seconds, consumer, token, again, successive, now)
            taken = self._db.write(take, durable=False, essential=True)
            if taken is None:
                continue  # other writers had their turn; so many are due that they are promoted in several commits
            rows, held = taken
            found, unread = self._leases(queue, number, token, rows, 0 if held else 1)
            leases += found
            if unread is not None and not leases:
                raise unread
            if unread is not None or held or len(rows) < wanted or len(leases) == limit:
                break
            again = False  # some could not be read and were set aside: take others in their place
        self._empty[queue] = 0 if leases else self._empty.get(queue, 0) + 1
        if leases:
            self._counters.leased(leases, asked=asked)
        return leases

    def expired(self, queue: str, limit: int) -> list[Lease]:
        """Take over leases and messages that ran out; the write lock is taken only if there are any."""
        number = self._number(queue)
        if number is None or limit <= 0:
            return []
        if self._clock.boot_id != self._boot_id:
            self._end_leases_of_other_boots()
        self._consumers.sweep(self._tags_in_flight)
        now, boot, ending = self._clock.now(), self._clock.boot(), lease_token()
        if not self._db.read(lambda db: db.execute(_ANY_LAPSED, (number, boot, now)).get):
            self._counters.expired(())
            return []

        def work(tx: Transaction) -> list[Row]:
            rows: list[Row] = tx.run(_LAPSED, (number, boot, limit)).fetchall()
            if len(rows) < limit:
                rows += tx.run(_EXPIRED, (number, now, limit - len(rows))).fetchall()
            until = boot + SWEEPER_SECONDS
            values = [(consumer_tag(row[-1]) + ending, until, row[0], number, boot, now) for row in rows]
            tx.change_each(_TAKE_OVER, values)
            return rows

        taken: dict[str, list[Row]] = {}
        for row in self._db.write(work, durable=False, essential=True):
            taken.setdefault(consumer_tag(row[-1]), []).append(row)
        leases: list[Lease] = []
        for tag, rows in taken.items():
            found, _ = self._leases(queue, number, tag + ending, rows, 0)
            leases += self._consumers.named(tag, found)
        self._counters.expired(leases)
        return leases

    def extend(self, receipts: Sequence[Receipt], seconds: float) -> list[Outcome]:
        """Move the end of each lease whose token is current."""
        if self._clock.boot_id != self._boot_id:
            self._end_leases_of_other_boots()
        numbers = [self._number(receipt.queue) for receipt in receipts]
        self._consumers.extended(receipts)

        def work(tx: Transaction) -> list[Outcome]:
            until = self._clock.boot() + seconds
            return [
                Outcome.APPLIED
                if number is not None and tx.change(_EXTEND, (until, number, receipt.id, receipt.token))
                else Outcome.LOST
                for receipt, number in zip(receipts, numbers, strict=True)
            ]

        try:
            return self._db.write(work, durable=False, essential=True)
        except Conflict as exc:
            raise self._db.read(damaged_index) from exc

    def now(self) -> float:
        """Return the clock of this process."""
        return self._clock.now()

    def next_due(self, queue: str) -> float | None:
        """Return the seconds until a delay, a lease or a time to live ends; None if there is none."""
        number = self._number(queue)
        if number is None:
            return None
        if self._clock.boot_id != self._boot_id:
            self._end_leases_of_other_boots()
        values = (number, self._clock.now(), self._clock.boot(), float("-inf"))
        [times] = self._db.read(lambda db: db.execute(_NEXT, values).fetchall())
        found: list[float] = [left for left in times if left is not None]  # type: ignore[misc]  # all are real numbers
        return max(0.0, min(found)) if found else None

    def _tags_in_flight(self) -> set[str]:
        return self._db.read(lambda db: {check_text(row[0]) for row in db.execute(_TAGS, (CONSUMER_TAG,))})

    def _anything(self, number: int, consumer: str) -> bool:
        now = self._clock.now()
        return bool(self._db.read(lambda db: db.execute(_ANYTHING, (number, consumer, now)).get))

    def _take(
        self,
        number: int,
        limit: int,
        seconds: float,
        consumer: str,
        token: str,
        again: bool,
        successive: bool,
        now: float,
        tx: Transaction,
    ) -> tuple[list[Row], bool] | None:
        """Lease up to `limit` messages; return their rows, and whether the token held them before.

        Return None if not all that is due could be promoted: call it again, or the order would not be that of G4.
        """
        if again and (held := tx.run(_HELD_BY, (number, token)).fetchall()):
            if not all(tx.run(_IS_HELD, (row[0], number, token)).fetchall() for row in held):
                raise damaged_index(tx.connection)
            return by_group(held, _order_of, _group_of, _seq_of), True
        rows = _ready(tx, number, consumer, now, limit)
        if rows:
            leads, followers = list(map(_seq_of, rows)), list[int]()
            if successive:
                rows, leads, followers = _with_successors(tx, number, consumer, now, rows, limit)
            term = (token, self._clock.boot() + seconds, now, number)
            changed = _LEASE.run(tx, term, leads) + (_LEASE_HELD.run(tx, term, followers) if followers else 0)
            if changed != len(rows):
                raise damaged_index(tx.connection)
        return None if rows is None else (rows, False)

    def _leases(
        self, queue: str, number: int, token: str, rows: Sequence[Row], counted: int
    ) -> tuple[list[Lease], StoreFailed | None]:
        """Return the leases of messages that can be read, and the error of one that cannot be read for now.

        A message that cannot be read for now stays in flight until its lease ends, with those after it in its group.
        `counted` is added to the attempts.
        """
        leases, aside, unread, held = [], [], None, set[str]()
        for seq, id, attempt, due_at, failure, crc, place, _, expires_at, group, *_ in rows:
            if group is not None and group in held:
                continue
            try:
                attempt += counted
                data = place if type(place) is bytes else self._bodies.get(place)
                message = read_message(self._codec, data, crc)
                if message.id != id:
                    raise self._other_message(seq, id, data)
            except (DecodeError, TypeError) as exc:
                if isinstance(exc, TypeError):
                    exc, attempt = DecodeError(f"its row is damaged: {exc}", b""), 0
                aside.append((seq, *unreadable(exc, self._clock.now(), attempt)))
                log_corrupt(queue, id, exc.reason)
                continue
            except StoreFailed as exc:
                unread = exc
                held.add(group)
                continue
            if message.expires_at is not None:
                message = drop_expiry_if_revived(message, expires_at)
            before = None if failure is None else failure_of(failure)
            leases.append(Lease(Receipt(queue, id, token), message, attempt, due_at, before))
        if aside:
            self._db.write(
                partial(_set_aside, number, queue, token, aside, self._clock.now()), durable=False, essential=True
            )
        return leases, unread

    def _other_message(self, seq: int, id: str, data: bytes | None) -> DecodeError | StoreFailed:
        """Return the error for a row whose document is that of another id: the row is damaged, or the index."""
        kept = self._db.read(lambda db: db.execute("select id from messages not indexed where seq = ?", (seq,)).get)
        if kept != id:
            return self._db.read(damaged_index)
        return DecodeError(f"its row has the id {id}, and its document another", data or b"")

    def _end_leases_of_other_boots(self) -> None:
        boot_id = self._clock.boot_id
        if self._db.read(lambda db: fact(db, "boot_id")) != boot_id:
            self._db.write(
                lambda tx: end_leases_of_other_boots(tx.connection, self._clock), durable=False, essential=True
            )
        self._boot_id = boot_id


def end_leases_of_other_boots(connection: Connection, clock: Clock) -> None:
    """Let the leases of another boot run out: its clock readings mean nothing in this boot."""
    boot_id = clock.boot_id
    if fact(connection, "boot_id") != boot_id:
        connection.execute("update messages set lease_until = 0 where state = 2")
        set_fact(connection, "boot_id", boot_id)
        set_fact(connection, "booted_at", clock.now() - clock.boot())


def _ready(tx: Transaction, number: int, consumer: str, now: float, limit: int) -> list[Row] | None:
    """Select the messages that a consumer may lease, in the order of G4; first promote delayed ones that are due.

    Return None if more are due than one commit should promote.
    """
    promoted = False
    while True:
        rows: list[Row] = tx.run(_READY, (number, "", now, limit, consumer)).fetchall()
        if consumer and (not rows or rows[0][11]):
            own: list[Row] = tx.run(_READY, (number, consumer, now, limit, consumer)).fetchall()
            rows = list(islice(merge(rows, own, key=_order_of), limit))
        if promoted or (rows and not rows[0][10]):
            return rows
        due = tx.run(_DUE, (number, now, _PROMOTED_AT_ONCE)).fetchall()
        if not due:
            return rows
        tx.change_each(_PROMOTE, [(turn_of(tx, number, seq, group), seq, number, now) for seq, group in due])
        if len(due) == _PROMOTED_AT_ONCE:
            return None
        promoted = True


def _with_successors(
    tx: Transaction, number: int, consumer: str, now: float, ready: Sequence[Row], limit: int
) -> tuple[list[Row], list[int], list[int]]:
    """Put after each member of a group the next ones that may be leased with it, `limit` in all.

    Return the rows, and the numbers of those that lead and of those that follow.
    """
    rows, leads, followers = list[Row](), list[int](), list[int]()
    for row in ready:
        if len(rows) == limit:
            break
        rows.append(row)
        leads.append(row[0])
        if (group := row[9]) is not None:
            values = (number, group, row[0], now, consumer, limit - len(rows))
            found = list(takewhile(itemgetter(-1), tx.run(_SUCCESSORS, values).fetchall()))
            rows += found
            followers += map(_seq_of, found)
    return rows, leads, followers


def _set_aside(
    number: int, queue: str, token: str, found: Sequence[tuple[int, int, str | None]], now: float, tx: Transaction
) -> None:
    """Take messages that cannot be read out of the way, given as (seq, state, failure)."""
    for seq, state, failure in found:
        if tx.change(_SET_ASIDE, (state, now, failure, seq, token)):
            release(tx, number, queue, tx.run("select grp from messages where seq = ?", (seq,)).fetchall()[0])
