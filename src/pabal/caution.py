"""Caution: what a consumer writes down before it begins, so that a record that ends its process is found out.

The first batch of a partition that was just taken over, all that a dead owner may have had in hand, is begun with a
note beside the group's offset, which goes when it ends in whatever good order: handled, failed, stopped, given away. A
note that is still there says that its process died or hung. From then on the records that it names are begun one by
one, each with a note that counts how often that very record was begun and came to no end. All others need no note.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from pabal.topic import NO_NOTES, Member, Record

_NOTE = re.compile(r"begun (\d{1,15}) (\d{1,9}) (\d{1,15})", re.ASCII)


class Begun(NamedTuple):
    """Records from `offset` up to `until` that were begun; `times` is how often the first was begun alone."""

    offset: int
    times: int
    until: int

    def __str__(self) -> str:
        return f"begun {self.offset} {self.times} {self.until}"


Notes: TypeAlias = dict[int, Begun]
NOTHING: Mapping[int, Begun] = {}


class Caution:
    """The partitions of one consumer that are new to it or suspect; all others are none of its business."""

    def __init__(self, limit: int, batch: int) -> None:
        self._limit = limit
        self._batch = batch
        self._owned: frozenset[int] = frozenset()
        self._taken: set[int] = set()  # nothing of them was read yet
        self._fresh: dict[int, int] = {}  # where their first batch ends
        self._ends: dict[int, int] = {}  # where this read ends
        self._suspects: Notes = {}
        self._standing: Notes = {}  # what was begun and must be taken back when it ends

    def __bool__(self) -> bool:
        return bool(self._fresh or self._suspects)

    def join(self) -> None:
        """Forget what was known of partitions: whoever joins takes them over anew."""
        self._owned = frozenset()
        self._taken.clear()
        self._fresh.clear()
        self._suspects.clear()

    def read(self, member: Member, records: Sequence[Record]) -> None:
        """See which partitions are new, and what the notes found there say of these records."""
        owned = member.partitions
        if owned != self._owned:
            self._taken = (self._taken | owned - self._owned) & owned
            self._fresh = {number: end for number, end in self._fresh.items() if number in owned}
            self._suspects = {number: found for number, found in self._suspects.items() if number in owned}
            self._owned = owned
        if not self._taken and not self._fresh:
            return
        self._ends = {record.partition: record.offset + 1 for record in records}
        for number, first in {record.partition: record.offset for record in reversed(records)}.items():
            if number in self._taken:
                self._taken.discard(number)
                self._fresh[number] = first + self._batch
                self._suspect(number, first, member.note(number))

    def alone(self, record: Record) -> bool:
        """Say whether a record is begun by itself."""
        found = self._suspects.get(record.partition)
        return found is not None and record.offset < found.until

    def deaths(self, record: Record) -> int:
        """Return how often a record was begun alone and came to no end."""
        found = self._suspects.get(record.partition)
        return found.times if found is not None and found.offset == record.offset else 0

    def fatal(self, record: Record) -> bool:
        """Say whether a record has ended as many processes as it may."""
        return self.deaths(record) >= self._limit

    def begin(self, records: Sequence[Record]) -> Notes:
        """Return what must be written down before these go to the handler."""
        begun: Notes = {}
        for record in records:
            number = record.partition
            if self.alone(record):
                if not self.fatal(record):
                    begun[number] = Begun(record.offset, self.deaths(record) + 1, self._suspects[number].until)
            elif number in self._fresh and number not in begun and number not in self._standing:
                end = self._ends[number]
                alone = len(records) == 1 and record.offset + 1 == end
                begun[number] = Begun(record.offset, int(alone), end)
        return begun

    def due(self, begun: Mapping[int, Begun]) -> bool:
        """Say whether to commit before these begin: their notes must stand, and none that blames a single record."""
        return bool(begun) or any(found.times for found in self._standing.values())

    def settle(self, done: dict[int, int], begun: Mapping[int, Begun]) -> tuple[dict[int, int], Mapping[int, str]]:
        """Take into account what is done; return what to commit, with what begins next."""
        if not self:
            return done, NO_NOTES
        for number, offset in done.items():
            if offset >= self._fresh.get(number, offset):
                self._fresh.pop(number, None)
            if (found := self._suspects.pop(number, None)) is not None and offset < found.until:
                self._suspects[number] = Begun(offset, 0, found.until)
        ended = {number: found.offset for number, found in self._standing.items()}
        self._standing = dict(begun)
        offsets = {**ended, **done, **{number: found.offset for number, found in begun.items()}}
        notes = {**{number: self._suspects[number] for number in offsets if number in self._suspects}, **begun}
        return offsets, {number: str(found) for number, found in notes.items()}

    def lost(self) -> None:
        """Take into account that a commit was refused: what stands there is another's."""
        self._standing = {}

    def _suspect(self, number: int, first: int, note: str) -> None:
        told = _NOTE.fullmatch(note)
        if told is not None and int(told[1]) == first:
            self._suspects[number] = Begun(*map(int, told.groups()))
