"""Handling: what a handler makes of records, and what becomes of those that it could not handle.

Handled, waiting for another try, waiting until an Outage is over, or dead and in the dlq: every record ends in one of
these, and within a partition none passes one that waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from pabal.appending import Topic
from pabal.calling import check_returned
from pabal.caution import Caution
from pabal.dead_records import REPLAY_FOR, Dead, bury
from pabal.delivery import reason_of
from pabal.errors import Outage, PabalError, ValidationFailed
from pabal.jsontext import Json, storable
from pabal.lanes import Lanes
from pabal.store import FailureCode
from pabal.topic import Position, Record

log = logging.getLogger("pabal")


class Received(NamedTuple):
    """A record in a handler's hands. `attempt` counts the tries of this process."""

    record: Record
    body: Json | bytes
    attempt: int


class Refusal(NamedTuple):
    """What a handler of many returns for each record that goes to the dlq without another try, and why."""

    received: Received
    reason: str


Handler: TypeAlias = Callable[[Received], object]
Together: TypeAlias = Callable[[Sequence[Received]], Iterable[Refusal]]
Waits: TypeAlias = dict[int, int]  # the offsets at which partitions must wait
Fates: TypeAlias = dict[Position, tuple[FailureCode, str]]  # why records are dead


class Handling:
    """Gives records to a handler, counts what became of them and tells the lanes who waits."""

    def __init__(self, topic: Topic, group: str, handler: Together, lanes: Lanes, caution: Caution) -> None:
        self._topic = topic
        self._group = group
        self._handler = handler
        self._lanes = lanes
        self._caution = caution
        self.stopping = False
        self.handled = 0
        self.dead = 0

    def handle(self, records: Sequence[Record]) -> Waits:
        """Be done with these records; return where partitions must wait for another try."""
        fates: Fates = {}
        group = self._group
        opened = [self._open(record, fates) for record in records if record.headers.get(REPLAY_FOR, group) == group]
        sound = [received for received in opened if _place(received) not in fates] if fates else opened
        waits = self._call(sound, fates) if sound else {}
        if not fates and not waits:
            self.handled += len(opened)
            return waits
        # Not before the others are handled: what waits with them is read again, and would be buried again.
        for received in opened:
            number, offset = _place(received)
            if number in waits and offset >= waits[number]:
                continue
            if _place(received) not in fates:
                self.handled += 1
            elif not self._bury(received, *fates[_place(received)]):
                waits[number] = offset
        return waits

    def _open(self, record: Record, fates: Fates) -> Received:
        """Return a record as a handler gets it, if it is fit for one."""
        attempt = self._lanes.attempts(record) + 1
        try:
            if self._caution and self._caution.fatal(record):
                attempt = self._caution.deaths(record)
                fate = (FailureCode.POISON, f"its process died or hung in its handler {attempt} times")
            elif not record.fault:
                return Received(record, self._topic.body_of(record), attempt)
            else:
                fate = (FailureCode.CORRUPT, record.fault)
        except ValidationFailed as exc:
            fate = (FailureCode.VALIDATION_ERROR, str(exc))
        fates[Position(record.partition, record.offset)] = fate
        return Received(record, b"", attempt)

    def _call(self, received: list[Received], fates: Fates) -> Waits:
        try:
            refusals = self._handler(received)
            check_returned(refusals)
        except Outage as exc:
            waits = firsts([one.record for one in received])
            for one in received:
                if waits[one.record.partition] == one.record.offset:
                    self._wait(one, exc)
            return waits
        except Exception as exc:
            log.warning("handler raised for %s", received[0].record, exc_info=exc)
            return self._each_alone(received, fates) if len(received) > 1 else self._failed(received[0], exc, fates)
        for one, reason in refusals:
            fates[_place(one)] = (FailureCode.VALIDATION_ERROR, reason)
        return {}

    def _each_alone(self, received: list[Received], fates: Fates) -> Waits:
        waits: Waits = {}
        for one in received:
            if one.record.partition not in waits:
                waits |= firsts([one.record]) if self.stopping else self._call([one], fates)
        return waits

    def _failed(self, received: Received, exc: Exception, fates: Fates) -> Waits:
        if self._lanes.failed(received.record):
            return firsts([received.record])
        fates[_place(received)] = (FailureCode.HANDLER_ERROR, reason_of(exc))
        return {}

    def _bury(self, received: Received, code: FailureCode, reason: str) -> bool:
        reason = storable(reason)
        try:
            bury(self._topic, received.record, Dead(self._group, code, reason, received.attempt))
        except PabalError as exc:  # passing it over would lose it
            self._wait(received, exc)
            return False
        log.warning("%s is dead for %s: %s: %s", received.record, self._group, code, reason)
        self.dead += 1
        return True

    def _wait(self, received: Received, exc: Exception) -> None:
        log.warning("%s waits at %s: %s", self._group, received.record, reason_of(exc))
        self._lanes.wait(received.record)


def firsts(records: Sequence[Record]) -> Waits:
    """Return the offset of the first record of each partition."""
    return {record.partition: record.offset for record in reversed(records)}


def _place(received: Received) -> Position:
    return Position(received.record.partition, received.record.offset)
