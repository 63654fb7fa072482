"""Records as rows: append, read, check, and remove by retention.

The records of a call get the next offsets of their partitions in one commit. Retention removes the oldest records of a
partition when they are too old or the partition is too large; the offsets of the others stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from operator import itemgetter, lt
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

from pabal import jsontext
from pabal.errors import InvalidInput, StoreFailed
from pabal.sql.connection import Connection, damaged_index
from pabal.sql.writer import Insert, Transaction
from pabal.topic_store import NO_HEADERS, Bounds, NewRecord, Position, Record, Shape, check_partition, check_shape
from pabal.topic_stores.partition import key_bytes, partition_of

DOCTOR = "pabal topic doctor --repair"
OFFSET_BITS = 40
_OFFSET = (1 << OFFSET_BITS) - 1
LAST_PARTITION = (1 << 63 - OFFSET_BITS) - 1  # the ids of the records of a larger one are no integers of SQLite
Row: TypeAlias = tuple[int, float, bytes | None, bytes, bytes | None, int]

SLICE = 5_000  # records removed in one commit, so that other writers do not wait long
_INSERT = Insert("topic_records", "id, at, key, value, headers, crc")
_SIZE = "length(value) + coalesce(length(key), 0) + coalesce(length(headers), 0)"
_id_of = itemgetter(0)
_turns = count()  # chooses the partition of the next call without keys; nothing depends on it
_FIRST = "select min(id) from topic_records where id >= ? and id < ?"
_PAGE = "select id, at, key, value, headers, crc from topic_records where id >= ? and id < ? order by id limit ?"


class Known(NamedTuple):
    """The fields of a topic that never change."""

    id: int
    name: str
    base: int
    partitions: int

    @property
    def bell(self) -> str:
        """The name of the topic's bell; no queue can have it."""
        return f"topic~{self.name}"


def headers_text(headers: Mapping[str, str]) -> bytes:
    """Return headers as they are stored."""
    return jsontext.encode({name: _kept(text) for name, text in headers.items()})


def checksum(key: bytes | None, value: bytes, headers: bytes | None) -> int:
    """Return the checksum of key, value and headers, one after the other."""
    found = crc32(value, crc32(key or b""))
    return found if headers is None else crc32(headers, found)


def _kept(text: str) -> str:
    # A header of another client may not be UTF-8; JSON must be.
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def page(db: Connection, topic: Known, number: int, offset: int, limit: int) -> list[Record]:
    """Read records of one partition in their order."""
    first = (topic.base + number) << OFFSET_BITS
    end = first + (1 << OFFSET_BITS)
    rows: Any = db.execute(_PAGE, (first + offset, end, limit)).fetchall()
    name, keys = topic.name, _Keys()
    ids = [first + offset - 1, *map(_id_of, rows), end]
    if not all(map(lt, ids, ids[1:])):
        raise damaged_index(db, DOCTOR)  # pages of the file were exchanged: these may be records of another topic
    # Most records have no headers and are whole.
    return [
        Record(name, number, id & _OFFSET, at, known[0], value)
        if headers is None and crc == crc32(value, (known := keys[key])[1])
        else _whole(name, number, (id, at, key, value, headers, crc))
        for id, at, key, value, headers, crc in rows
    ]


class _Keys(dict[bytes | None, tuple[str, int]]):
    """Caches keys as text, each with its checksum: the keys of a page are often the same."""

    def __missing__(self, key: bytes | None) -> tuple[str, int]:
        known = self[key] = _text(key or b""), crc32(key or b"")
        return known


def _whole(name: str, number: int, row: Row) -> Record:
    id, at, key, value, headers, crc = row
    fault, text = "", NO_HEADERS
    if crc != checksum(key, value, headers):
        fault = "the checksum does not fit: the record was damaged on disk"
    elif headers is not None:
        text = _headers(headers)
    return Record(name, number, id & _OFFSET, at, _text(key or b""), value, text, fault)


def _headers(stored: bytes) -> Mapping[str, str]:
    found: dict[str, Any] = jsontext.decode(stored)
    return found


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


