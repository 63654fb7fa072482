"""Errors and messages of Kafka as errors and records of this package."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from pabal.errors import Fenced, GroupBusy, InvalidInput, PabalError, StoreFailed, TooLarge, TopicUnknown
from pabal.topic_store import NO_HEADERS, Record

_FENCED = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError._ASSIGNMENT_LOST,
    KafkaError._STATE,
}
_UNKNOWN = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_BUSY = {KafkaError.NON_EMPTY_GROUP, KafkaError.UNKNOWN_MEMBER_ID}
_INVALID = {
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.POLICY_VIOLATION,
    KafkaError.INVALID_SESSION_TIMEOUT,
    KafkaError._INVALID_ARG,
}
TEMPORARY = {
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._WAIT_COORD,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError._NO_OFFSET,
}


def kafka_error(exc: KafkaException) -> KafkaError:
    """Return the error inside a Kafka exception."""
    error: KafkaError = exc.args[0]
    return error


def is_fenced(error: KafkaError) -> bool:
    """Say whether the controller has not heard from its brokers lately: for a moment after a start or a pause."""
    return error.code() == KafkaError.INVALID_REPLICATION_FACTOR and "brokers are currently fenced" in error.str()


def error_of(error: KafkaError, doing: str, servers: str) -> PabalError:
    """Return the error of this package for an error of Kafka."""
    code, text = error.code(), error.str()
    if code in _UNKNOWN:
        return TopicUnknown(f"no such topic while {doing}: make it with `pabal topic create`, or correct the name")
    if code in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE):
        return TooLarge(f"{text} while {doing}: the server takes less than that; raise its max.message.bytes")
    if code in _FENCED:
        return Fenced(f"{text} while {doing}: another member has the partition; nothing was committed, read on")
    if code in _INVALID and not is_fenced(error):
        return InvalidInput(f"{text.strip()} while {doing}")
    if code in TEMPORARY or is_fenced(error):
        return StoreFailed(f"Kafka at {servers} does not answer while {doing} ({text}): see that it runs, then repeat")
    return StoreFailed(f"{text} while {doing} on Kafka at {servers}")


@contextmanager
def translated(doing: str, servers: str) -> Iterator[None]:
    """Turn errors of the client into errors of this package."""
    try:
        yield
    except KafkaException as exc:
        raise error_of(kafka_error(exc), doing, servers) from exc


def busy_or(error: KafkaError, group: str, servers: str) -> PabalError:
    """Return the error for offsets that could not be set."""
    if error.code() in _BUSY:
        return GroupBusy(f"group {group} has live members: stop them, wait for their session to end, then repeat")
    return error_of(error, f"setting the offsets of {group}", servers)


def records_of(messages: Iterable[Message[Any, Any]], topic: str) -> list[Record]:
    """Return messages of Kafka as records, without those that are errors."""
    keys = _Keys()
    return [
        Record(
            topic,
            message.partition(),  # type: ignore[arg-type]  # every record has one, and an offset
            message.offset(),  # type: ignore[arg-type]
            message.timestamp()[1] / 1000,
            keys[message.key()],
            message.value() or b"",
            NO_HEADERS if (headers := message.headers()) is None else _headers(headers),
        )
        for message in messages
        if message.error() is None
    ]


class _Keys(dict[bytes | None, str]):
    """Caches keys as text: those of a batch are often the same."""

    def __missing__(self, key: bytes | None) -> str:
        text = self[key] = _text(key or b"")
        return text


def _headers(found: Any) -> Mapping[str, str]:
    pairs = found.items() if isinstance(found, dict) else found
    return {name: _text(value or b"") for name, value in pairs}


def _text(data: bytes | str) -> str:
    return data if isinstance(data, str) else data.decode("utf-8", "surrogateescape")
