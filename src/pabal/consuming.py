"""The consumer: one member of a group that runs a handler on each record and commits by what the handler does.

Returning commits the record, raising tries it again by the retry policy, and after the last try it goes to the topic's
dlq: one bad record holds up its own partition for the tries and no longer, other partitions not at all. `Outage` is not
a try: the partition waits until what the handler needs is back. Order within a partition is kept throughout.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pabal.appending import Topic
from pabal.dead_records import REPLAY_FOR, Dead, bury
from pabal.delivery import reason_of
from pabal.errors import Fenced, Outage, PabalError, ValidationFailed
from pabal.jsontext import Json
from pabal.message import check_count
from pabal.names import check_name
from pabal.policy import Backoff, RetryPolicy
from pabal.store import FailureCode
from pabal.topic import DEFAULT_PATIENCE, DEFAULT_SESSION, Member, Record

log = logging.getLogger("pabal")

RETRY = RetryPolicy(limit=5, backoff=Backoff.EXPONENTIAL, initial=0.1, max=5.0)
OUTAGE = RetryPolicy(backoff=Backoff.EXPONENTIAL, initial=0.25, max=15.0)
_SLICE = 1.0  # seconds that a read may wait: paused partitions are looked after in between
_COMMIT_SECONDS = 1.0  # a crash repeats at most what was handled for so long
_SHARE = 3  # a batch may take one part of so many of the patience that the group has with this member


class Received(NamedTuple):
    """A record in a handler's hands. `attempt` counts the tries of this process."""

    record: Record
    body: Json | bytes
    attempt: int


class Lane(NamedTuple):
    """A partition that waits to try a record again."""

    offset: int
    attempts: int
    outages: int
    due: float


Handler = Callable[[Received], object]


class Consumer:
    """Runs a handler over a topic for a group. Made by `consumer`."""

    def __init__(
        self, topic: Topic, group: str, handler: Handler, *, retry: RetryPolicy, batch: int, session: float
    ) -> None:
        self._topic = topic
        self._group = group
        self._handler = handler
        self._retry = retry
        self._batch = batch
        self._session = session
        self._lanes: dict[int, Lane] = {}
        self._member: Member | None = None
        self._stopping = False
        self.handled = 0
        self.dead = 0

    def run(self, *, wait: float | None = None, count: int | None = None) -> int:
        """Work until stopped, until `wait` seconds bring nothing, or until `count` records are done, dead ones too.

        Return how many were handled. Raise what made going on impossible, such as a StoreError.
        """
        patience, most = float("inf") if wait is None else wait, float("inf") if count is None else count
        self._member = member = self._topic.topics.join(self._topic.name, self._group, session=self._session)
        idle_since = time.monotonic()
        try:
            while not self._stopping and (left := most - self.handled - self.dead) > 0:
                rest = patience - (time.monotonic() - idle_since)
                if rest <= 0 and not self._lanes:
                    break
                records = member.read(int(min(self._batch, left)), self._pause(member, rest))
                if records:
                    self._work(member, records)
                    idle_since = time.monotonic()
        finally:
            self._member = None
            member.close()
        return self.handled

    def stop(self) -> None:
        """Finish the current record and commit; `run` returns. For signal handlers too."""
        self._stopping = True
        member = self._member
        if member is not None:
            member.wake()

    def _pause(self, member: Member, rest: float) -> float:
        """Let lanes go on that are due; return how long there is nothing to do but to wait for records."""
        now = time.monotonic()
        self._lanes = {number: lane for number, lane in self._lanes.items() if number in member.partitions}
        pause = max(0.0, min(rest, _SLICE))
        for number, lane in self._lanes.items():
            if lane.due <= now:
                member.resume(number)
            else:
                pause = min(pause, lane.due - now)
        return pause

    def _work(self, member: Member, records: Sequence[Record]) -> None:
        """Handle a batch; what is left of it when a record must wait or time is over is read again."""
        done: dict[int, int] = {}
        held: set[int] = set()
        start = committed = time.monotonic()
        try:
            for record in records:
                number = record.partition
                if number in held:
                    continue
                now = time.monotonic()
                late = now - start > DEFAULT_PATIENCE / _SHARE
                if self._stopping or late or not self._handle(record):
                    held.add(number)
                    member.seek(number, record.offset)
                    if number in self._lanes:
                        member.pause(number)
                    continue
                done[number] = record.offset + 1
                if now - committed > _COMMIT_SECONDS:
                    self._commit(member, done)
                    committed = now
        finally:
            self._commit(member, done)

    def _commit(self, member: Member, done: dict[int, int]) -> None:
        try:
            member.commit(done)
        except Fenced as exc:
            log.warning("%s: handled records will be handled again by another: %s", self._group, exc)
        done.clear()

    def _handle(self, record: Record) -> bool:
        """Return True if the group is done with this record, False if its partition must wait for another try."""
        lane = self._lanes.pop(record.partition, None)
        if lane is None or lane.offset != record.offset:
            lane = Lane(record.offset, 0, 0, 0.0)
        if record.headers.get(REPLAY_FOR, self._group) != self._group:
            return True
        attempt = lane.attempts + 1
        try:
            if record.fault:
                return self._bury(record, FailureCode.CORRUPT, record.fault, attempt)
            body = self._topic.body_of(record)
        except ValidationFailed as exc:
            return self._bury(record, FailureCode.VALIDATION_ERROR, str(exc), attempt)
        try:
            self._handler(Received(record, body, attempt))
        except Outage as exc:
            return self._wait(record, lane, exc)
        except Exception as exc:
            log.info("handler raised for %s", record, exc_info=exc)
            if attempt >= self._retry.limit:
                return self._bury(record, FailureCode.HANDLER_ERROR, reason_of(exc), attempt)
            due = time.monotonic() + self._retry.delay(attempt, random.random())
            self._lanes[record.partition] = Lane(record.offset, attempt, 0, due)
            return False
        self.handled += 1
        return True

    def _bury(self, record: Record, code: FailureCode, reason: str, attempt: int) -> bool:
        try:
            bury(self._topic, record, Dead(self._group, code, reason, attempt))
        except PabalError as exc:  # passing it over would lose it
            return self._wait(record, Lane(record.offset, attempt - 1, 0, 0.0), exc)
        log.warning("%s is dead for %s: %s: %s", record, self._group, code, reason)
        self.dead += 1
        return True

    def _wait(self, record: Record, lane: Lane, exc: Exception) -> bool:
        outages = lane.outages + 1
        log.warning("%s waits at %s: %s", self._group, record, reason_of(exc))
        due = time.monotonic() + OUTAGE.delay(outages, random.random())
        self._lanes[record.partition] = Lane(record.offset, lane.attempts, outages, due)
        return False


def consumer(
    topic: Topic,
    group: str,
    handler: Handler,
    *,
    retry: RetryPolicy = RETRY,
    batch: int = 100,
    session: float = DEFAULT_SESSION,
) -> Consumer:
    """Make a consumer: `handler(received)` for each record of the topic that falls to this member of the group.

    A process that is silent for `session` seconds is replaced by the other members.
    """
    return Consumer(
        topic, check_name(group, "group"), handler, retry=retry, batch=check_count("batch", batch), session=session
    )
