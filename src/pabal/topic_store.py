"""The topic contract: a partitioned log that many groups read, each at its own pace.

A topic has a fixed number of partitions. The key of a record decides its partition, where the record keeps its offset
for ever. A group reads every record: its live members share the partitions, and each partition has one owner at a time.
A new owner continues at the last committed offset.

Guarantees, the same for every driver. Each is tested under its number in `pabal.testing.topic_suite`:

T1   When append returns, its records are as durable as the driver can make them: sqlite survives kill -9 and a power
     cut, all of a call or none; kafka survives the loss of brokers that its replication allows for.
T2   Offsets of a partition begin at 0 and rise in the order of append; none is ever used twice. Records of one call
     for one partition keep the order given.
T3   The same key goes to the same partition, by Kafka's murmur2, whatever the driver.
T4   Every group sees every record that retention has not removed, also those appended before the group first joined.
T5   Within a group a partition has one owner. A new member gets a fair share. A member that leaves, or is silent for
     its session, is replaced. The next owner continues at the last commit: no record is skipped.
T6   A commit of a member that is no longer the owner raises Fenced and changes nothing.
T7   A commit never moves a group back. Only `reset` does, and only while the group has no live member.
T8   A member that reads, handles, commits and then reads again gets no record twice, unless a member crashed or was
     silent for its session.
T9   Retention by age or size removes the oldest records of a partition only, and never moves an offset.
T10  A record that was damaged on disk is returned with its `fault`, never as a whole one.
T11  A commit carries a note, which stays until the next commit; the next owner of the partition finds it. Consumers
     write there which records they begin, so that a record that kills its process each time is found and set aside.

Drivers take and return bytes; the layer above gives them a meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import msgspec

from pabal.errors import InvalidInput, InvalidText, NameTaken, TooLarge
from pabal.names import check_name

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
NO_NOTES: Mapping[int, str] = MappingProxyType({})
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})
DEFAULT_SESSION = 10.0
DEFAULT_PATIENCE = 300.0


class NewRecord(NamedTuple):
    """A record to append. Without a key the driver chooses a partition, unless one is given."""

    value: bytes
    key: str = ""
    headers: Mapping[str, str] = NO_HEADERS
    partition: int | None = None


class Position(NamedTuple):
    """The partition and offset of a record."""

    partition: int
    offset: int


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record as it was appended. `fault` says what is wrong with a damaged one."""

    topic: str
    partition: int
    offset: int
    at: float
    key: str
    value: bytes
    headers: Mapping[str, str] = NO_HEADERS
    fault: str = ""

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


class Shape(NamedTuple):
    """The partitions of a topic, and the retention of each: `max_age` in seconds, `max_bytes`; 0 is no limit."""

    partitions: int = 1
    max_age: float = 0.0
    max_bytes: int = 0


class Bounds(NamedTuple):
    """The offset of the oldest record that is left, and the offset of the next record."""

    first: int
    next: int


class Share(NamedTuple):
    """A partition as a group sees it: the committed offset, the lag, and the owner, '' if there is none."""

    partition: int
    committed: int
    lag: int
    owner: str = ""


