"""Every change of state in SQL. Each function runs inside a transaction of its caller and leaves the promises kept.

Ids are selected first and rows then changed by key: an update over a subselect costs many times as much.
A group's order is that of `seq`: only its smallest live member may be ready, the others are held until it has left.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple

from pabal.errors import NameTaken, QueueFull
from pabal.sql.sqlite import Transaction
from pabal.store import Draft, Published
from pabal.stores.sqlite.rows import DELAYED, HELD, READY

PROMOTED_AT_ONCE = 10_000

Row = tuple[Any, ...]  # seq, id, attempt, due_at, failure, crc, document, priority, and the token where it is asked for


class Sheet(NamedTuple):
    """A draft with its document written down: `place` is what the row keeps of it."""

    draft: Draft
    place: bytes | str
    crc: int


# Publishing

_INSERT = """
insert into messages (queue_id, state, priority, due_at, moment, id, target, grp, dedup_key, dedup_until, expires_at,
crc, document) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_BY_ID = "select id from messages where queue_id = ? and id = ?"
_BY_KEY = "select id from messages where queue_id = ? and dedup_key = ? and dedup_until > ? limit 1"
_WAITING = """
select (select count(*) from (select 1 from messages where queue_id = ?1 and state = 0 limit ?2))
  + (select count(*) from (select 1 from messages where queue_id = ?1 and state = 1 limit ?2))
  + (select count(*) from (select 1 from messages where queue_id = ?1 and state = 3 and state > 2 limit ?2))"""


def queue_id(tx: Transaction, known: Mapping[str, int], name: str) -> int:
    """Return the number of a queue, which comes into being here if need be."""
    number = known.get(name) or tx.rings.get(name)
    if number is None:
        found = tx.run("select id, name from queues where name = ?", (name,)).fetchone()
        if found is not None and found[1] != name:
            raise NameTaken(f"queue {name!r} differs from {found[1]!r} only in case: use one of them")
        number = found[0] if found else tx.run("insert into queues (name) values (?) returning id", (name,)).get
    tx.rings[name] = number
    return number


def insert(
    tx: Transaction, known: Mapping[str, int], sheets: Sequence[Sheet], now: float, *, limited: bool, look: bool = False
) -> list[Published]:
    """Store what is not there yet. `look` asks for every id, not only those that callers chose."""
    answers: list[Published] = []
    rows: list[Row] = []
    batch = _Batch(tx, now)
    name, number = "", 0
    for (queue, message, delay, given, terms), place, crc in sheets:
        if queue != name:
            name, number = queue, queue_id(tx, known, queue)
        key, group = message.dedup_key or None, message.group or None
        if given or key or look:
            first = batch.first(number, message.id, key, given or look)
            if first is not None:
                answers.append(Published(first, True))
                continue
        state = DELAYED if delay > 0 else READY
        if group is not None:
            state = batch.join(number, group, state)
        if limited and terms.max_waiting:
            batch.count(number, queue, terms.max_waiting)
        until = now + terms.dedup_window if key else None
        rows.append(
            (number, state, message.priority, now + delay, now, message.id, message.target, group, key, until)
            + (message.expires_at, crc, place)
        )
        answers.append(Published(message.id))
    batch.check_waiting()
    if len(rows) == 1:
        tx.change(_INSERT, rows[0])
    elif rows:
        tx.many(_INSERT, rows)
    return answers


class _Batch:
    """What the messages of one call must know of the database and of one another."""

    def __init__(self, tx: Transaction, now: float) -> None:
        self._tx = tx
        self._now = now
        self._firsts: dict[tuple[int, str, str], str] = {}
        self._groups: set[tuple[int, str]] = set()
        self._wanted: dict[tuple[int, str, int], int] = {}

    def first(self, number: int, id: str, key: str | None, by_id: bool) -> str | None:
        """Return the id under which this message is there already."""
        found: str | None = None
        if by_id:
            found = self._firsts.get((number, "id", id)) or self._tx.run(_BY_ID, (number, id)).get
        if found is None and key is not None:
            found = self._firsts.get((number, "key", key)) or self._tx.run(_BY_KEY, (number, key, self._now)).get
        if found is None:
            self._firsts[number, "id", id] = id
            if key is not None:
                self._firsts[number, "key", key] = id
        return found

    def join(self, number: int, group: str, state: int) -> int:
        """Return the state in which a new member enters its group."""
        if state == READY and ((number, group) in self._groups or _head(self._tx, number, group) is not None):
            state = HELD
        self._groups.add((number, group))
        return state

    def count(self, number: int, queue: str, most: int) -> None:
        """Note one more message for a queue that takes so many."""
        self._wanted[number, queue, most] = self._wanted.get((number, queue, most), 0) + 1

    def check_waiting(self) -> None:
        for (number, queue, most), wanted in self._wanted.items():
            waiting = self._tx.run(_WAITING, (number, most + 1)).get
            if waiting + wanted > most:
                raise QueueFull(f"{queue} holds {waiting} waiting messages, {most} at most: {wanted} were refused")


# Groups

_HEAD = "select seq, state from messages where queue_id = ? and grp = ? and state < 4 order by seq limit 1"


def _head(tx: Transaction, number: int, group: str) -> Row | None:
    return next(iter(tx.run(_HEAD, (number, group)).fetchall()), None)


