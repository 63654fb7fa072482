"""Look at messages without changing them. Pages are found by key, never by offset."""

from collections.abc import Iterator
from heapq import merge
from itertools import islice

from pabal.ids import CONSUMER_TAG
from pabal.sql.connection import Connection, check_text, damaged_index
from pabal.store import Consumer, Entry, Held, State
from pabal.stores.rows import (
    COLUMNS,
    DELAYED,
    HELD,
    INFLIGHT,
    NUMBERS,
    STATES,
    Row,
    check_row,
    cut_rows,
    entries_of,
    entry_of,
    ready_cursor,
    time_cursor,
)
from pabal.stores.sqlite.queues import Queues

_COLUMNS = COLUMNS.format(order="priority")
_COUNTS = """
select 0, count(*) from messages where queue_id = ?1 and state = 0
union all select 0, count(*) from messages where queue_id = ?1 and state = 1 and due_at <= ?2
union all select 1, count(*) from messages where queue_id = ?1 and state = 1 and due_at > ?2
union all select 2, count(*) from messages where queue_id = ?1 and state = 2
union all select state, count(*) from messages where queue_id = ?1 and state > 2 group by state"""
_FIND = f"select {_COLUMNS} from messages where queue_id = ? and id = ?"
_IS_OWN = "select 1 from messages not indexed where seq = ? and queue_id = ? and id = ?"
# An index has the ready messages for every consumer in lease order, another one those that have a target.
_READY_PARTS = (
    ("messages indexed by messages_ready", "target = ''"),
    ("messages indexed by messages_targeted", "target <> ''"),
)
_SAME_PRIORITY = f"""
select {_COLUMNS} from {{}} where queue_id = ? and state = 0 and {{}} and priority = ? and (due_at, id) > (?, ?)
order by due_at, id limit ?"""
_LOWER_PRIORITY = f"""
select {_COLUMNS} from {{}} where queue_id = ? and state = 0 and {{}} and priority < ?
order by priority desc, due_at, id limit ?"""
_PRIORITY = "select max(priority) from {} where queue_id = ? and state = 0 and {} and priority < ?"
_FIRST_DUE = "select min(due_at) from {} where queue_id = ? and state = 0 and {} and priority = ?"
_HOLDS = """
select substr(token, 1, ?), queues.name, count(*), min(state_since)
from messages indexed by messages_inflight join queues on queues.id = queue_id where state = 2 group by 1, 2"""
_SINCE = "select min(state_since) from messages where queue_id = ? and {}"
_TIMES = {DELAYED: ("due_at", "state = 1"), INFLIGHT: ("lease_until", "state = 2")}


class Reader(Queues):
    def counts(self, queue: str) -> dict[State, int]:
        """Count the messages in each state. A delayed one that is due is ready: the next lease makes it so."""
        found = dict.fromkeys(State, 0)
        number = self._number(queue)
        if number is not None:
            values = number, self._clock.now()
            rows = self._db.read(lambda db: [(STATES[row[0]], int(row[1])) for row in db.execute(_COUNTS, values)])
            for state, count in rows:
                found[state] += count
        return found

    def oldest(self, queue: str, state: State) -> float | None:
        """Return since when the oldest message of a state has been in it."""
        number = self._number(queue)
        return None if number is None else self._db.read(lambda db: _oldest(db, number, State(state)))

    def consumers(self) -> list[Consumer]:
        """Return the consumers that have leased lately or hold messages."""
        return self._consumers.all(self._db.read(_holds))

    def browse(self, queue: str, state: State, *, after: str = "", limit: int = 100) -> list[Entry]:
        """List messages of one state."""
        number = self._number(queue)
        if number is None:
            return []

        def page(db: Connection) -> list[Row]:
            rows = [check_row(row) for row in cut_rows(_page(db, number, State(state), after, limit))]
            for row in rows:
                _require_own(db, number, row)
            return rows

        return entries_of(queue, self._db.read(page), self._codec, self._bodies.get)

    def find(self, queue: str, id: str) -> Entry | None:
        """Return one message in any state."""
        number = self._number(queue)
        row = None if number is None else self._db.read(lambda db: _find(db, number, id))
        return None if row is None else entry_of(queue, row, self._codec, self._bodies.get)


