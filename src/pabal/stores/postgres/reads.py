"""What can be asked of the database without changing it. Pages are found by key, never by offset."""

from collections.abc import Iterator
from heapq import merge
from itertools import islice

from pabal.sql.links import Link
from pabal.store import State
from pabal.stores.cursors import number_in, split_cursor
from pabal.stores.postgres.rows import DELAYED, HELD, NUMBERS, READY, STATES, Row
from pabal.stores.postgres.schema import Schema

COLUMNS = "seq, id, state, attempt, due_at, moment, rank, failure, crc, document, token, expires_at"

_NEXT = """
select (select min(due_at) from pabal.messages where queue_id = %(q)s and state = 1) - pabal.wall(),
  (select min(moment) from pabal.messages where queue_id = %(q)s and state = 2) - pabal.steady(),
  (select min(expires_at) from pabal.messages where queue_id = %(q)s and state in (0, 1, 3)) - pabal.wall()"""
_COUNTS = """
select 0, count(*) from pabal.messages where queue_id = %(q)s and state = 0
union all select 1, count(*) from pabal.messages where queue_id = %(q)s and state = 1
union all select 2, count(*) from pabal.messages where queue_id = %(q)s and state = 2
union all select state, count(*) from pabal.messages where queue_id = %(q)s and state > 2 group by state"""
_TARGET = "select min(target) from pabal.messages where queue_id = %s and state = 0 and target > %s"
_OF_TARGET = f"""
select {COLUMNS} from pabal.messages
where queue_id = %s and state = 0 and target = %s and (rank, due_at, id) > (%s, %s, %s)
order by rank, due_at, id limit %s"""
_BY_TIME = """
select {columns} from pabal.messages
where queue_id = %s and {term} and ({time}, seq) > (%s, %s) order by {time}, seq limit %s"""


class Reads:
    """Questions to one schema."""

    def __init__(self, schema: Schema) -> None:
        self._sql = schema

    def next_due(self, link: Link, number: int) -> float | None:
        """Return the seconds until time alone changes something; None if nothing."""
        times = link.execute(self._sql(_NEXT), {"q": number}).fetchone() or ()
        found = [left for left in times if left is not None]
        return max(0.0, min(found)) if found else None

    def counts(self, link: Link, number: int) -> dict[State, int]:
        found = dict.fromkeys(State, 0)
        for state, count in link.execute(self._sql(_COUNTS), {"q": number}):
            found[STATES[state]] += count
        return found

    def find(self, link: Link, number: int, id: str) -> Row | None:
        statement = self._sql(f"select {COLUMNS} from pabal.messages where queue_id = %s and id = %s")
        row: Row | None = link.execute(statement, (number, id)).fetchone()
        return row

    def page(self, link: Link, number: int, state: State, after: str, limit: int) -> list[Row]:
        """Return one page of a state. Ready ones come in lease order, then those held behind their group's head."""
        if state is not State.READY:
            return self._by_time(link, number, NUMBERS[state], after, limit)
        rows: list[Row] = []
        if not after.startswith("held~"):
            rows = list(islice(self._ready(link, number, after, limit), limit))
            after = ""
        return rows + self._by_time(link, number, HELD, after.removeprefix("held~"), limit - len(rows))

    def _ready(self, link: Link, number: int, after: str, limit: int) -> Iterator[Row]:
        rank, due_at, id = split_cursor(after, 3) if after else ("-1000", "-inf", "")
        start = (number_in(rank, int), number_in(due_at, float.fromhex), id)
        statement = self._sql(_OF_TARGET)
        pages = [
            link.execute(statement, (number, target, *start, limit)).fetchall()
            for target in list(self._targets(link, number))
        ]
        return merge(*pages, key=lambda row: (row[6], row[4], row[1]))

    def _targets(self, link: Link, number: int) -> Iterator[str]:
        target: str | None = ""
        while target is not None:
            yield target
            found = link.execute(self._sql(_TARGET), (number, target)).fetchone()
            target = found[0] if found else None

    def _by_time(self, link: Link, number: int, state: int, after: str, limit: int) -> list[Row]:
        time, seq = split_cursor(after, 2) if after else ("-inf", "0")
        statement = _BY_TIME.format(
            columns=COLUMNS,
            time="due_at" if state == DELAYED else "moment",
            term=f"state = {state}" if state < HELD else f"state = {state} and state > 2",
        )
        values = (number, number_in(time, float.fromhex), number_in(seq, int), limit)
        rows: list[Row] = link.execute(self._sql(statement), values).fetchall()
        return rows


def cursor_of(row: Row) -> str:
    """Return the place of a row in its state, for `after`."""
    seq, id, state, _, due_at, moment, rank = row[:7]
    if state == READY:
        return f"{rank}~{due_at.hex()}~{id}"
    time = due_at if state == DELAYED else moment
    return f"{'held~' if state == HELD else ''}{time.hex()}~{seq}"
