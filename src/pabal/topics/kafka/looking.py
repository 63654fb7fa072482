"""Reading a Kafka topic without a group: records by offset, and bounds."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from pabal.topic import Bounds, Record
from pabal.topics.kafka.settings import KafkaSettings
from pabal.topics.kafka.translating import records_of, translated

_READER = "pabal.reader"  # the client wants a name; nothing is ever committed under it

_LEADERLESS = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE}
_PAUSE = 0.05


class Looking:
    """One consumer outside of all groups, for one caller at a time."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._consumer: Consumer | None = None

    def page(self, topic: str, partition: int, offset: int, limit: int) -> list[Record]:
        """Return records up to the limit or the end of the partition."""
        with self._lock, translated(f"reading {topic}", self._settings.servers):
            consumer = self._current()
            consumer.assign([TopicPartition(topic, partition, offset)])
            try:
                return self._until_end(consumer, topic, limit)
            finally:
                consumer.unassign()

    def bounds(self, topic: str, partitions: int) -> list[Bounds]:
        """Ask the leaders of all partitions for their bounds."""
        with self._lock, translated(f"looking at {topic}", self._settings.servers):
            consumer = self._current()
            return [Bounds(*self._watermarks(consumer, TopicPartition(topic, number))) for number in range(partitions)]

    def offsets_at(self, topic: str, partitions: int, at: float) -> list[int]:
        """Ask for the first offset from an instant on, -1 where there is none."""
        # Before 1970 nothing was appended, and Kafka takes negative instants for other questions.
        wanted = [TopicPartition(topic, number, max(0, round(at * 1000))) for number in range(partitions)]
        with self._lock, translated(f"looking at {topic}", self._settings.servers):
            return [found.offset for found in self._current().offsets_for_times(wanted, self._settings.timeout)]

    def close(self) -> None:
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None

    def _current(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(
                self._settings.consumer(_READER) | {"enable.partition.eof": True, "fetch.wait.max.ms": 50}
            )
        return self._consumer

    def _watermarks(self, consumer: Consumer, partition: TopicPartition) -> Sequence[int]:
        """Ask until a leader answers: a new partition may have none for a moment."""
        deadline = time.monotonic() + self._settings.timeout
        while True:
            try:
                return _found(consumer.get_watermark_offsets(partition, self._settings.timeout))
            except KafkaException as exc:
                if exc.args[0].code() not in _LEADERLESS or time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE)

    def _until_end(self, consumer: Consumer, topic: str, limit: int) -> list[Record]:
        records: list[Record] = []
        deadline = time.monotonic() + self._settings.timeout
        while len(records) < limit:
            message = consumer.poll(0.5)
            if message is None:
                if time.monotonic() > deadline:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
                continue
            error = message.error()
            if error is None:
                records += records_of([message], topic)
            elif error.code() == KafkaError._PARTITION_EOF:
                break
            elif error.code() != KafkaError._TRANSPORT:
                raise KafkaException(error)
        return records


def _found(bounds: Sequence[int] | None) -> Sequence[int]:
    if bounds is None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    return bounds
