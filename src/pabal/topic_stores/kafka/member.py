"""One member of a Kafka consumer group, which commits explicitly.

Partitions change owners only inside `read`, because the client runs its callbacks there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from pabal.errors import Fenced
from pabal.topic_store import NO_NOTES, Record, check_notes
from pabal.topic_stores.kafka.errors import TEMPORARY, error_of, kafka_error, records_of, translated
from pabal.topic_stores.kafka.limited import Limited
from pabal.topic_stores.kafka.settings import KafkaSettings

_SLICE = 0.2  # seconds between looks at `wake`
_PAUSE = 0.2  # seconds before a commit that the coordinator could not take is repeated
_LASTING = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.INVALID_SESSION_TIMEOUT,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
}


class Committed(NamedTuple):
    """The committed offset and note of a partition."""

    offset: int
    note: str

    def changes(self, other: Committed) -> bool:
        """Return whether to commit this after `other`: an offset never moves back."""
        return self.offset > other.offset or (self.offset == other.offset and self.note != other.note)


class KafkaMember:
    def __init__(self, settings: KafkaSettings, topic: str, group: str, *, session: float, patience: float) -> None:
        self._servers, self._timeout = settings.servers, settings.timeout
        self._topic = topic
        self._limited = Limited()
        self._woken = False
        self._closed = False
        self._owned: set[int] = set()
        self._paused: set[int] = set()
        self._moved = False  # partitions changed owners inside the current call
        self._committed: dict[int, Committed] = {}  # as far as known: the coordinator itself would move it back
        self._notes: dict[int, str] = {}  # as found when the partitions were taken over
        session_ms = int(session * 1000)
        terms = {
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": max(100, min(3000, session_ms // 3)),
            "max.poll.interval.ms": max(session_ms, int(patience * 1000)),
        }
        with translated(f"joining {group}", self._servers):
            self._consumer = Consumer(settings.consumer(group) | terms)
        self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)

    @property
    def name(self) -> str:
        return self._consumer.memberid() or ""

    @property
    def partitions(self) -> frozenset[int]:
        return frozenset(self._owned)

    def read(self, limit: int, wait: float = 0.0) -> list[Record]:
        """Return the records that the client has fetched; wait only for the first."""
        deadline = time.monotonic() + wait
        while True:
            self._moved = False
            found = self._consumer.consume(limit, 0)
            left = 0.0
            if not found:
                left = max(0.0, deadline - time.monotonic())
                found = self._consumer.consume(1, min(left, _SLICE))
            records = self._fresh(found)
            if records or left <= 0 or self._woken:
                self._woken = False
                return records

    def commit(self, offsets: Mapping[int, int], notes: Mapping[int, str] = NO_NOTES) -> None:
        """Commit at the coordinator, and wait for its answer."""
        check_notes(offsets, notes)
        if not self._owned.issuperset(offsets):
            raise Fenced(f"partitions {sorted(offsets.keys() - self._owned)} of {self._topic} are another member's now")
        steps = {number: Committed(offset, notes.get(number, "")) for number, offset in offsets.items()}
        self._repeated(lambda: self._commit(steps))

    def note(self, partition: int) -> str:
        """Ask the coordinator, unless that was done before."""
        if partition in self._owned:
            self._repeated(lambda: self._look([partition]))
        return self._notes.get(partition, "")

    def seek(self, partition: int, offset: int) -> None:
        if partition in self._owned:
            with translated(f"seeking in {self._topic}", self._servers):
                self._consumer.seek(TopicPartition(self._topic, partition, offset))

    def pause(self, partition: int) -> None:
        if partition in self._owned:
            self._paused.add(partition)
            self._consumer.pause([TopicPartition(self._topic, partition)])

    def resume(self, partition: int) -> None:
        if partition in self._paused:
            self._paused.discard(partition)
            self._consumer.resume([TopicPartition(self._topic, partition)])

    def wake(self) -> None:
        self._woken = True

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._limited.close(self._consumer, self._timeout)

    def _repeated(self, work: Callable[[], None]) -> None:
        """Run work that needs the coordinator; repeat it while the coordinator cannot be reached, up to the timeout."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                self._limited.run(work, self._timeout)
                return
            except KafkaException as exc:
                error = kafka_error(exc)
                if error.code() not in TEMPORARY or time.monotonic() > deadline:
                    raise error_of(error, f"committing to {self._topic}", self._servers) from exc
                time.sleep(_PAUSE)

    def _look(self, numbers: Iterable[int]) -> None:
        """Ask for the committed offsets of these partitions, unless they are known."""
        unknown = [TopicPartition(self._topic, number) for number in numbers if number not in self._committed]
        for found in self._consumer.committed(unknown, self._timeout) if unknown else []:
            if found.error is not None:
                raise KafkaException(found.error)
            self._notes[found.partition] = found.metadata or ""
            self._committed[found.partition] = Committed(max(0, found.offset), found.metadata or "")

    def _commit(self, steps: Mapping[int, Committed]) -> None:
        self._look(steps)
        ahead = {number: step for number, step in steps.items() if step.changes(self._committed[number])}
        if not ahead:
            return
        wanted = [TopicPartition(self._topic, number, *step) for number, step in ahead.items()]
        for answer in self._consumer.commit(offsets=wanted, asynchronous=False) or []:
            if answer.error is not None:
                raise KafkaException(answer.error)
        self._committed.update(ahead)

    def _fresh(self, found: list[Any]) -> list[Record]:
        records = records_of(found, self._topic)
        if len(records) < len(found):
            for message in found:
                if (error := message.error()) is not None:
                    self._complain(error)
        return self._ours(records) if self._moved else records

    def _ours(self, records: list[Record]) -> list[Record]:
        """Drop records of lost partitions and records read twice, because partitions changed owners in the call."""
        following: dict[int, int] = {}
        kept = []
        for record in records:
            if record.partition in self._owned and record.offset >= following.get(record.partition, 0):
                following[record.partition] = record.offset + 1
                kept.append(record)
        return kept

    def _complain(self, error: KafkaError) -> None:
        # The client recovers from all but fatal errors by itself; a missing or refused topic does not come by waiting.
        if error.fatal() or error.code() in _LASTING:
            raise error_of(error, f"reading {self._topic}", self._servers)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._forget(partitions)
        self._owned.update(found.partition for found in partitions)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._forget(partitions)
        self._owned.difference_update(found.partition for found in partitions)

    def _forget(self, partitions: list[TopicPartition]) -> None:
        self._moved = True
        for found in partitions:
            self._committed.pop(found.partition, None)
            self._notes.pop(found.partition, None)
            self._paused.discard(found.partition)
