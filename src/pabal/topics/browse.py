"""Pages of records as operators read them, without a group: on from some places, or back from them.

A place is an offset in a partition. Records of several partitions come in the order of their times; those of one
partition always keep their own order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from heapq import merge
from itertools import islice

from pabal.errors import InvalidInput
from pabal.topic_store import Record
from pabal.topics.topic import Topic

Places = Mapping[int, int]

_LOT = 500  # records of one read
_LEAST = 5  # of each partition, of which a page may take none
_PLACE = re.compile(r"(\d{1,5})\.(\d{1,18})", re.ASCII)


def records_from(topic: Topic, places: Places, limit: int) -> tuple[list[Record], dict[int, int] | None]:
    """Return records from these places on, and the places behind them; None if there are no more."""
    ends = topic.bounds()
    lot = _lot(places, limit)
    parts = [_on(topic, number, start, ends[number].next, lot) for number, start in places.items()]
    found = list(islice(merge(*parts, key=_time), limit))
    behind = dict(places) | {record.partition: record.offset + 1 for record in found}
    more = len(found) == limit and any(place < ends[number].next for number, place in behind.items())
    return found, behind if more else None


def records_before(topic: Topic, places: Places, limit: int) -> tuple[list[Record], dict[int, int] | None]:
    """Return the last records before these places, the oldest first, and where they begin; None if none are left."""
    firsts = topic.bounds()
    lot = _lot(places, limit)
    parts = [_back(topic, number, firsts[number].first, end, lot) for number, end in places.items()]
    found = list(islice(merge(*parts, key=_time, reverse=True), limit))
    begin = dict(places) | {record.partition: record.offset for record in found}
    more = len(found) == limit and any(place > firsts[number].first for number, place in begin.items())
    return found[::-1], begin if more else None


def write_places(places: Places) -> str:
    """Return places as text."""
    return ",".join(f"{number}.{offset}" for number, offset in places.items())


def read_places(text: str, partitions: int) -> dict[int, int]:
    """Read places from their text, of a topic with so many partitions."""
    found = [_PLACE.fullmatch(part) for part in text.split(",")]
    places = {int(each[1]): int(each[2]) for each in found if each is not None}
    if None in found or max(places) >= partitions:
        words = f"0.17,1.4 of {partitions} partitions"
        raise InvalidInput(f"places are partitions with offsets, such as {words}; found {text!r:.80}")
    return places


def _lot(places: Places, limit: int) -> int:
    """Return how many records to read of each partition at a time: not many more than are wanted of all of them."""
    return min(_LOT, max(_LEAST, limit // max(1, len(places)) + 1))


def _on(topic: Topic, number: int, start: int, end: int, lot: int) -> Iterator[Record]:
    while start < end and (page := topic.read(number, start, min(lot, end - start))):
        yield from page
        start = page[-1].offset + 1


def _back(topic: Topic, number: int, first: int, end: int, lot: int) -> Iterator[Record]:
    while end > first:
        start = max(first, end - lot)
        yield from (record for record in reversed(topic.read(number, start, end - start)) if record.offset < end)
        end = start


def _time(record: Record) -> tuple[float, int, int]:
    return record.at, record.partition, record.offset
