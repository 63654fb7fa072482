"""Look at messages without changing them. Pages are found by key, never by offset."""

from collections.abc import Iterator
from functools import partial
from heapq import merge
from itertools import islice
from typing import LiteralString

from pabal.ids import CONSUMER_TAG
from pabal.sql.postgres_link import Link
from pabal.store import BROWSE_BYTES, Consumer, Entry, Held, State
from pabal.stores.postgres.queues import Queues
from pabal.stores.rows import (
    COLUMNS,
    DELAYED,
    HELD,
    INFLIGHT,
    NUMBERS,
    READY,
    STATES,
    Row,
    cut_rows,
    entries_of,
    entry_of,
    ready_cursor,
    time_cursor,
)

_COLUMNS = COLUMNS.format(order="rank")
_NEXT = """
select (select min(due_at) from pabal.messages where queue_id = %(q)s and state = 1) - pabal.wall(),
  (select min(lease_until) from pabal.messages where queue_id = %(q)s and state = 2) - pabal.steady(),
  (select min(expires_at) from pabal.messages where queue_id = %(q)s and state in (0, 1, 3)) - pabal.wall()"""
_COUNTS = """
select 0, count(*) from pabal.messages where queue_id = %(q)s and state = 0
union all select 0, count(*) from pabal.messages where queue_id = %(q)s and state = 1 and due_at <= pabal.wall()
union all select 1, count(*) from pabal.messages where queue_id = %(q)s and state = 1 and due_at > pabal.wall()
union all select 2, count(*) from pabal.messages where queue_id = %(q)s and state = 2
union all select state, count(*) from pabal.messages where queue_id = %(q)s and state > 2 group by state"""
_FIND = f"select {_COLUMNS} from pabal.messages where queue_id = %s and id = %s"
# An index has the ready messages for every consumer in lease order, another one those that have a target.
_READY_PARTS = "target = ''", "octet_length(target) > 0"
# A page ends early if its documents are large. The size of a document is known without reading it.
_CUT = f"""
select {_COLUMNS} from (
  select *, sum(coalesce(octet_length(document), 0)) over (order by {{order}} rows unbounded preceding)
    - coalesce(octet_length(document), 0) as before
  from ({{page}}) as page
) as measured where before < {BROWSE_BYTES} order by {{order}}"""
_OF_PART = _CUT.format(
    order="rank, due_at, id",
    page="""
select * from pabal.messages
where queue_id = %s and state = 0 and {part} and (rank, due_at, id) > (%s, %s, %s)
order by rank, due_at, id limit %s""",
)
_BY_TIME = _CUT.format(
    order="{time}, seq",
    page="""
select * from pabal.messages
where queue_id = %s and {term} and ({time}, seq) > (%s, %s) order by {time}, seq limit %s""",
)
_OLDEST_READY = """
with recursive ranks as (
  (select rank from pabal.messages where queue_id = %(q)s and state = 0 and {part} order by rank limit 1)
  union all
  select next.rank from ranks, lateral (
    select m.rank from pabal.messages as m
    where m.queue_id = %(q)s and m.state = 0 and {part} and m.rank > ranks.rank order by m.rank limit 1
  ) as next
)
select min((
  select min(m.due_at) from pabal.messages as m
  where m.queue_id = %(q)s and m.state = 0 and {part} and m.rank = ranks.rank
)) from ranks"""
_SINCE = "select min(state_since) from pabal.messages where queue_id = %(q)s and {}"
_HOLDS = """
select left(m.token, %s), q.name, count(*), min(m.state_since)
from pabal.messages as m join pabal.queues as q on q.id = m.queue_id where m.state = 2 group by 1, 2"""
_TIMES = {DELAYED: ("due_at", "state = 1"), INFLIGHT: ("lease_until", "state = 2")}


