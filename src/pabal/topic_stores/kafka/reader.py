"""Read Kafka topics without a group: records by offset, bounds, and the settings of topics.

Settings are documents in a topic of their own, and the order of its log decides. A document that `configure` writes
under the name of a topic replaces all earlier ones. A document that `create` proposes counts only where no earlier one
has the same field; each proposal has a key of its own, so that compaction keeps them all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from pabal import jsontext
from pabal.ids import new_token
from pabal.topic_store import Bounds, Record
from pabal.topic_stores.kafka.errors import records_of, translated
from pabal.topic_stores.kafka.limited import Limited
from pabal.topic_stores.kafka.settings import KafkaSettings

_READER = "pabal.reader"  # the client needs a name; nothing is ever committed under it

_LEADERLESS = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE}
_PAUSE = 0.05
_CLOSE_SECONDS = 2.0  # that a close waits for the call of another thread
SETTINGS_TOPIC = "pabal.settings"  # compacted
_PROPOSAL = "~"  # in no topic's name
_PAGE = 1000


class Reader:
    """One Kafka consumer that is in no group, for one caller at a time."""

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
        """Close the consumer, unless another thread reads for long: its call ends by itself."""
        if self._lock.acquire(timeout=_CLOSE_SECONDS):
            try:
                if self._consumer is not None:
                    Limited().close(self._consumer, self._settings.timeout)
                    self._consumer = None
            finally:
                self._lock.release()

    def _current(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(
                self._settings.consumer(_READER) | {"enable.partition.eof": True, "fetch.wait.max.ms": 50}
            )
        return self._consumer

    def _watermarks(self, consumer: Consumer, partition: TopicPartition) -> Sequence[int]:
        """Ask until a leader answers: a new partition may have none at first."""
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
            error = message.error() if message is not None else None
            if message is None or error is not None and error.code() == KafkaError._TRANSPORT:
                if time.monotonic() > deadline:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            elif error is None:
                records += records_of([message], topic)
            elif error.code() == KafkaError._PARTITION_EOF:
                break
            else:
                raise KafkaException(error)
        return records


def _found(bounds: Sequence[int] | None) -> Sequence[int]:
    if bounds is None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    return bounds


class _Document(NamedTuple):
    """A document for a topic: proposed by `create`, or written by `configure`."""

    proposed: bool
    value: bytes


def proposal_key(topic: str) -> str:
    """Return a key for a proposal for a topic."""
    return f"{topic}{_PROPOSAL}{new_token()}"


class SettingsReader:
    """The settings of all topics, read again only if there are new documents: asking costs a fiftieth of reading."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._known: tuple[int, dict[str, list[_Document]]] = (
            0,
            {},
        )  # the offset read to; replaced whole, because threads share it

    def of(self, topic: str) -> Mapping[str, Any]:
        """Return the settings of a topic, from all its documents."""
        [(_, end)] = self._reader.bounds(SETTINGS_TOPIC, 1)
        read_to, documents = self._known
        if end != read_to:
            documents = self._read()
            self._known = (end, documents)
        found: dict[str, Any] = {}
        for proposed, value in documents.get(topic, ()):
            document = jsontext.decode(value)
            found = {**document, **found} if proposed else document
        return found

    def _read(self) -> dict[str, list[_Document]]:
        documents: dict[str, list[_Document]] = {}
        offset = 0
        while records := self._reader.page(SETTINGS_TOPIC, 0, offset, _PAGE):
            for record in records:
                topic, proposal, _ = record.key.partition(_PROPOSAL)
                documents.setdefault(topic, []).append(_Document(bool(proposal), record.value))
            offset = records[-1].offset + 1
        return documents
