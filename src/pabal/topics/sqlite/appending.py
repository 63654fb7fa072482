"""Appending: every record of a call gets the next offset of its partition, all in one commit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from zlib import crc32

from pabal.sql.inserts import Insert
from pabal.sql.writer import Transaction
from pabal.topic import NewRecord, Position
from pabal.topic_limits import check_partition
from pabal.topics.partition import key_bytes, partition_of
from pabal.topics.sqlite.rows import OFFSET_BITS, Known, headers_text

_INSERT = Insert("topic_records", "id, at, key, value, headers, crc")
_turns = count()  # where the next call without keys goes; no promise hangs on it


class Bundle:
    """The records of one call for one partition: key, value, headers and checksum of each, and the size of all."""

    __slots__ = ("rows", "size")

    def __init__(self) -> None:
        self.rows: list[tuple[bytes | None, bytes, bytes | None, int]] = []
        self.size = 0


class Sheaf:
    """The records of one call, sorted by partition and written down, to be numbered inside the transaction."""

    def __init__(self, topic: Known, records: Sequence[NewRecord]) -> None:
        self._topic = topic
        self._turn = next(_turns) % topic.partitions  # those without a key stay together
        self._places: list[tuple[int, int]] = []
        self._bundles: dict[int, Bundle] = {}
        known: dict[tuple[str, int | None], tuple[int, Bundle, bytes | None, int]] = {}
        for value, key, headers, partition in records:
            found = known.get((key, partition))
            if found is None:
                found = known[key, partition] = self._place(key, partition)
            number, bundle, stored_key, start = found
            told = headers_text(headers) if headers else None
            crc = crc32(value, start)
            self._places.append((number, len(bundle.rows)))
            bundle.rows.append((stored_key, value, told, crc if told is None else crc32(told, crc)))
            bundle.size += len(value) + len(stored_key or b"") + len(told or b"")

    def append(self, tx: Transaction, now: float) -> list[Position]:
        """Number and insert the rows; return where each record stands, in the order they came."""
        starts = {number: self._extend(tx, number, bundle, now) for number, bundle in self._bundles.items()}
        return [Position(number, starts[number] + place) for number, place in self._places]

    def _place(self, key: str, partition: int | None) -> tuple[int, Bundle, bytes | None, int]:
        """Return for a key its partition, what is gathered for it, the key as stored and its checksum."""
        count = self._topic.partitions
        if partition is not None:
            number = check_partition(self._topic.name, partition, count)
        else:
            number = partition_of(key, count) if key else self._turn
        stored = key_bytes(key)
        return number, self._bundles.setdefault(number, Bundle()), stored or None, crc32(stored)

    def _extend(self, tx: Transaction, number: int, bundle: Bundle, now: float) -> int:
        partition = self._topic.base + number
        start, last_at = tx.run(
            "select next_offset, last_at from topic_partitions where id = ?", (partition,)
        ).fetchone()
        at = max(now, last_at)
        first = (partition << OFFSET_BITS) + start
        _INSERT.run(tx, [value for id, row in enumerate(bundle.rows, first) for value in (id, at, *row)])
        tx.run(
            "update topic_partitions set next_offset = ?, last_at = ?, bytes = bytes + ? where id = ?",
            (start + len(bundle.rows), at, bundle.size, partition),
        )
        result: int = start
        return result
