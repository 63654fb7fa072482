"""Append to Kafka: an idempotent producer that answers when all in-sync replicas have the records."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from pabal.errors import PabalError, TooLarge, TopicUnknown, Uncertain
from pabal.topic_store import NewRecord, Position
from pabal.topic_stores.kafka.errors import error_of, kafka_error
from pabal.topic_stores.kafka.settings import KafkaSettings
from pabal.topic_stores.partition import key_bytes

_NO_MORE: Mapping[str, Any] = {}
_CLOSE_SECONDS = 3.0  # for records that are under way when the producer is closed
_SPARE = 5.0  # seconds beyond the client's own timeout, for it to report the outcome of a record


class Answers:
    """The answers of the servers for the records of one call."""

    def __init__(self, count: int) -> None:
        self.positions: list[Position | None] = [None] * count
        self.missing = count
        self.error: KafkaError | None = None

    def note(self, place: int, error: KafkaError | None, message: Message[Any, Any]) -> None:
        """Called by the client for each record, in any thread."""
        if error is not None:
            self.error = error
        else:
            self.positions[place] = Position(message.partition() or 0, message.offset() or 0)
        self.missing -= 1


class RecordProducer:
    """One producer for all threads of a handle; replaced after a fatal error."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._making = threading.Lock()
        self._producer: Producer | None = None

    def append(self, topic: str, records: Sequence[NewRecord]) -> list[Position]:
        """Send the records and wait for all answers."""
        producer, keys = self._current(), _Keys()
        answers = Answers(len(records))
        deadline = time.monotonic() + self._settings.timeout + _SPARE
        produce, note, sent = producer.produce, answers.note, 0
        try:
            for value, key, headers, partition in records:
                more = _more(headers, partition) if headers or partition is not None else _NO_MORE
                while True:
                    try:
                        produce(topic, value, keys[key], on_delivery=partial(note, sent), **more)
                        break
                    except BufferError:
                        _let_send(producer, deadline)
                sent += 1
        except KafkaException as exc:
            answers.error = kafka_error(exc)
            answers.missing -= len(records) - sent
        while answers.missing > 0 and (left := deadline - time.monotonic()) > 0:
            producer.flush(min(left, 1.0))
        if answers.error is not None or answers.missing > 0:
            raise self._failure(topic, answers)
        return [position for position in answers.positions if position is not None]

    def close(self) -> None:
        """Send what other threads append, up to a limit; then give it up, so that those threads return."""
        producer, self._producer = self._producer, None
        if producer is not None and producer.flush(min(self._settings.timeout, _CLOSE_SECONDS)):
            producer.purge()
            producer.flush(1.0)

    def _current(self) -> Producer:
        with self._making:
            if self._producer is None:
                self._producer = Producer(self._settings.producer())
            return self._producer

    def _failure(self, topic: str, answers: Answers) -> PabalError:
        error = answers.error or KafkaError(KafkaError._TIMED_OUT)
        if error.fatal():
            self._producer = None
        found = error_of(error, f"appending to {topic}", self._settings.servers)
        stored = any(position is not None for position in answers.positions)
        if isinstance(found, TooLarge | TopicUnknown) and not stored and not answers.missing:
            return found
        return Uncertain(f"{found}; some records may be there, appending again may store them twice")


class _Keys(dict[str, bytes | None]):
    """Caches keys as bytes: those of a call are often the same."""

    def __missing__(self, key: str) -> bytes | None:
        stored = self[key] = key_bytes(key) or None
        return stored


def _more(headers: Mapping[str, str], partition: int | None) -> dict[str, Any]:
    more: dict[str, Any] = {} if partition is None else {"partition": partition}
    if headers:
        more["headers"] = [(name, text.encode("utf-8", "surrogateescape")) for name, text in headers.items()]
    return more


def _let_send(producer: Producer, deadline: float) -> None:
    """Wait while the client's own queue is full."""
    if time.monotonic() > deadline:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    producer.poll(0.1)
