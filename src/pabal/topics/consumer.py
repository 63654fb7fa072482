"""The consumer: one member of a group that runs a handler on each record and commits by its outcome.

If the handler returns, the record is committed. If it raises, the record is tried again by the retry policy; after the
last attempt it goes to the topic's dlq. A bad record delays its own partition during its attempts, and no other.
`Outage` is not an attempt: the partition waits until the service that the handler needs is back. Order within a
partition is always kept.

A handler may take a batch, to make one commit of it. If that fails, each record is tried alone.

A record whose handler kills the process each time (a segmentation fault, the memory killer) is found by crash notes,
and goes to the dlq after as many crashes as a record has attempts.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, overload

from pabal.errors import Fenced
from pabal.message import check_count
from pabal.names import check_name
from pabal.policy.policy import Backoff, Policy, RetryPolicy, checked
from pabal.queues.worker import check_handler, check_returned
from pabal.topic_store import DEFAULT_PATIENCE, DEFAULT_SESSION, Member, Record
from pabal.topics.attempts import Attempts, Handler, Received, Refusal, Together, firsts
from pabal.topics.crash_notes import NOTHING, Begun, CrashNotes
from pabal.topics.dead_records import dlq_of
from pabal.topics.paused_partitions import PausedPartitions
from pabal.topics.topic import Topic

log = logging.getLogger("pabal")

RETRY = RetryPolicy(limit=5, backoff=Backoff.EXPONENTIAL, initial=0.1, max=5.0)
_SLICE = 1.0  # seconds that a read may wait: paused partitions are resumed in between
_COMMIT_SECONDS = 1.0  # a crash repeats at most the records handled in this time
_SHARE = 3  # a batch may take this part (1/3) of the time that the group waits for a member


class Consumer:
    """Runs a handler over a topic for a group. Made by `consumer`."""

    def __init__(
        self,
        topic: Topic,
        group: str,
        handler: Together,
        *,
        retry: RetryPolicy,
        batch: int,
        session: float,
        together: bool,
        chance: Callable[[], float],
    ) -> None:
        self._topic = topic
        self._clock = topic.clock
        self._group = group
        self._batch = batch
        self._session = session
        self._together = together
        self._paused = PausedPartitions(retry, self._clock, chance)
        self._crash_notes = CrashNotes(retry.limit, batch)
        self._attempts = Attempts(topic, group, handler, self._paused, self._crash_notes)
        self._member: Member | None = None
        self._broken: Exception | None = None

    @property
    def handled(self) -> int:
        return self._attempts.handled

    @property
    def dead(self) -> int:
        return self._attempts.dead

    def run(self, *, wait: float | None = None, count: int | None = None) -> int:
        """Work until stopped, until `wait` seconds bring no record, or until `count` records are handled or dead.

        Return how many were handled. Raise the error that ended the work, such as a StoreError.
        """
        patience, most = float("inf") if wait is None else wait, float("inf") if count is None else count
        self._member = member = self._topic.topics.join(self._topic.name, self._group, session=self._session)
        self._crash_notes.join()
        idle_since = self._clock.boot()
        try:
            while not self._attempts.stopping and (left := most - self.handled - self.dead) > 0:
                rest = patience - (self._clock.boot() - idle_since)
                if rest <= 0 and not self._paused:
                    break
                longest = _SLICE if self._paused else min(rest, _SLICE)
                records = member.read(int(min(self._batch, left)), self._paused.resume_due(member, longest))
                if records:
                    self._work(member, records)
                    idle_since = self._clock.boot()
        finally:
            self._member = None
            member.close()
        if self._broken is not None:
            raise self._broken
        return self.handled

    def stop(self) -> None:
        """Let the running handler finish, commit, and let `run` return. Safe in signal handlers."""
        self._attempts.stopping = True
        member = self._member
        if member is not None:
            member.wake()

    def give_up(self, exc: Exception) -> None:
        """Stop, and let `run` raise this error: for a handler for which waiting is useless."""
        self._broken = exc
        self.stop()

    def _work(self, member: Member, records: Sequence[Record]) -> None:
        """Handle the records; those left when a record must wait or the time is over are read again."""
        self._paused.read(records)
        self._crash_notes.read(member, records)
        done: dict[int, int] = {}
        held: set[int] = set()
        start = committed = self._clock.boot()
        try:
            for part in self._parts(records):
                if held:
                    part = [record for record in part if record.partition not in held]
                now = self._clock.boot()
                late = now - start > DEFAULT_PATIENCE / _SHARE
                if late or self._attempts.stopping or not self._begin(member, part, done):
                    waits = firsts(part)
                else:
                    waits = self._attempts.handle(part)
                for record in part:
                    if not waits or record.offset < waits.get(record.partition, record.offset + 1):
                        done[record.partition] = record.offset + 1
                for number, offset in waits.items():
                    held.add(number)
                    member.seek(number, offset)
                    if number in self._paused:
                        member.pause(number)
                if now - committed > _COMMIT_SECONDS:
                    self._commit(member, done)
                    committed = now
        finally:
            self._commit(member, done)

    def _parts(self, records: Sequence[Record]) -> list[list[Record]]:
        """Return the batches for the handler; a record that failed before, or is suspect, is tried alone."""
        if not self._together:
            return [[record] for record in records]
        alone: list[list[Record]] = []
        rest: list[Record] = []
        for record in records:
            if self._paused.attempts(record) or self._crash_notes.alone(record):
                alone.append([record])
            else:
                rest.append(record)
        return [*alone, rest] if rest else alone

    def _begin(self, member: Member, part: Sequence[Record], done: dict[int, int]) -> bool:
        """Write crash notes where they are needed; False if a partition has another owner."""
        if not self._crash_notes:
            return True
        begun = self._crash_notes.begin(part)
        return self._commit(member, done, begun) if self._crash_notes.due(begun) else True

    def _commit(self, member: Member, done: dict[int, int], begun: Mapping[int, Begun] = NOTHING) -> bool:
        offsets, notes = self._crash_notes.settle(done, begun)
        try:
            member.commit(offsets, notes)
            return True
        except Fenced as exc:
            fields = {"group": self._group, "error": str(exc)}
            log.warning("%(group)s: handled records will be handled again by another: %(error)s", fields)
            self._crash_notes.lost()
            return False
        finally:
            done.clear()


def _one_by_one(handler: Handler) -> Together:
    def handle(received: Sequence[Received]) -> Iterable[Refusal]:
        for one in received:
            check_returned(handler(one))
        return ()

    return handle


@overload
def consumer(
    topic: Topic,
    group: str,
    handler: Together,
    *,
    together: Literal[True],
    retry: RetryPolicy = ...,
    batch: int = ...,
    session: float = ...,
    chance: Callable[[], float] = ...,
) -> Consumer: ...


@overload
def consumer(
    topic: Topic,
    group: str,
    handler: Handler,
    *,
    together: Literal[False] = ...,
    retry: RetryPolicy = ...,
    batch: int = ...,
    session: float = ...,
    chance: Callable[[], float] = ...,
) -> Consumer: ...


def consumer(
    topic: Topic,
    group: str,
    handler: Any,
    *,
    together: bool = False,
    retry: RetryPolicy = RETRY,
    batch: int = 100,
    session: float = DEFAULT_SESSION,
    chance: Callable[[], float] = random.random,
) -> Consumer:
    """Make a consumer: `handler(received)` for each record of the partitions that this member of the group owns.

    With `together` the handler gets a list of up to `batch` records, and returns a Refusal for each bad one. If a
    process is silent for `session` seconds, the other members take over its partitions. `chance` serves the jitter of
    backoff.
    """
    check_handler(handler, together=together)
    dlq_of(topic)  # a name that is too long is refused now, not when the first record is dead
    return Consumer(
        topic,
        check_name(group, "group"),
        handler if together else _one_by_one(handler),
        retry=checked(Policy(retry=retry)).retry,
        batch=check_count("batch", batch),
        session=session,
        together=together,
        chance=chance,
    )