def first_from(db: Connection, partition: int, first: int, end: int, at: float) -> int:
    """Return the first offset from `first` on of a record not older than `at`, or `end`. Times rise with offsets."""
    base = partition << OFFSET_BITS
    low, high = first, end
    while low < high:
        middle = (low + high) // 2
        found = db.execute("select at from topic_records where id = ?", (base + middle,)).get
        if found is not None and found < at:
            low = middle + 1
        else:
            high = middle
    return low


def bounds_of(db: Connection, topic: Known) -> list[Bounds]:
    """Return the bounds of every partition."""
    found: Any = db.execute(
        "select first_offset, next_offset from topic_partitions where id >= ? and id < ? order by id",
        (topic.base, topic.base + topic.partitions),
    ).fetchall()
    bounds = [Bounds(first, end) for first, end in found if are_bounds(first, end)]
    if len(bounds) != topic.partitions:
        raise TypeError(f"{topic.name} should have {topic.partitions} partitions, {len(bounds)} can be read")
    return bounds


def are_bounds(first: object, end: object) -> bool:
    """Return whether these can be the bounds of a partition."""
    return type(first) is int and type(end) is int and 0 <= first <= end <= _OFFSET


def damaged(what: str, found: object) -> StoreFailed:
    """Return the error for a value that is not what it can be."""
    return StoreFailed(f"{what} is damaged ({found!r:.60}): run `{DOCTOR}`")


class PartitionRows:
    """The records of one call for one partition: key, value, headers and checksum of each, and the total size."""

    __slots__ = ("rows", "size")

    def __init__(self) -> None:
        self.rows: list[tuple[bytes | None, bytes, bytes | None, int]] = []
        self.size = 0


class EncodedRecords:
    """The records of one call, encoded and sorted by partition; they get their offsets inside the transaction."""

    def __init__(self, topic: Known, records: Sequence[NewRecord]) -> None:
        self._topic = topic
        self._turn = next(_turns) % topic.partitions  # records without a key stay together
        self._places: list[tuple[int, int]] = []
        self._rows: dict[int, PartitionRows] = {}
        known: dict[tuple[str, int | None], tuple[int, PartitionRows, bytes | None, int]] = {}
        for value, key, headers, partition in records:
            found = known.get((key, partition))
            if found is None:
                found = known[key, partition] = self._place(key, partition)
            number, rows, stored_key, start = found
            text = headers_text(headers) if headers else None
            crc = crc32(value, start)
            self._places.append((number, len(rows.rows)))
            rows.rows.append((stored_key, value, text, crc if text is None else crc32(text, crc)))
            rows.size += len(value) + len(stored_key or b"") + len(text or b"")

    def append(self, tx: Transaction, now: float) -> list[Position]:
        """Give the rows their offsets and insert them; return the position of each record, in the order given."""
        starts = {number: self._extend(tx, number, rows, now) for number, rows in self._rows.items()}
        return [Position(number, starts[number] + place) for number, place in self._places]

    def _place(self, key: str, partition: int | None) -> tuple[int, PartitionRows, bytes | None, int]:
        """Return for a key its partition, the rows for it so far, the key as stored and its checksum."""
        count = self._topic.partitions
        if partition is not None:
            number = check_partition(self._topic.name, partition, count)
        else:
            number = partition_of(key, count) if key else self._turn
        stored = key_bytes(key)
        return number, self._rows.setdefault(number, PartitionRows()), stored or None, crc32(stored)

    def _extend(self, tx: Transaction, number: int, rows: PartitionRows, now: float) -> int:
        partition = self._topic.base + number
        start, last_at = tx.run(
            "select next_offset, last_at from topic_partitions where id = ?", (partition,)
        ).fetchone()
        if not are_bounds(0, start):
            raise damaged(f"the end of partition {number} of {self._topic.name}", start)
        at = max(now, last_at)
        first = (partition << OFFSET_BITS) + start
        _INSERT.run(tx, [value for id, row in enumerate(rows.rows, first) for value in (id, at, *row)])
        tx.run(
            "update topic_partitions set next_offset = ?, last_at = ?, bytes = bytes + ? where id = ?",
            (start + len(rows.rows), at, rows.size, partition),
        )
        result: int = start
        return result


