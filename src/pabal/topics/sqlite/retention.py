"""Retention: the oldest records of a partition go when they are too old or the partition too large. Offsets stay."""

from __future__ import annotations

from typing import NamedTuple

from pabal.sql.connection import Connection
from pabal.sql.writer import Transaction
from pabal.topics.sqlite.rows import OFFSET_BITS, Known, first_from

SLICE = 5_000  # records removed in one commit, so that nobody waits long for it

_SIZE = "length(value) + coalesce(length(key), 0) + coalesce(length(headers), 0)"


class Limits(NamedTuple):
    """What each partition of a topic keeps; 0 is no limit. Others may change it: it is looked up for each use."""

    max_age: float
    max_bytes: int


def limits_of(db: Connection, topic: Known) -> Limits:
    found: tuple[float, int] = db.execute("select max_age, max_bytes from topics where id = ?", (topic.id,)).get
    return Limits(*found)


def set_limits(tx: Transaction, topic: Known, max_age: float | None, max_bytes: int | None) -> None:
    """Change the limits that are given."""
    tx.run(
        "update topics set max_age = coalesce(?, max_age), max_bytes = coalesce(?, max_bytes) where id = ?",
        (max_age, max_bytes, topic.id),
    )


def anything(db: Connection, topic: Known, now: float) -> bool:
    """Say whether there is something to remove, at the cost of a look at each partition."""
    limits = limits_of(db, topic)
    if not any(limits):
        return False
    return any(_end(db, limits, topic.base + number, now)[1] for number in range(topic.partitions))


def trim(tx: Transaction, topic: Known, now: float) -> int:
    """Remove one slice of what is too much; return how many records."""
    removed, limits = 0, limits_of(tx.connection, topic)
    for partition in range(topic.base, topic.base + topic.partitions):
        first, surplus = _end(tx.connection, limits, partition, now, room=SLICE - removed)
        if surplus:
            _remove(tx, partition, first, first + surplus)
            removed += surplus
        if removed >= SLICE:
            break
    return removed


def _end(db: Connection, limits: Limits, partition: int, now: float, room: int = SLICE) -> tuple[int, int]:
    """Return the first offset and how many records from it on are too much, up to `room`."""
    max_age, max_bytes = limits
    row: tuple[int, int, int] = db.execute(
        "select first_offset, next_offset, bytes from topic_partitions where id = ?", (partition,)
    ).get
    first, end, size = row
    keep = first_from(db, partition, first, end, now - max_age) if max_age else first
    if max_bytes and size > max_bytes:
        keep = max(keep, _oversize(db, partition, first, size - max_bytes, room))
    return first, min(keep - first, room)


def _oversize(db: Connection, partition: int, first: int, excess: int, room: int) -> int:
    base = partition << OFFSET_BITS
    sizes = db.execute(
        f"select {_SIZE} from topic_records where id >= ? and id < ? order by id limit ?",
        (base + first, base + (1 << OFFSET_BITS), room),
    )
    for (size,) in sizes:
        if excess < size:  # what is kept is at least max_bytes, as in Kafka: less would drop what still fits
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