class Member(Protocol):
    """A member of a group. For one thread; only `wake` may be called from others."""

    @property
    def name(self) -> str:
        """The name of this member, as in `Share.owner`."""
        ...

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions that this member owned at the last `read`."""
        ...

    def read(self, limit: int, wait: float = 0.0) -> list[Record]:
        """Return the next records of this member's partitions; [] if none came in `wait` seconds or it was woken.

        Partitions change owners only inside this call: commit handled records before the next call.
        """
        ...

    def commit(self, offsets: Mapping[int, int], notes: Mapping[int, str] = NO_NOTES) -> None:
        """Commit for each partition the next offset to read. Raise Fenced if this member no longer owns one of them.

        `notes` has the notes of partitions, '' by default. An offset behind the committed one changes neither.
        """
        ...

    def note(self, partition: int) -> str:
        """Return the note of a partition at the time this member took it over; '' if there was none."""
        ...

    def seek(self, partition: int, offset: int) -> None:
        """Continue reading a partition at this offset, without a commit."""
        ...

    def pause(self, partition: int) -> None:
        """Return no records of this partition until `resume`; this member stays its owner."""
        ...

    def resume(self, partition: int) -> None: ...

    def wake(self) -> None:
        """End the current or next `read` early. Takes no lock, so that a signal handler may call it."""
        ...

    def close(self) -> None:
        """Leave the group, so that other members take over at once."""
        ...


class Topics(Protocol):
    """Keeps records. `pabal.testing.TopicSuite` tests whether a driver keeps the guarantees.

    After a StoreError a later call may succeed: a driver opens its connections again.
    """

    def create(self, topic: str, shape: Shape, settings: Mapping[str, Any] = NO_SETTINGS) -> bool:
        """Make the topic; False if it exists with as many partitions. Raise NameTaken if with another number of them.

        The settings are added to those that the topic has. Raise NameTaken if it has one of them with another value,
        also when several processes create it at once: then the first one counts.
        """
        ...

    def topics(self) -> list[str]:
        """Return the name of every topic, sorted."""
        ...

    def shape(self, topic: str) -> Shape:
        """Return the partitions and retention of the topic; raise TopicUnknown if there is none."""
        ...

    def retain(self, topic: str, *, max_age: float | None = None, max_bytes: int | None = None) -> None:
        """Change the retention of the topic, for every process that uses it; None leaves a limit as it is."""
        ...

    def append(self, topic: str, records: Sequence[NewRecord]) -> list[Position]:
        """Store the records durably and return their positions in order.

        TopicUnknown and TooLarge are raised before anything is written. Uncertain: some may be stored, some not.
        """
        ...

    def read(self, topic: str, partition: int, offset: int, limit: int) -> list[Record]:
        """Return up to `limit` records from this offset on, or from the oldest that is left. Groups play no part."""
        ...

    def bounds(self, topic: str) -> list[Bounds]:
        """Return the bounds of every partition, in their order."""
        ...

    def offsets_at(self, topic: str, at: float) -> list[int]:
        """Return for every partition the first offset of a record from that instant on, or the next offset if none."""
        ...

    def join(
        self, topic: str, group: str, *, session: float = DEFAULT_SESSION, patience: float = DEFAULT_PATIENCE
    ) -> Member:
        """Become a member of the group. It is replaced when its process is silent for `session` seconds, or when it
        has not called `read` or `commit` for `patience` seconds: then it is assumed to hang."""
        ...

    def groups(self, topic: str) -> dict[str, list[Share]]:
        """Return every group that has read this topic, with its share of each partition."""
        ...

    def reset(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """Set the offsets of the group. Raise GroupBusy while it has a live member."""
        ...

    def settings(self, topic: str) -> Mapping[str, Any]:
        """Return the settings of the topic; empty if none were given to `create` or `configure`."""
        ...

    def configure(self, topic: str, settings: Mapping[str, Any]) -> None:
        """Replace the settings of the topic, such as the schema of its records."""
        ...

    def trim(self, topic: str) -> int:
        """Apply the retention; return how many records were removed. 0 if a server does this by itself."""
        ...

    def facts(self) -> Mapping[str, str]:
        """Return facts for operators: place, format, how readers are woken."""
        ...

    def close(self) -> None: ...


# Limits and checks for every driver, whatever its server accepts.

MAX_PARTITIONS = 10_000
MAX_KEY = 1024  # characters
MAX_VALUE = 1 << 20  # bytes: the default limit of a Kafka server
MAX_NOTE = 1000  # characters: also in bytes within the default limit of a Kafka server


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
    """Return the settings with more added; raise NameTaken if one of them is there with another value."""
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
    """Raise InvalidText for text that no driver can write. Text of other clients that is not UTF-8 is allowed."""
    try:
        text.encode("utf-8", errors)
    except UnicodeEncodeError as exc:
        raise InvalidText("a key or header holds a lone surrogate, which UTF-8 cannot carry") from exc
