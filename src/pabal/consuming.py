"""The consumer: one member of a group that runs a handler on each record and commits by what the handler does.

Returning commits the record, raising tries it again by the retry policy, and after the last try it goes to the topic's
dlq: one bad record holds up its own partition for the tries and no longer, other partitions not at all. `Outage` is not
a try: the partition waits until what the handler needs is back. Order within a partition is kept throughout.

A handler may take what was read together, to make one commit of it. If that fails, each record is tried alone: a bad
one costs the others their company and nothing else.

A record whose handler ends the process each time (a segmentation fault, the memory killer) is found out by the notes
that `Caution` leaves, and goes to the dlq when it has done so as often as a record is tried.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, overload

from pabal.appending import Topic
from pabal.calling import check_handler, check_returned
from pabal.caution import NOTHING, Begun, Caution
from pabal.dead_records import dlq_of
from pabal.errors import Fenced
from pabal.handling import Handler, Handling, Received, Refusal, Together, firsts
from pabal.lanes import Lanes
from pabal.message import check_count
from pabal.names import check_name
from pabal.policy import Backoff, Policy, RetryPolicy, checked
from pabal.topic import DEFAULT_PATIENCE, DEFAULT_SESSION, Member, Record

log = logging.getLogger("pabal")

RETRY = RetryPolicy(limit=5, backoff=Backoff.EXPONENTIAL, initial=0.1, max=5.0)
_SLICE = 1.0  # seconds that a read may wait: paused partitions are looked after in between
_COMMIT_SECONDS = 1.0  # a crash repeats at most what was handled for so long
_SHARE = 3  # a batch may take one part of so many of the patience that the group has with this member


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
    ) -> None:
        self._topic = topic
        self._group = group
        self._batch = batch
        self._session = session
        self._together = together
        self._lanes = Lanes(retry)
        self._caution = Caution(retry.limit, batch)
        self._handling = Handling(topic, group, handler, self._lanes, self._caution)
        self._member: Member | None = None
        self._broken: Exception | None = None

    @property
    def handled(self) -> int:
        return self._handling.handled

    @property
    def dead(self) -> int:
        return self._handling.dead

    def run(self, *, wait: float | None = None, count: int | None = None) -> int:
        """Work until stopped, until `wait` seconds bring nothing, or until `count` records are done, dead ones too.

        Return how many were handled. Raise what made going on impossible, such as a StoreError.
        """
        patience, most = float("inf") if wait is None else wait, float("inf") if count is None else count
        self._member = member = self._topic.topics.join(self._topic.name, self._group, session=self._session)
        self._caution.join()
        idle_since = time.monotonic()
        try:
            while not self._handling.stopping and (left := most - self.handled - self.dead) > 0:
                rest = patience - (time.monotonic() - idle_since)
                if rest <= 0 and not self._lanes:
                    break
                longest = _SLICE if self._lanes else min(rest, _SLICE)
                records = member.read(int(min(self._batch, left)), self._lanes.go_on(member, longest))
                if records:
                    self._work(member, records)
                    idle_since = time.monotonic()
        finally:
            self._member = None
            member.close()
        if self._broken is not None:
            raise self._broken
        return self.handled

    def stop(self) -> None:
        """Finish what the handler has and commit; `run` returns. For signal handlers too."""
        self._handling.stopping = True
        member = self._member
        if member is not None:
            member.wake()

    def give_up(self, exc: Exception) -> None:
        """Stop, and let `run` raise this: for a handler that finds that no waiting will help."""
        self._broken = exc
        self.stop()

    def _work(self, member: Member, records: Sequence[Record]) -> None:
        """Handle what was read; what is left of it when a record must wait or time is over is read again."""
        self._lanes.read(records)
        self._caution.read(member, records)
        done: dict[int, int] = {}
        held: set[int] = set()
        start = committed = time.monotonic()
        try:
            for part in self._parts(records):
                if held:
                    part = [record for record in part if record.partition not in held]
                now = time.monotonic()
                late = now - start > DEFAULT_PATIENCE / _SHARE
                if late or self._handling.stopping or not self._begin(member, part, done):
                    waits = firsts(part)
                else:
                    waits = self._handling.handle(part)
                for record in part:
                    if not waits or record.offset < waits.get(record.partition, record.offset + 1):
                        done[record.partition] = record.offset + 1
                for number, offset in waits.items():
                    held.add(number)
                    member.seek(number, offset)
                    if number in self._lanes:
                        member.pause(number)
                if now - committed > _COMMIT_SECONDS:
                    self._commit(member, done)
                    committed = now
        finally:
            self._commit(member, done)

    def _parts(self, records: Sequence[Record]) -> list[list[Record]]:
        """Return what goes to the handler at once; a record that failed before, or is suspect, is tried alone."""
        if not self._together:
            return [[record] for record in records]
        alone: list[list[Record]] = []
        rest: list[Record] = []
        for record in records:
            if self._lanes.attempts(record) or self._caution.alone(record):
                alone.append([record])
            else:
                rest.append(record)
        return [*alone, rest] if rest else alone

    def _begin(self, member: Member, part: Sequence[Record], done: dict[int, int]) -> bool:
        """Write down what begins, where that is called for; False if it is another's."""
        if not self._caution:
            return True
        begun = self._caution.begin(part)
        return self._commit(member, done, begun) if self._caution.due(begun) else True

    def _commit(self, member: Member, done: dict[int, int], begun: Mapping[int, Begun] = NOTHING) -> bool:
        offsets, notes = self._caution.settle(done, begun)
        try:
            member.commit(offsets, notes)
            return True
        except Fenced as exc:
            log.warning("%s: handled records will be handled again by another: %s", self._group, exc)
            self._caution.lost()
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
) -> Consumer:
    """Make a consumer: `handler(received)` for each record of the topic that falls to this member of the group.

    With `together` the handler gets a list of them, `batch` at most, and returns a Refusal for each that is no good.
    A process that is silent for `session` seconds is replaced by the other members.
    """
    check_handler(handler, together=together)
    dlq_of(topic)  # a name that is too long for it is told before a dead record has nowhere to go
    return Consumer(
        topic,
        check_name(group, "group"),
        handler if together else _one_by_one(handler),
        retry=checked(Policy(retry=retry)).retry,
        batch=check_count("batch", batch),
        session=session,
        together=together,
    )