def release(tx: Transaction, number: int, queue: str, groups: Iterable[str | None]) -> None:
    """Let the next of each group come up after one of its members has left."""
    for group in groups:
        if group is not None:
            head = _head(tx, number, group)
            if head is not None and head[1] == HELD:
                tx.change("update messages set state = 0 where seq = ?", (head[0],))
                tx.rings[queue] = number


def turn_of(tx: Transaction, number: int, seq: int, group: str | None) -> int:
    """Return READY, or HELD for a member that is not the head of its group."""
    if group is None:
        return READY
    head = _head(tx, number, group)
    return READY if head is None or head[0] >= seq else HELD


# Leasing

_COLUMNS = "seq, id, attempt, due_at, failure, crc, document, priority"
_READY = f"""
select {_COLUMNS} from messages
where queue_id = ? and state = 0 and target = ? and (expires_at is null or expires_at > ?)
order by priority desc, due_at, id limit ?"""
_LEASE = "update messages set state = 2, attempt = attempt + 1, token = ?, moment = ? where seq = ?"
_DUE = "select seq, grp from messages where queue_id = ? and state = 1 and due_at <= ? order by due_at limit ?"
_PROMOTE = "update messages set state = ?, moment = due_at where seq = ?"
_HELD_BY = f"""
select {_COLUMNS} from messages indexed by messages_inflight
where queue_id = ? and state = 2 and token = ? order by priority desc, due_at, id"""
_LAPSED = f"select {_COLUMNS} from messages where queue_id = ? and state = 2 and moment <= ? order by moment limit ?"
_EXPIRED = f"""
select {_COLUMNS} from messages
where queue_id = ? and expires_at <= ? and state <> 2 and state < 4 order by expires_at limit ?"""
_TAKE_OVER = "update messages set state = 2, token = ?, moment = ? where seq = ?"


def promote(tx: Transaction, number: int, now: float) -> None:
    """Make ready what was delayed until now."""
    due = tx.run(_DUE, (number, now, PROMOTED_AT_ONCE)).fetchall()
    if due:
        tx.many(_PROMOTE, [(turn_of(tx, number, seq, group), seq) for seq, group in due])


def ready(tx: Transaction, number: int, consumer: str, now: float, limit: int) -> list[Row]:
    """Select what a consumer may lease, in the order of G4."""
    rows: list[Row] = tx.run(_READY, (number, "", now, limit)).fetchall()
    own = tx.run(_READY, (number, consumer, now, limit)).fetchall() if consumer else None
    if own:
        return list(islice(merge(rows, own, key=lambda row: (-row[7], row[3], row[1])), limit))
    return rows


def held_by(tx: Transaction, number: int, token: str) -> list[Row]:
    rows: list[Row] = tx.run(_HELD_BY, (number, token)).fetchall()
    return rows


def lease(tx: Transaction, rows: Iterable[Row], token: str, until: float) -> None:
    for row in rows:
        tx.change(_LEASE, (token, until, row[0]))


def take_over(
    tx: Transaction, number: int, limit: int, *, token: str, now: float, boot: float, until: float
) -> list[Row]:
    """Put leases that ran out and waiting messages past their time under a new token."""
    rows: list[Row] = tx.run(_LAPSED, (number, boot, limit)).fetchall()
    if len(rows) < limit:
        rows += tx.run(_EXPIRED, (number, now, limit - len(rows))).fetchall()
    tx.many(_TAKE_OVER, [(token, until, row[0]) for row in rows])
    return rows


_EXTEND = "update messages set moment = ? where queue_id = ? and id = ? and state = 2 and token = ?"


def extend(tx: Transaction, number: int, id: str, token: str, until: float) -> bool:
    return tx.change(_EXTEND, (until, number, id, token)) == 1


# Reviving and purging

_DEAD = "select seq, grp from messages where queue_id = ? and id = ? and state = 5"
_REVIVE = """
update messages set seq = ?, state = ?, attempt = 0, due_at = ?, moment = ?, token = '////////////////', failure = null,
expires_at = null where seq = ?"""
_SPEND = "insert into spent (name) select document from messages where seq = ? and typeof(document) = 'text'"
_DELETE = "delete from messages where seq = ?"


def revive(tx: Transaction, number: int, id: str, now: float) -> bool:
    """Make a dead message ready; it joins its group at the end."""
    found = tx.run(_DEAD, (number, id)).fetchone()
    if found is None:
        return False
    seq, group = found
    state = READY if group is None or _head(tx, number, group) is None else HELD
    place = seq if group is None else tx.run("select max(seq) + 1 from messages").get
    tx.change(_REVIVE, (place, state, now, now, seq))
    return True


def remove(tx: Transaction, number: int, queue: str, rows: Sequence[Row]) -> int:
    """Delete rows given as (seq, group); files they name are noted as spent."""
    keys = [(row[0],) for row in rows]
    tx.many(_SPEND, keys)
    tx.many(_DELETE, keys)
    release(tx, number, queue, {row[1] for row in rows})
    return len(keys)


def take_spent(tx: Transaction, limit: int) -> list[str]:
    """Return names of files that nothing names any more; after this commit they may go."""
    found = tx.run("select seq, name from spent order by seq limit ?", (limit,)).fetchall()
    tx.many("delete from spent where seq = ?", [(row[0],) for row in found])
    return [row[1] for row in found]
