"""Records as rows: how they are written down, numbered, read back and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

from pabal import jsontext
from pabal.sql.connection import Connection
from pabal.topic import NO_HEADERS, Bounds, Record

OFFSET_BITS = 40
_OFFSET = (1 << OFFSET_BITS) - 1
Row: TypeAlias = tuple[int, float, bytes | None, bytes, bytes | None, int]

_PAGE = "select id, at, key, value, headers, crc from topic_records where id >= ? and id < ? order by id limit ?"


class Known(NamedTuple):
    """What never changes of a topic."""

    id: int
    name: str
    base: int
    partitions: int

    @property
    def bell(self) -> str:
        """Name the topic's bell, as no queue can be named."""
        return f"topic~{self.name}"


def headers_text(headers: Mapping[str, str]) -> bytes:
    """Return headers as they are stored."""
    return jsontext.encode({name: _kept(text) for name, text in headers.items()})


def checksum(key: bytes | None, value: bytes, headers: bytes | None) -> int:
    """Return the checksum of key, value and headers, one after the other."""
    found = crc32(value, crc32(key or b""))
    return found if headers is None else crc32(headers, found)


def _kept(text: str) -> str:
    # A header of a foreign record may be no UTF-8; JSON must be.
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def page(db: Connection, topic: Known, number: int, offset: int, limit: int) -> list[Record]:
    """Read records of one partition in their order."""
    first = (topic.base + number) << OFFSET_BITS
    rows: Any = db.execute(_PAGE, (first + offset, first + (1 << OFFSET_BITS), limit)).fetchall()
    name, keys = topic.name, _Keys()
    # Most records have no headers and are whole.
    return [
        Record(name, number, id & _OFFSET, at, known[0], value)
        if headers is None and crc == crc32(value, (known := keys[key])[1])
        else _whole(name, number, (id, at, key, value, headers, crc))
        for id, at, key, value, headers, crc in rows
    ]


class _Keys(dict[bytes | None, tuple[str, int]]):
    """Keys as text, with the checksum that goes on from them; those of a page are often the same."""

    def __missing__(self, key: bytes | None) -> tuple[str, int]:
        known = self[key] = _text(key or b""), crc32(key or b"")
        return known


def _whole(name: str, number: int, row: Row) -> Record:
    id, at, key, value, headers, crc = row
    fault, told = "", NO_HEADERS
    if crc != checksum(key, value, headers):
        fault = "the checksum does not fit: the record was damaged on disk"
    elif headers is not None:
        told = _headers(headers)
    return Record(name, number, id & _OFFSET, at, _text(key or b""), value, told, fault)


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
    return [
        Bounds(*row)
        for row in db.execute(
            "select first_offset, next_offset from topic_partitions where id >= ? and id < ? order by id",
            (topic.base, topic.base + topic.partitions),
        )
    ]
