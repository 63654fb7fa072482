"""The topic contract: a partitioned log that many groups read, each at its own pace.

A topic has a fixed number of partitions. A record is appended to the partition that its key names and keeps its offset
there for ever. A group reads every record: its live members share the partitions, each partition with one member at a
time, and what a member has committed is where whoever follows it goes on.

Guarantees, the same for every driver, each a test by its number in `pabal.testing.topic_suite`:

T1   When append returns, its records are as durable as the driver can make them: sqlite survives kill -9 and a power
     cut, all of a call or none; kafka survives the loss of brokers that its replication allows for.
T2   Offsets of a partition begin at 0 and rise in the order of append; none is ever used twice. Records of one call
     for one partition stand in the order given.
T3   The same key goes to the same partition, by Kafka's murmur2, whatever the driver.
T4   Every group sees every record that was not yet removed by retention, those appended before it first joined too.
T5   Within a group a partition has one owner. Who joins gets a fair share; who leaves, or is silent for its session,
     is replaced; the next owner goes on where the last commit stands: nothing is skipped.
T6   A commit by who is no longer the owner raises Fenced and changes nothing.
T7   A commit never moves a group back. Only `reset` does, and only while the group has no live member.
T8   A member that reads, handles, commits and then reads again sees nothing twice unless somebody crashed or was
     silent for its session.
T9   Retention by age or size removes the oldest records of a partition only, and never moves an offset.
T10  A record that was damaged on disk comes with its `fault` and is never passed off as whole.
T11  A commit carries a note, which stands until the next commit and is found by whoever takes the partition over. The
     consumer writes down there what it begins: a record that ends its process each time is found out and set aside.

Drivers take and give bytes: what a value means is for those above.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import msgspec

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
    """Where a record stands."""

    partition: int
    offset: int


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record as it was appended. `fault` says what is wrong with one that cannot be trusted."""

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
    """How a topic is cut. `max_age` (seconds) and `max_bytes` limit what each partition keeps; 0 is no limit."""

    partitions: int = 1
    max_age: float = 0.0
    max_bytes: int = 0


class Bounds(NamedTuple):
    """The offset of the oldest record still there, and the one that the next record will get."""

    first: int
    next: int


class Share(NamedTuple):
    """A partition as a group sees it: the next offset to be read, and whose it is, '' if nobody's."""

    partition: int
    committed: int
    lag: int
    owner: str = ""


class Member(Protocol):
    """One of a group that shares the partitions of a topic. For one thread; only `wake` may be called from others."""

    @property
    def name(self) -> str:
        """Say who this is, as `Share.owner` does."""
        ...

    @property
    def partitions(self) -> frozenset[int]:
        """Name the partitions that were this member's at the last `read`."""
        ...

    def read(self, limit: int, wait: float = 0.0) -> list[Record]:
        """Return the next records of this member's partitions, or [] when `wait` seconds brought none or it was woken.

        Partitions change hands inside this call only: commit what was handled before calling it again.
        """
        ...

    def commit(self, offsets: Mapping[int, int], notes: Mapping[int, str] = NO_NOTES) -> None:
        """Say for each partition which offset comes next. Fenced if one of them is not this member's any more.

        `notes` has the note of a partition, '' where it has none. An offset behind what is committed changes neither.
        """
        ...

    def note(self, partition: int) -> str:
        """Return the note that stood at a partition when this member took it over; '' if there was none."""
        ...

    def seek(self, partition: int, offset: int) -> None:
        """Go on reading a partition from here, without committing anything."""
        ...

    def pause(self, partition: int) -> None:
        """Return nothing of this partition until `resume`; it stays this member's."""
        ...

    def resume(self, partition: int) -> None: ...

    def wake(self) -> None:
        """End the current or next `read` early. Takes no lock, so that a signal handler may call it."""
        ...

    def close(self) -> None:
        """Leave the group, so that others take over at once."""
        ...


class Topics(Protocol):
    """Where records live. `pabal.testing.TopicSuite` tells whether a driver keeps its promises.

    After a StoreError a later call may succeed: a driver opens anew what it had to give up.
    """

    def create(self, topic: str, shape: Shape, settings: Mapping[str, Any] = NO_SETTINGS) -> bool:
        """Make the topic; False if it is there with as many partitions. NameTaken if with another number of them.

        It carries the settings from then on, beside those that it has. NameTaken if it has one of them with another
        value, also when several create it at once: then one of them is heard first, and counts.
        """
        ...

    def topics(self) -> list[str]:
        """Name every topic, sorted."""
        ...

    def shape(self, topic: str) -> Shape:
        """Return the topic's partitions and what it keeps; TopicUnknown if there is none."""
        ...

    def retain(self, topic: str, *, max_age: float | None = None, max_bytes: int | None = None) -> None:
        """Change what the topic keeps, for every process that uses it; None leaves a limit as it is."""
        ...

    def append(self, topic: str, records: Sequence[NewRecord]) -> list[Position]:
        """Store the records and answer in order once they are safe.

        TopicUnknown and TooLarge come before anything is written. Uncertain: some may be there, some not.
        """
        ...

    def read(self, topic: str, partition: int, offset: int, limit: int) -> list[Record]:
        """Return up to `limit` records from this offset on, or from the oldest that is left. No group is concerned."""
        ...

    def bounds(self, topic: str) -> list[Bounds]:
        """Return the bounds of every partition, in their order."""
        ...

    def offsets_at(self, topic: str, at: float) -> list[int]:
        """Return for every partition the first offset of a record from that instant on, or the next one if none."""
        ...

    def join(
        self, topic: str, group: str, *, session: float = DEFAULT_SESSION, patience: float = DEFAULT_PATIENCE
    ) -> Member:
        """Become a member of the group. It is replaced when its process is silent for `session` seconds, or when it
        has not called `read` or `commit` for `patience` seconds: then it is taken to hang."""
        ...

    def groups(self, topic: str) -> dict[str, list[Share]]:
        """Return every group that read this topic, with its share of each partition."""
        ...

    def reset(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """Let the group go on from these offsets. GroupBusy while it has a live member."""
        ...

    def settings(self, topic: str) -> Mapping[str, Any]:
        """Return what the topic carries; empty if nothing was given to `create` or `configure`."""
        ...

    def configure(self, topic: str, settings: Mapping[str, Any]) -> None:
        """Let the topic carry these settings, such as the schema of its records, in place of those that it has."""
        ...

    def trim(self, topic: str) -> int:
        """Remove what retention allows to be removed; return how many records. A server that does so itself says 0."""
        ...

    def facts(self) -> Mapping[str, str]:
        """Say what an operator should know: place, format, how readers are woken."""
        ...

    def close(self) -> None: ...