class Reader(Queues):
    def now(self) -> float:
        """Return the clock of the server."""
        [[seconds]] = self._server.read(partial(_all, self._sql("select pabal.wall()"), {}))
        return float(seconds)

    def next_due(self, queue: str) -> float | None:
        """Return the seconds until a delay, a lease or a time to live ends; None if there is none."""
        number = self._number(queue)
        if number is None:
            return None
        times = self._server.read(lambda link: link.execute(self._sql(_NEXT), {"q": number}).fetchone()) or ()
        found = [left for left in times if left is not None]
        return max(0.0, min(found)) if found else None

    def counts(self, queue: str) -> dict[State, int]:
        """Count the messages in each state. A delayed one that is due is ready: the next lease makes it so."""
        found = dict.fromkeys(State, 0)
        number = self._number(queue)
        if number is not None:
            rows = self._server.read(lambda link: link.execute(self._sql(_COUNTS), {"q": number}).fetchall())
            for state, count in rows:
                found[STATES[state]] += count
        return found

    def oldest(self, queue: str, state: State) -> float | None:
        """Return since when the oldest message of a state has been in it."""
        number = self._number(queue)
        if number is None:
            return None
        own = NUMBERS[State(state)]
        statements = [_SINCE.format(f"state = {own} and state > 2" if own > INFLIGHT else f"state = {own}")]
        if own == READY:
            statements = [
                *(_OLDEST_READY.format(part=part) for part in _READY_PARTS),
                _SINCE.format(f"state = {HELD} and state > 2"),
            ]
        times = [
            row[0]
            for statement in statements
            for row in self._server.read(partial(_all, self._sql(statement), {"q": number}))
            if row[0] is not None
        ]
        return min(times, default=None)

    def consumers(self) -> list[Consumer]:
        """Return the consumers that have leased lately or hold messages."""
        rows = self._server.read(lambda link: link.execute(self._sql(_HOLDS), (CONSUMER_TAG,)).fetchall())
        return self._consumers.all({(tag, queue): Held(*held) for tag, queue, *held in rows})

    def browse(self, queue: str, state: State, *, after: str = "", limit: int = 100) -> list[Entry]:
        """List messages of one state."""
        number = self._number(queue)
        if number is None:
            return []
        rows = self._server.read(lambda link: list(cut_rows(self._page(link, number, State(state), after, limit))))
        return entries_of(queue, rows, self._codec, _document)

    def find(self, queue: str, id: str) -> Entry | None:
        """Return one message in any state."""
        number = self._number(queue)
        if number is None:
            return None
        row = self._server.read(lambda link: link.execute(self._sql(_FIND), (number, id)).fetchone())
        return None if row is None else entry_of(queue, row, self._codec, _document)

    def _page(self, link: Link, number: int, state: State, after: str, limit: int) -> Iterator[Row]:
        """Yield one page of a state. Ready messages come in lease order, then those that are held in their group."""
        if state is not State.READY:
            yield from self._page_by_time(link, number, NUMBERS[state], after, limit)
            return
        if not after.startswith("held~"):
            for row in islice(self._ready_page(link, number, after, limit), limit):
                yield row
                limit -= 1
            after = ""
        yield from self._page_by_time(link, number, HELD, after.removeprefix("held~"), limit)

    def _ready_page(self, link: Link, number: int, after: str, limit: int) -> Iterator[Row]:
        start = ready_cursor(after, first=-1000)
        pages = [
            link.execute(self._sql(_OF_PART.format(part=part)), (number, *start, limit)).fetchall()
            for part in _READY_PARTS
        ]
        return merge(*pages, key=lambda row: (row[6], row[4], row[1]))

    def _page_by_time(self, link: Link, number: int, state: int, after: str, limit: int) -> list[Row]:
        time, term = _TIMES.get(state, ("state_since", f"state = {state} and state > 2"))
        statement = _BY_TIME.format(time=time, term=term)
        rows: list[Row] = link.execute(self._sql(statement), (number, *time_cursor(after), limit)).fetchall()
        return rows


def _all(statement: LiteralString, values: dict[str, int], link: Link) -> list[Row]:
    return link.execute(statement, values).fetchall()


def _document(document: bytes | None) -> bytes | None:
    return document
