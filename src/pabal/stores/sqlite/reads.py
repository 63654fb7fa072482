"""What can be asked of the database without changing it. Pages are found by key, never by offset."""

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Any

from pabal.sql.connection import Connection
from pabal.store import State
from pabal.stores.cursors import number_in, split_cursor
from pabal.stores.sqlite.rows import DELAYED, HELD, INFLIGHT, NUMBERS, READY, STATES

Row = tuple[Any, ...]

COLUMNS = "seq, id, state, attempt, due_at, moment, priority, failure, crc, document, token, expires_at"
_FIRST, _LAST = float("-inf"), float("inf")

# Is there anything for this consumer, or anything delayed that is due?
_ANYTHING = """
select exists (select 1 from messages where queue_id = ?1 and state = 1 and due_at <= ?3)
  or exists (select 1 from messages where queue_id = ?1 and state = 0 and target = ''
             and (expires_at is null or expires_at > ?3))
  or exists (select 1 from messages where queue_id = ?1 and state = 0 and target = ?2
             and (expires_at is null or expires_at > ?3))"""
_LAPSED = """
select exists (select 1 from messages where queue_id = ?1 and state = 2 and moment <= ?2)
  or exists (select 1 from messages where queue_id = ?1 and expires_at <= ?3 and state <> 2 and state < 4)"""
_NEXT = """
select (select min(due_at) from messages where queue_id = ?1 and state = 1) - ?2,
  (select min(moment) from messages where queue_id = ?1 and state = 2) - ?3,
  (select min(expires_at) from messages where queue_id = ?1 and expires_at > ?4 and state <> 2 and state < 4) - ?2"""
_COUNTS = """
select 0, count(*) from messages where queue_id = ?1 and state = 0
union all select 1, count(*) from messages where queue_id = ?1 and state = 1
union all select 2, count(*) from messages where queue_id = ?1 and state = 2
union all select state, count(*) from messages where queue_id = ?1 and state > 2 group by state"""
_TARGET = "select min(target) from messages where queue_id = ? and state = 0 and target > ?"
_SAME_PRIORITY = f"""
select {COLUMNS} from messages
where queue_id = ? and state = 0 and target = ? and priority = ? and (due_at, id) > (?, ?)
order by due_at, id limit ?"""
_LOWER_PRIORITY = f"""
select {COLUMNS} from messages where queue_id = ? and state = 0 and target = ? and priority < ?
order by priority desc, due_at, id limit ?"""
_PAGES = {
    DELAYED: ("due_at", "state = 1"),
    INFLIGHT: ("moment", "state = 2"),
}


def anything(db: Connection, number: int, consumer: str, now: float) -> bool:
    return bool(db.execute(_ANYTHING, (number, consumer, now)).get)


def lapsed(db: Connection, number: int, boot: float, now: float) -> bool:
    return bool(db.execute(_LAPSED, (number, boot, now)).get)


def any_spent(db: Connection) -> bool:
    return bool(db.execute("select exists (select 1 from spent)").get)


def next_due(db: Connection, number: int, now: float, boot: float) -> float | None:
    """Return the seconds until time alone changes something; None if nothing."""
    times: Any = db.execute(_NEXT, (number, now, boot, _FIRST)).fetchall()[0]
    found: list[float] = [left for left in times if left is not None]
    return max(0.0, min(found)) if found else None


def counts(db: Connection, number: int) -> dict[State, int]:
    found = dict.fromkeys(State, 0)
    for state, count in db.execute(_COUNTS, (number,)):
        found[STATES[state]] += count
    return found


def find(db: Connection, number: int, id: str) -> Row | None:
    row: Row | None = db.execute(
        f"select {COLUMNS} from messages where queue_id = ? and id = ?", (number, id)
    ).fetchone()
    return row


def page(db: Connection, number: int, state: State, after: str, limit: int) -> list[Row]:
    """Return one page of a state. Ready ones come in lease order, then those held behind the head of their group."""
    if state is not State.READY:
        return _page_by_time(db, number, NUMBERS[state], after, limit)
    rows: list[Row] = []
    if not after.startswith("held~"):
        rows = list(islice(_ready_page(db, number, after, limit), limit))
        after = ""
    return rows + _page_by_time(db, number, HELD, after.removeprefix("held~"), limit - len(rows))


def cursor_of(row: Row) -> str:
    """Return the place of a row in its state, for `after`."""
    seq, id, state, _, due_at, moment, priority = row[:7]
    if state == READY:
        return f"{priority}~{due_at.hex()}~{id}"
    time = due_at if state == DELAYED else moment
    return f"{'held~' if state == HELD else ''}{time.hex()}~{seq}"


def _ready_page(db: Connection, number: int, after: str, limit: int) -> Iterator[Row]:
    priority, due_at, id = split_cursor(after, 3) if after else ("1000", "-inf", "")
    start = (number_in(priority, int), number_in(due_at, float.fromhex), id)
    pages = [_of_target(db, number, target, start, limit) for target in _targets(db, number)]
    return merge(*pages, key=lambda row: (-row[6], row[4], row[1]))


def _of_target(db: Connection, number: int, target: str, start: tuple[int, float, str], limit: int) -> Iterator[Row]:
    rows = db.execute(_SAME_PRIORITY, (number, target, *start, limit)).fetchall()
    yield from rows
    if len(rows) < limit:
        yield from db.execute(_LOWER_PRIORITY, (number, target, start[0], limit - len(rows)))


def _targets(db: Connection, number: int) -> Iterator[str]:
    yield ""
    target: str | None = ""
    while (target := db.execute(_TARGET, (number, target)).get) is not None:
        yield target


def _page_by_time(db: Connection, number: int, state: int, after: str, limit: int) -> list[Row]:
    column, term = _PAGES.get(state, ("moment", f"state = {state} and state > 2"))
    time, seq = split_cursor(after, 2) if after else ("-inf", "0")
    rows: list[Row] = db.execute(
        f"select {COLUMNS} from messages where queue_id = ? and {term} and ({column}, seq) > (?, ?) "
        f"order by {column}, seq limit ?",
        (number, number_in(time, float.fromhex), number_in(seq, int), limit),
    ).fetchall()
    return rows


_PURGEABLE = """
select seq, grp from messages indexed by {} where queue_id = ?1 and {} and moment <= ?2 limit ?3"""
_PURGEABLE_ONE = "select seq, grp from messages where queue_id = ?1 and id = ?3 and {} and moment <= ?2"
_INDEXED = {READY: ("messages_ready", "state = 0"), DELAYED: ("messages_delayed", "state = 1")}


def purgeable(
    db: Any, number: int, state: State, before: float, limit: int, ids: Sequence[str] | None = None
) -> list[Row]:
    """Return (seq, group) of messages, or of some by their ids, that came into a state before a time."""
    rows: list[Row] = []
    for own in (READY, HELD) if state is State.READY else (NUMBERS[state],):
        index, term = _INDEXED.get(own, ("messages_aside", f"state = {own} and state > 2"))
        if ids is None:
            rows += db(_PURGEABLE.format(index, term), (number, before, limit - len(rows))).fetchall()
        else:
            one = _PURGEABLE_ONE.format(term)
            rows += [row for id in dict.fromkeys(ids) for row in db(one, (number, before, id)).fetchall()]
    return rows[:limit]
