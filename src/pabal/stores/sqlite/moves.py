"""Changes of state in SQL: leasing, taking over, reviving, removing. Each runs inside a transaction of its caller.

Ids are selected first and rows then changed by key: an update over a subselect costs many times as much.
"""

from collections.abc import Iterable, Sequence
from heapq import merge
from itertools import islice
from typing import Any

from pabal.sql.writer import Transaction
from pabal.stores.sqlite.groups import head, release, turn_of
from pabal.stores.sqlite.rows import HELD, READY

PROMOTED_AT_ONCE = 10_000

Row = tuple[Any, ...]  # what _COLUMNS says, and whether something delayed is due

# Leasing

_COLUMNS = "seq, id, attempt, due_at, failure, crc, document, priority, expires_at"
_READY = f"""
select {_COLUMNS}, exists (select 1 from messages where queue_id = ?1 and state = 1 and due_at <= ?3) from messages
where queue_id = ?1 and state = 0 and target = ?2 and (expires_at is null or expires_at > ?3)
order by priority desc, due_at, id limit ?4"""
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


def ready(tx: Transaction, number: int, consumer: str, now: float, limit: int) -> list[Row]:
    """Select what a consumer may lease, in the order of G4, once what was delayed until now is ready too."""
    rows = _ready(tx, number, consumer, now, limit)
    # The rows themselves say whether anything is due: one statement where there is nothing to do.
    if (not rows or rows[0][9]) and _promote(tx, number, now):
        return _ready(tx, number, consumer, now, limit)
    return rows


def _ready(tx: Transaction, number: int, consumer: str, now: float, limit: int) -> list[Row]:
    rows: list[Row] = tx.run(_READY, (number, "", now, limit)).fetchall()
    own = tx.run(_READY, (number, consumer, now, limit)).fetchall() if consumer else None
    if own:
        return list(islice(merge(rows, own, key=lambda row: (-row[7], row[3], row[1])), limit))
    return rows


def _promote(tx: Transaction, number: int, now: float) -> bool:
    due = tx.run(_DUE, (number, now, PROMOTED_AT_ONCE)).fetchall()
    if due:
        tx.many(_PROMOTE, [(turn_of(tx, number, seq, group), seq) for seq, group in due])
    return bool(due)


def held_by(tx: Transaction, number: int, token: str) -> list[Row]:
    rows: list[Row] = tx.run(_HELD_BY, (number, token)).fetchall()
    return rows


def lease(tx: Transaction, rows: Iterable[Row], token: str, until: float) -> None:
    tx.many(_LEASE, [(token, until, row[0]) for row in rows])


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
    state = READY if group is None or head(tx, number, group) is None else HELD
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


def take_spent(limit: int, tx: Transaction) -> list[str]:
    """Return names of files that nothing names any more; after this commit they may go."""
    found = tx.run("select seq, name from spent order by seq limit ?", (limit,)).fetchall()
    tx.many("delete from spent where seq = ?", [(row[0],) for row in found])
    return [row[1] for row in found]
