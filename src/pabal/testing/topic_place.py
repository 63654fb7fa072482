"""The fixtures and helpers of all topic tests."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import pytest

from pabal.ids import new_token
from pabal.topic_store import Member, NewRecord, Position, Record, Topics

Reopen: TypeAlias = Callable[[], Topics]
Damage: TypeAlias = Callable[[str, int, int], None]

SESSION = 1.0  # seconds of silence after which a member of these tests is replaced
PATIENCE = 30.0  # seconds that only a failing test waits


class TopicPlace:
    @pytest.fixture
    def reopen(self) -> Reopen:
        """Return a function that opens another handle on this test's own place."""
        raise NotImplementedError("the driver's test class gives a fixture `reopen`")

    @pytest.fixture
    def damage(self) -> Damage:
        """Return a function (topic, partition, offset) that flips a byte of that record behind the driver's back."""
        pytest.skip("records of this driver cannot be damaged behind its back")

    @pytest.fixture
    def topics(self, reopen: Reopen) -> Iterator[Topics]:
        topics = reopen()
        yield topics
        topics.close()

    @pytest.fixture
    def topic(self) -> str:
        """Name a topic that no other test knows: the place may be a server that all of them share."""
        return f"topic-{new_token()}"


def record(value: object, key: str = "", **more: object) -> NewRecord:
    """Return a new record with the text of this value."""
    return NewRecord(str(value).encode(), key, **more)  # type: ignore[arg-type]  # by name


def append(topics: Topics, topic: str, *values: object, key: str = "", partition: int | None = None) -> list[Position]:
    return topics.append(topic, [record(value, key, partition=partition) for value in values])


def values(records: Iterable[Record]) -> list[str]:
    return [found.value.decode() for found in records]


def numbers(records: Iterable[Record]) -> list[int]:
    return [int(found.value) for found in records]


@contextmanager
def joined(topics: Topics, topic: str, group: str = "readers", **more: float) -> Iterator[Member]:
    member = topics.join(topic, group, **{"session": SESSION, **more})
    try:
        yield member
    finally:
        member.close()


def take(member: Member, count: int, timeout: float = PATIENCE) -> list[Record]:
    """Read so many records, without committing."""
    found: list[Record] = []
    end = time.monotonic() + timeout
    while len(found) < count and time.monotonic() < end:
        found += member.read(count - len(found), 0.2)
    assert len(found) == count, f"{count} records should come; got {len(found)}"
    return found


def commit(member: Member, records: Iterable[Record]) -> None:
    """Commit these records and all before them."""
    offsets: dict[int, int] = {}
    for found in records:
        offsets[found.partition] = max(offsets.get(found.partition, 0), found.offset + 1)
    member.commit(offsets)


def settle(*members: Member, partitions: int, timeout: float = PATIENCE) -> None:
    """Let the members of a group read nothing until all partitions are shared between them, each having some."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        for member in members:
            assert member.read(1, 0.05) == [], "this topic should be empty or all committed"
        owned = [number for member in members for number in member.partitions]
        if sorted(owned) == list(range(partitions)) and all(member.partitions for member in members):
            return
    raise AssertionError(f"the partitions are not shared out: {[sorted(m.partitions) for m in members]}")
