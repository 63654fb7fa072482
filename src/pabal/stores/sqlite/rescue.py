"""Take messages from the pages of a damaged database that SQLite no longer reaches.

A message is whole if its document fits its checksum. Its row then says its state, unless the page may be a free one:
free pages still hold rows of messages that were handled since. If the list of free pages cannot be read either, a
waiting message becomes a dead letter, so that none is delivered a second time.
"""

from typing import Any
from zlib import crc32

from pabal.clock import Clock
from pabal.errors import DecodeError, StoreFailed
from pabal.names import check_name
from pabal.sql.connection import Connection
from pabal.sql.pages import PageFile, Row
from pabal.store import Failure, FailureCode
from pabal.stores.rows import DEAD, DONE, failure_text
from pabal.stores.sqlite.bodies import Bodies
from pabal.stores.sqlite.damaged_rows import is_legal

_COLUMNS = 18
_NEVER_NULL = (*range(1, 11),)
_QUEUE_ID, _STATE, _SINCE, _ID, _FAILURE, _CRC, _DOCUMENT = 1, 2, 6, 9, 15, 16, 17
_INSERT = f"insert or ignore into messages values ({', '.join('?' * _COLUMNS)}) returning 1"
_TAKEN = "select exists (select 1 from messages where seq = ?)"
_THERE = "select exists (select 1 from messages where queue_id = ? and id = ?)"
# Of two rows with one number, the one that is no message came from a page of another table: it gets a new number.
_MAKE_WAY = """
update messages set seq = (select max(seq) + 1 from messages) where seq = ? and not (typeof(queue_id) = 'integer'
and typeof(state) = 'integer' and typeof(priority) = 'integer' and typeof(due_at) = 'real' and typeof(id) = 'text')"""
_RECORD = [type(None), float, bytes, int]  # in the columns 0, 1, 3 and 5 of a record of a topic
_UNKNOWN = "found in a page that may have been free: it may have been handled before the damage"


def rescue(fresh: Connection, pages: PageFile, bodies: Bodies, clock: Clock, *, alone: bool = False) -> int:
    """Add the messages that are whole in these pages, and not in the new tables; return how many.

    With `alone`, raise StoreFailed if the pages hold records of topics, and the new tables do not.
    """
    rows = []
    topics = alone and not fresh.execute("select 1 from sqlite_schema where name = 'topic_records'").fetchall()
    for row in pages.rows():
        if len(row.values) in (3, _COLUMNS):
            rows.append(row)
        elif topics and len(row.values) == 6 and [type(row.values[at]) for at in (0, 1, 3, 5)] == _RECORD:
            raise StoreFailed(
                "it was not changed: it holds topics too, whose tables cannot be read; run "
                "`pabal topic doctor --repair`, or take its messages to another store with `pabal doctor --salvage TO`"
            )
    added: list[list[Any]] = []
    fresh.execute("create index if not exists rescued_id on messages (queue_id, id)").fetchall()
    for row in rows:
        if len(row.values) == _COLUMNS and _is_whole(row, bodies):
            values: list[Any] = [row.id, *row.values[1:]]
            for at in _NEVER_NULL:
                values[at] = b"" if values[at] is None else values[at]  # damaged: it is restored from the document
            state = values[_STATE]
            if pages.free is None and isinstance(state, int) and state < DONE:
                values[_STATE], values[_SINCE] = DEAD, clock.now()
                values[_FAILURE] = failure_text(Failure(FailureCode.CORRUPT, _UNKNOWN, clock.now()))
            if fresh.execute(_THERE, (values[_QUEUE_ID], values[_ID])).get:
                continue
            fresh.execute(_MAKE_WAY, (row.id,)).fetchall()
            if fresh.execute(_TAKEN, (row.id,)).get:
                values[0] = None  # its number is damaged and now that of another message: it gets a new one
            if fresh.execute(_INSERT, values).fetchall():
                added.append(values)
    fresh.execute("drop index if exists rescued_id").fetchall()
    _add_queues(fresh, {values[_QUEUE_ID] for values in added}, rows)
    return len(added)


def _is_whole(row: Row, bodies: Bodies) -> bool:
    place, crc = row.values[_DOCUMENT], row.values[_CRC]
    try:
        data = bodies.get(place) if isinstance(place, bytes | str) else None
    except (DecodeError, StoreFailed):
        return False
    return row.values[0] is None and data is not None and crc32(data) == crc


def _add_queues(fresh: Connection, numbers: set[Any], rows: list[Row]) -> None:
    """Add the queues of these numbers that are missing, with their settings, if a page shows them."""
    known = {row[0] for row in fresh.execute("select id from queues").fetchall()}
    for row in rows:
        if len(row.values) == 3 and row.id in numbers - known and row.values[0] is None:
            _, name, settings = row.values
            if isinstance(name, str) and (settings is None or isinstance(settings, str)) and is_legal(check_name, name):
                statement = "insert or ignore into queues (id, name, settings) values (?, ?, ?)"
                fresh.execute(statement, (row.id, name, settings)).fetchall()