def _find(db: Connection, number: int, id: str) -> Row | None:
    row = check_row(db.execute(_FIND, (number, id)).fetchone())
    if row is not None:
        _require_own(db, number, row)
    return row


def _require_own(db: Connection, number: int, row: Row) -> None:
    """Raise StoreFailed if the row itself has another queue or id than the index that led to it."""
    if not db.execute(_IS_OWN, (row[0], number, row[1])).fetchall():
        raise damaged_index(db)


def _holds(db: Connection) -> dict[tuple[str, str], Held]:
    """Return how many messages each consumer, given by its tag, holds in each queue, and since when."""
    rows: list[Row] = db.execute(_HOLDS, (CONSUMER_TAG,)).fetchall()
    if any(type(since) is not float for *_, since in rows):
        raise TypeError("found a time that is no number")
    return {(check_text(tag), check_text(queue)): Held(count, since) for tag, queue, count, since in rows}


def _oldest(db: Connection, number: int, state: State) -> float | None:
    own = NUMBERS[state]
    since = _SINCE.format(f"state = {own} and state > 2" if own > INFLIGHT else f"state = {own}")
    if state is not State.READY:
        return _instant(db.execute(since, (number,)).get)
    # The indexes have the due times in order for each priority, of which there are few.
    times = [_instant(db.execute(_SINCE.format(f"state = {HELD} and state > 2"), (number,)).get)]
    for part in _READY_PARTS:
        priority = 1000
        while (priority := db.execute(_PRIORITY.format(*part), (number, priority)).get) is not None:
            times.append(_instant(db.execute(_FIRST_DUE.format(*part), (number, priority)).get))
    return min((time for time in times if time is not None), default=None)


def _instant(found: object) -> float | None:
    """Return an instant of a row; raise TypeError if it is none: the row is damaged."""
    if found is None or isinstance(found, int | float):
        return found
    raise TypeError(f"found {type(found).__name__}, expected an instant")


def _page(db: Connection, number: int, state: State, after: str, limit: int) -> Iterator[Row]:
    """Yield one page of a state. Ready messages come in lease order, then those that are held in their group."""
    if state is not State.READY:
        yield from _page_by_time(db, number, NUMBERS[state], after, limit)
        return
    if not after.startswith("held~"):
        for row in islice(_ready_page(db, number, after, limit), limit):
            yield row
            limit -= 1
        after = ""
    yield from _page_by_time(db, number, HELD, after.removeprefix("held~"), limit)


def _ready_page(db: Connection, number: int, after: str, limit: int) -> Iterator[Row]:
    order, due_at, id = start = ready_cursor(after, first=1000)
    last = -order, due_at, id
    for row in merge(*(_of_part(db, number, start, limit, part) for part in _READY_PARTS), key=_place_of_ready):
        if (place := _place_of_ready(row)) <= last:
            raise damaged_index(db)
        last = place
        yield row


def _place_of_ready(row: Row) -> tuple[int, float, str]:
    return -row[6], row[4], row[1]


def _of_part(
    db: Connection, number: int, start: tuple[int, float, str], limit: int, part: tuple[str, str]
) -> Iterator[Row]:
    for row in db.execute(_SAME_PRIORITY.format(*part), (number, *start, limit)):
        yield row
        limit -= 1
    if limit:
        yield from db.execute(_LOWER_PRIORITY.format(*part), (number, start[0], limit))


def _page_by_time(db: Connection, number: int, state: int, after: str, limit: int) -> Iterator[Row]:
    column, term = _TIMES.get(state, ("state_since", f"state = {state} and state > 2"))
    last = time_cursor(after)
    rows = db.execute(
        f"select {_COLUMNS} from messages where queue_id = ? and {term} and ({column}, seq) > (?, ?) "
        f"order by {column}, seq limit ?",
        (number, *last, limit),
    )
    for row in rows:
        if (row[5], row[0]) <= last:  # the next page would begin before this one
            raise damaged_index(db)
        last = row[5], row[0]
        yield row
