"""Lanes: the partitions of a consumer that wait, each for another try of the record that it stands at."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from typing import NamedTuple

from pabal.policy import Backoff, RetryPolicy
from pabal.topic import Member, Record

OUTAGE = RetryPolicy(backoff=Backoff.EXPONENTIAL, initial=0.25, max=15.0)


class Lane(NamedTuple):
    """A partition that waits: at which record, how often that was tried, how often what it needs was down."""

    offset: int
    attempts: int
    outages: int
    due: float


class Lanes:
    """The lanes of one consumer. What it learns of a record is kept until its partition is read on."""

    def __init__(self, retry: RetryPolicy) -> None:
        self._retry = retry
        self._waiting: dict[int, Lane] = {}
        self._reading: dict[int, Lane] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __contains__(self, partition: int) -> bool:
        return partition in self._waiting

    def read(self, records: Iterable[Record]) -> None:
        """Take note that these are being handled: their partitions wait no more."""
        if not self._waiting:
            self._reading = {}
            return
        numbers = {record.partition for record in records}
        self._reading = {number: lane for number, lane in self._waiting.items() if number in numbers}
        self._waiting = {number: lane for number, lane in self._waiting.items() if number not in numbers}

    def of(self, record: Record) -> Lane:
        """Return what is known of a record."""
        lane = self._reading.get(record.partition)
        return lane if lane is not None and lane.offset == record.offset else Lane(record.offset, 0, 0, 0.0)

    def attempts(self, record: Record) -> int:
        """Return how often a record was tried before."""
        return self.of(record).attempts if self._reading else 0

    def failed(self, record: Record) -> bool:
        """Count a try and let the partition wait for the next; False if that was the last."""
        attempts = self.of(record).attempts + 1
        if attempts >= self._retry.limit:
            return False
        due = time.monotonic() + self._retry.delay(attempts, random.random())
        self._waiting[record.partition] = Lane(record.offset, attempts, 0, due)
        return True

    def wait(self, record: Record) -> None:
        """Let the partition wait until what it needs is back; that is no try."""
        lane = self.of(record)
        due = time.monotonic() + OUTAGE.delay(lane.outages + 1, random.random())
        self._waiting[record.partition] = Lane(record.offset, lane.attempts, lane.outages + 1, due)

    def go_on(self, member: Member, longest: float) -> float:
        """Let those go on that are due; return how long the next one has still to wait, `longest` at most."""
        now = time.monotonic()
        self._waiting = {number: lane for number, lane in self._waiting.items() if number in member.partitions}
        pause = max(0.0, longest)
        for number, lane in self._waiting.items():
            if lane.due <= now:
                member.resume(number)
            else:
                pause = min(pause, lane.due - now)
        return pause
