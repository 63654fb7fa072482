"""Paused partitions: each waits for another attempt of the record at which it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from pabal.clock import Clock
from pabal.policy.policy import Backoff, RetryPolicy
from pabal.topic_store import Member, Record

OUTAGE = RetryPolicy(backoff=Backoff.EXPONENTIAL, initial=0.25, max=15.0)


class PausedPartition(NamedTuple):
    """A partition that waits: the offset of its record, its attempts, its outages in a row, and when to go on."""

    offset: int
    attempts: int
    outages: int
    due: float


class PausedPartitions:
    """The paused partitions of one consumer. The attempts of a record are kept until its partition is read on."""

    def __init__(self, retry: RetryPolicy, clock: Clock, chance: Callable[[], float]) -> None:
        self._retry = retry
        self._clock = clock
        self._chance = chance
        self._waiting: dict[int, PausedPartition] = {}
        self._reading: dict[int, PausedPartition] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __contains__(self, partition: int) -> bool:
        return partition in self._waiting

    def read(self, records: Iterable[Record]) -> None:
        """Note that these records are being handled: their partitions no longer wait."""
        if not self._waiting:
            self._reading = {}
            return
        numbers = {record.partition for record in records}
        self._reading = {number: paused for number, paused in self._waiting.items() if number in numbers}
        self._waiting = {number: paused for number, paused in self._waiting.items() if number not in numbers}

    def of(self, record: Record) -> PausedPartition:
        """Return the attempts and outages of a record so far."""
        paused = self._reading.get(record.partition)
        return (
            paused
            if paused is not None and paused.offset == record.offset
            else PausedPartition(record.offset, 0, 0, 0.0)
        )

    def attempts(self, record: Record) -> int:
        """Return how many attempts a record has had."""
        return self.of(record).attempts if self._reading else 0

    def failed(self, record: Record) -> bool:
        """Count an attempt and pause the partition until the next; False if that was the last."""
        attempts = self.of(record).attempts + 1
        if attempts >= self._retry.limit:
            return False
        due = self._clock.boot() + self._retry.delay(attempts, self._chance())
        self._waiting[record.partition] = PausedPartition(record.offset, attempts, 0, due)
        return True

    def wait(self, record: Record) -> None:
        """Pause the partition during an outage, which is not an attempt."""
        paused = self.of(record)
        due = self._clock.boot() + OUTAGE.delay(paused.outages + 1, self._chance())
        self._waiting[record.partition] = PausedPartition(record.offset, paused.attempts, paused.outages + 1, due)

    def resume_due(self, member: Member, longest: float) -> float:
        """Resume the partitions that are due; return the seconds until the next one is, `longest` at most."""
        now = self._clock.boot()
        self._waiting = {number: paused for number, paused in self._waiting.items() if number in member.partitions}
        pause = max(0.0, longest)
        for number, paused in self._waiting.items():
            if paused.due <= now:
                member.resume(number)
            else:
                pause = min(pause, paused.due - now)
        return pause
