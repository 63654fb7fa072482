"""What every driver of topics takes, whatever its server would: names, shapes, notes and records, and their limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pabal.errors import InvalidInput, InvalidText, NameTaken, TooLarge
from pabal.names import check_name
from pabal.topic import NewRecord, Shape

MAX_PARTITIONS = 10_000
MAX_KEY = 1024  # characters
MAX_VALUE = 1 << 20  # bytes: what a Kafka server takes unless told otherwise
MAX_NOTE = 1000  # characters: in bytes not more than a Kafka server takes unless told otherwise


def check_topic(name: str) -> str:
    """Return the name if a topic may have it."""
    return check_name(name, "topic")


def check_shape(shape: Shape) -> Shape:
    """Return the shape if a topic can have it; raise InvalidInput that names what is wrong."""
    partitions, max_age, max_bytes = shape
    if type(partitions) is not int or not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidInput(f"partitions must be 1 to {MAX_PARTITIONS}; found {partitions!r:.40}")
    if not 0 <= max_age < float("inf") or not 0 <= max_bytes < 1 << 62:
        raise InvalidInput(f"max_age and max_bytes must be 0 or more; found {max_age!r:.40} and {max_bytes!r:.40}")
    return shape


def joined(topic: str, carried: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a topic carries when it carries this as well; NameTaken if it has one of them with another value."""
    for name, value in wanted.items():
        if carried.get(name, value) != value:
            raise NameTaken(f"topic {topic} carries another {name}: make a topic of the next version")
    return {**wanted, **carried}


def check_notes(offsets: Mapping[int, int], notes: Mapping[int, str]) -> None:
    """Raise the InvalidInput that names the first note that no driver could take."""
    for partition, text in notes.items():
        if partition not in offsets:
            raise InvalidInput(f"a note goes with an offset; found one for partition {partition!r:.40} alone")
        if len(text) > MAX_NOTE:
            raise TooLarge(f"a note has at most {MAX_NOTE} characters; found {len(text)}")


def check_partition(topic: str, partition: int, count: int) -> int:
    """Return the number of a partition if the topic has it."""
    if type(partition) is not int or not 0 <= partition < count:
        raise InvalidInput(f"{topic} has partitions 0 to {count - 1}; found {partition!r:.40}")
    return partition


def check_records(records: Sequence[NewRecord]) -> None:
    """Raise the InvalidInput that names the first record that no driver could take."""
    for value, key, headers, _ in records:
        if type(value) is not bytes:
            raise InvalidInput(f"the value of a record is bytes; found {type(value).__name__}")
        if len(value) > MAX_VALUE:
            raise TooLarge(f"a record has at most {MAX_VALUE} bytes; found {len(value)}")
        if len(key) > MAX_KEY:
            raise TooLarge(f"a key has at most {MAX_KEY} characters; found {len(key)}")
        if not key.isascii():
            _check_text(key)
        if headers:
            if not all(type(name) is str and type(text) is str for name, text in headers.items()):
                raise InvalidInput("headers are text by name")
            _check_text("".join(headers), "strict")
            _check_text("".join(headers.values()))


def _check_text(text: str, errors: str = "surrogateescape") -> None:
    """Raise InvalidText for what no driver can write; what others wrote as no UTF-8 may stay so."""
    try:
        text.encode("utf-8", errors)
    except UnicodeEncodeError as exc:
        raise InvalidText("a key or header holds a lone surrogate, which UTF-8 cannot carry") from exc
