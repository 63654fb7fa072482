"""Topics, their groups and their records as JSON documents, for the command line and for HTTP.

Every key is always present; instants are ISO 8601 text in UTC.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection
from typing import Any, TypedDict

from pabal.jsontext import Json
from pabal.queues.documents import instant
from pabal.topic_store import Record, Share
from pabal.topics.dead_records import SUFFIX, dead_of, not_replayed
from pabal.topics.topic import Topic, body_of


class GroupSummary(TypedDict):
    """A group of a topic: how many records it has not read yet, and how many members it has now."""

    group: str
    lag: int
    members: int


class TopicSummary(TypedDict):
    """What a topic holds, and how far its groups are. `dead` counts the records that wait for a replay."""

    topic: str
    partitions: int
    records: int
    groups: list[GroupSummary]
    dead: int


class PartitionStatus(TypedDict):
    """A partition: the offset of the oldest record that is left, and of the next one."""

    partition: int
    first: int
    next: int


class ShareStatus(TypedDict):
    """A partition as a group sees it; the owner is the member that reads it, empty if there is none."""

    partition: int
    committed: int
    lag: int
    owner: str


class GroupStatus(TypedDict):
    group: str
    lag: int
    members: list[str]
    shares: list[ShareStatus]


class TopicStatus(TypedDict):
    """A topic with its partitions and groups. `max_age` (seconds) and `max_bytes` of a partition are 0 for no limit."""

    topic: str
    records: int
    dead: int
    max_age: float
    max_bytes: int
    schema: dict[str, Any] | None
    partitions: list[PartitionStatus]
    groups: list[GroupStatus]


class DeadStatus(TypedDict):
    """Why a record is dead, and for which group."""

    group: str
    code: str
    reason: str
    attempts: int


def topic_summary(topic: Topic, names: Collection[str]) -> TopicSummary:
    """Return the figures of a topic; `names` are those of all topics."""
    bounds, groups = topic.bounds(), topic.groups()
    return TopicSummary(
        topic=topic.name,
        partitions=len(bounds),
        records=sum(end - first for first, end in bounds),
        groups=[
            GroupSummary(group=name, lag=_lag(shares), members=len(_members(shares)))
            for name, shares in sorted(groups.items())
        ],
        dead=count_dead(topic) if f"{topic.name}{SUFFIX}" in names else 0,
    )


def topic_status(topic: Topic) -> TopicStatus:
    """Return a topic with its partitions and groups."""
    shape, bounds = topic.topics.shape(topic.name), topic.bounds()
    return TopicStatus(
        topic=topic.name,
        records=sum(end - first for first, end in bounds),
        dead=count_dead(topic),
        max_age=shape.max_age,
        max_bytes=shape.max_bytes,
        schema=topic.schema,
        partitions=[
            PartitionStatus(partition=number, first=first, next=end) for number, (first, end) in enumerate(bounds)
        ],
        groups=[
            GroupStatus(
                group=name, lag=_lag(shares), members=_members(shares), shares=[share_document(each) for each in shares]
            )
            for name, shares in sorted(topic.groups().items())
        ],
    )


def share_document(share: Share) -> ShareStatus:
    return ShareStatus(partition=share.partition, committed=share.committed, lag=share.lag, owner=share.owner)


def count_dead(topic: Topic) -> int:
    """Count the dead records of a topic that were not replayed yet."""
    return sum(end - first for first, end in not_replayed(topic).values())


def record_document(record: Record) -> dict[str, Any]:
    """Return a record; one that is damaged has its `fault` and no body."""
    body = record_body(record)
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "at": instant(record.at),
        "key": _utf8(record.key) or None,
        "body": b64encode(body).decode() if isinstance(body, bytes) else body,
        "body_encoding": "base64" if isinstance(body, bytes) else None,
        "headers": {_utf8(name): _utf8(text) for name, text in record.headers.items()},
        "fault": record.fault or None,
    }


def record_body(record: Record) -> Json | bytes:
    return None if record.fault else body_of(record)


def dead_record_document(record: Record) -> dict[str, Any]:
    """Return a record of a dead-letter topic with the reason why it is there."""
    group, code, reason, attempts = dead_of(record)
    dead = DeadStatus(group=_utf8(group), code=_utf8(code), reason=_utf8(reason), attempts=attempts)
    return {**record_document(record), "dead": dead}


def _lag(shares: list[Share]) -> int:
    return sum(share.lag for share in shares)


def _members(shares: list[Share]) -> list[str]:
    return sorted({share.owner for share in shares if share.owner})


def _utf8(text: str) -> str:
    """Return text as JSON can hold it: keys and headers of other clients may be any bytes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
