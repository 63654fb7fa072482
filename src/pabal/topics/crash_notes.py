"""Crash notes: a consumer writes a note before it handles records, so that a record that kills its process is found.

A consumer that takes over a partition begins the first batch with a note beside the committed offset: a dead owner may
have had any of these records. The note is removed when the batch ends in order: handled, failed, stopped, given
away. If the next owner finds a note, the process before it died or hung. The records of the note are then begun one by
one, each with a note that counts how often this record was begun without an end. All other records need no note.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from pabal.topic_store import NO_NOTES, Member, Record

_NOTE = re.compile(r"begun (\d{1,15}) (\d{1,9}) (\d{1,15})", re.ASCII)


class Begun(NamedTuple):
    """Records from `offset` up to `until` that were begun; `times` counts how often the first was begun alone."""

    offset: int
    times: int
    until: int

    def __str__(self) -> str:
        return f"begun {self.offset} {self.times} {self.until}"


Notes: TypeAlias = dict[int, Begun]
NOTHING: Mapping[int, Begun] = {}


class CrashNotes:
    """The partitions of one consumer that it has just taken over or that have a suspect record."""

    def __init__(self, limit: int, batch: int) -> None:
        self._limit = limit
        self._batch = batch
        self._owned: frozenset[int] = frozenset()
        self._taken: set[int] = set()  # not read yet
        self._fresh: dict[int, int] = {}  # the end of their first batch
        self._ends: dict[int, int] = {}  # the end of this read
        self._suspects: Notes = {}
        self._standing: Notes = {}  # begun: the note must be removed at the end

    def __bool__(self) -> bool:
        return bool(self._fresh or self._suspects)

    def join(self) -> None:
        """Forget all partitions: a member that joins takes them over again."""
        self._owned = frozenset()
        self._taken.clear()
        self._fresh.clear()
        self._suspects.clear()

    def read(self, member: Member, records: Sequence[Record]) -> None:
        """Find the partitions that are new, and the suspects in their notes."""
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
        """Return whether a record must be handled alone."""
        found = self._suspects.get(record.partition)
        return found is not None and record.offset < found.until

    def deaths(self, record: Record) -> int:
        """Return how often a record was begun alone without an end."""
        found = self._suspects.get(record.partition)
        return found.times if found is not None and found.offset == record.offset else 0

    def fatal(self, record: Record) -> bool:
        """Return whether a record has killed as many processes as the limit allows."""
        return self.deaths(record) >= self._limit

    def begin(self, records: Sequence[Record]) -> Notes:
        """Return the notes to write before these records are handled."""
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
        """Return whether to commit before these begin: to write their notes, or to remove a note of a single record."""
        return bool(begun) or any(found.times for found in self._standing.values())

    def settle(self, done: dict[int, int], begun: Mapping[int, Begun]) -> tuple[dict[int, int], Mapping[int, str]]:
        """Update the suspects by the done offsets; return the offsets and notes to commit."""
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
        """Note that a commit was refused: the notes there are those of another member."""
        self._standing = {}

    def _suspect(self, number: int, first: int, note: str) -> None:
        found = _NOTE.fullmatch(note)
        if found is not None and int(found[1]) == first:
            self._suspects[number] = Begun(*map(int, found.groups()))
