"""Attempts: calls the handler with records, and decides about those that it could not handle.

Each record is handled, or waits for another attempt, or waits until an Outage is over, or is dead and in the dlq.
Within a partition no record overtakes one that waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from pabal.errors import Outage, PabalError, ValidationFailed
from pabal.jsontext import storable
from pabal.queues.delivery import reason_of
from pabal.queues.worker import check_returned
from pabal.store import FailureCode
from pabal.topic_store import Position, Record
from pabal.topics.crash_notes import CrashNotes
from pabal.topics.dead_records import REPLAY_FOR, Dead, bury
from pabal.topics.paused_partitions import PausedPartitions
from pabal.topics.topic import Topic

log = logging.getLogger("pabal")


class Received(NamedTuple):
    """A record as the handler gets it. `attempt` counts the attempts of this process."""

    record: Record
    body: Any
    attempt: int


class Refusal(NamedTuple):
    """Returned by a handler of batches for each record that goes to the dlq without another attempt."""

    received: Received
    reason: str


Handler: TypeAlias = Callable[[Received], object]
Together: TypeAlias = Callable[[Sequence[Received]], Iterable[Refusal]]
Waits: TypeAlias = dict[int, int]  # the offsets at which partitions must wait
Failures: TypeAlias = dict[Position, tuple[FailureCode, str]]  # of records that are dead


class Attempts:
    """Calls the handler, counts handled and dead records, and pauses partitions whose record must wait."""

    def __init__(
        self, topic: Topic, group: str, handler: Together, paused: PausedPartitions, crash_notes: CrashNotes
    ) -> None:
        self._topic = topic
        self._group = group
        self._handler = handler
        self._paused = paused
        self._crash_notes = crash_notes
        self.stopping = False
        self.handled = 0
        self.dead = 0

    def handle(self, records: Sequence[Record]) -> Waits:
        """Handle these records; return where partitions must wait for another attempt."""
        failures: Failures = {}
        group = self._group
        opened = [self._open(record, failures) for record in records if record.headers.get(REPLAY_FOR, group) == group]
        sound = [received for received in opened if _position(received) not in failures] if failures else opened
        waits = self._call(sound, failures) if sound else {}
        if not failures and not waits:
            self.handled += len(opened)
            return waits
        # Only after the others are handled: records behind one that waits are read again, and would be buried again.
        for received in opened:
            number, offset = _position(received)
            if number in waits and offset >= waits[number]:
                continue
            if _position(received) not in failures:
                self.handled += 1
            elif not self._bury(received, *failures[_position(received)]):
                waits[number] = offset
        return waits

    def _open(self, record: Record, failures: Failures) -> Received:
        """Return a record as the handler gets it; note the failure of one that no handler can get."""
        attempt = self._paused.attempts(record) + 1
        try:
            if self._crash_notes and self._crash_notes.fatal(record):
                attempt = self._crash_notes.deaths(record)
                failure = (FailureCode.POISON, f"its process died or hung in its handler {attempt} times")
            elif not record.fault:
                return Received(record, self._topic.body_of(record), attempt)
            else:
                failure = (FailureCode.CORRUPT, record.fault)
        except ValidationFailed as exc:
            failure = (FailureCode.VALIDATION_ERROR, str(exc))
        failures[Position(record.partition, record.offset)] = failure
        return Received(record, b"", attempt)

    def _call(self, received: list[Received], failures: Failures) -> Waits:
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
            log.warning("handler raised for %(record)s", {"record": str(received[0].record)}, exc_info=exc)
            return (
                self._each_alone(received, failures) if len(received) > 1 else self._failed(received[0], exc, failures)
            )
        for one, reason in refusals:
            failures[_position(one)] = (FailureCode.VALIDATION_ERROR, reason)
        return {}

    def _each_alone(self, received: list[Received], failures: Failures) -> Waits:
        waits: Waits = {}
        for one in received:
            if one.record.partition not in waits:
                waits |= firsts([one.record]) if self.stopping else self._call([one], failures)
        return waits

    def _failed(self, received: Received, exc: Exception, failures: Failures) -> Waits:
        if self._paused.failed(received.record):
            return firsts([received.record])
        failures[_position(received)] = (FailureCode.HANDLER_ERROR, reason_of(exc))
        return {}

    def _bury(self, received: Received, code: FailureCode, reason: str) -> bool:
        reason = storable(reason)
        try:
            bury(self._topic, received.record, Dead(self._group, code, reason, received.attempt))
        except PabalError as exc:  # going on would lose the record
            self._wait(received, exc)
            return False
        fields = {"record": str(received.record), "group": self._group, "code": str(code), "reason": reason}
        log.warning("%(record)s is dead for %(group)s: %(code)s: %(reason)s", fields)
        self.dead += 1
        return True

    def _wait(self, received: Received, exc: Exception) -> None:
        fields = {"group": self._group, "record": str(received.record), "error": reason_of(exc)}
        log.warning("%(group)s waits at %(record)s: %(error)s", fields)
        self._paused.wait(received.record)


def firsts(records: Sequence[Record]) -> Waits:
    """Return the offset of the first record of each partition."""
    return {record.partition: record.offset for record in reversed(records)}


def _position(received: Received) -> Position:
    return Position(received.record.partition, received.record.offset)