class Limits(NamedTuple):
    """The retention of each partition of a topic; 0 is no limit. Others may change it, so each use reads it."""

    max_age: float
    max_bytes: int


def limits_of(db: Connection, topic: Known) -> Limits:
    found: tuple[float, int] = db.execute("select max_age, max_bytes from topics where id = ?", (topic.id,)).get
    if not are_limits(*found):
        raise damaged(f"the retention of {topic.name}", found)
    return Limits(*found)


def are_limits(max_age: Any, max_bytes: Any) -> bool:
    """Return whether these can be the limits of a topic."""
    try:
        check_shape(Shape(1, max_age, max_bytes))
    except (InvalidInput, TypeError):
        return False
    return True


def set_limits(tx: Transaction, topic: Known, max_age: float | None, max_bytes: int | None) -> None:
    """Change the limits that are given."""
    tx.run(
        "update topics set max_age = coalesce(?, max_age), max_bytes = coalesce(?, max_bytes) where id = ?",
        (max_age, max_bytes, topic.id),
    )


def surplus(db: Connection, topic: Known, now: float) -> bool:
    """Return whether retention has records to remove. It looks at each partition."""
    limits = limits_of(db, topic)
    if not any(limits):
        return False
    return any(_end(db, limits, topic.base + number, now)[1] for number in range(topic.partitions))


def trim(tx: Transaction, topic: Known, now: float) -> int:
    """Remove one slice of the surplus records; return how many."""
    removed, limits = 0, limits_of(tx.connection, topic)
    for partition in range(topic.base, topic.base + topic.partitions):
        first, many = _end(tx.connection, limits, partition, now, most=SLICE - removed)
        if many:
            _remove(tx, partition, first, first + many)
            removed += many
        if removed >= SLICE:
            break
    return removed


def _end(db: Connection, limits: Limits, partition: int, now: float, most: int = SLICE) -> tuple[int, int]:
    """Return the offset of the first record, and how many records from it on are surplus, up to `most`."""
    max_age, max_bytes = limits
    row: tuple[int, int, int] = db.execute(
        "select first_offset, next_offset, bytes from topic_partitions where id = ?", (partition,)
    ).get
    first, end, size = row
    if not are_bounds(first, end):
        raise damaged(f"the row of partition {partition}", (first, end))
    base = partition << OFFSET_BITS
    there: int | None = db.execute(_FIRST, (base, base + end)).get
    first = end if there is None else there - base  # that of a damaged row may be another: so each slice removes some
    keep = first_from(db, partition, first, end, now - max_age) if max_age else first
    if max_bytes and size > max_bytes:
        keep = max(keep, _oversize(db, partition, first, size - max_bytes, most))
    return first, min(keep - first, most)


def _oversize(db: Connection, partition: int, first: int, excess: int, most: int) -> int:
    base = partition << OFFSET_BITS
    sizes = db.execute(
        f"select {_SIZE} from topic_records where id >= ? and id < ? order by id limit ?",
        (base + first, base + (1 << OFFSET_BITS), most),
    )
    for (size,) in sizes:
        if excess < size:  # at least max_bytes are kept, as in Kafka: less would drop records that still fit
            break
        excess -= size
        first += 1
    return first


def _remove(tx: Transaction, partition: int, first: int, end: int) -> None:
    base = partition << OFFSET_BITS
    span = (base + first, base + end)
    size = tx.run(f"select coalesce(sum({_SIZE}), 0) from topic_records where id >= ? and id < ?", span).get
    tx.run("delete from topic_records where id >= ? and id < ?", span)
    tx.run(
        "update topic_partitions set first_offset = ?, bytes = max(0, bytes - ?) where id = ?", (end, size, partition)
    )
