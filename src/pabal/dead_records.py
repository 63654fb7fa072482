"""Dead records: what a group could not handle stands in `<topic>.dlq`, as it was, with the reason in its headers.

Replaying appends it to its topic again, marked for the group that failed: the others have had it and pass it over.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from pabal.appending import Topic
from pabal.errors import TopicUnknown
from pabal.store import FailureCode
from pabal.topic import Member, NewRecord, Record, Shape

SUFFIX = ".dlq"
REPLAY_FOR = "pabal-replay-for"
REPLAY_GROUP = "pabal.replay"
_MARK = "pabal-dlq-"
_BATCH = 100
_PATIENCE = 15.0  # seconds without a record after which somebody else must have the rest
_REASON = 1000  # characters of a reason that are kept


class Dead(NamedTuple):
    """Why a record is dead, and for whom."""

    group: str
    code: str
    reason: str
    attempts: int


def dlq_of(topic: Topic) -> Topic:
    """Return the topic of a topic's dead records, which may not be there yet."""
    return Topic(f"{topic.name}{SUFFIX}", topic.topics)


def bury(topic: Topic, record: Record, dead: Dead) -> None:
    """Append a record to the dead ones; their topic comes into being with the first."""
    told = {
        "topic": topic.name,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "group": dead.group,
        "code": str(dead.code),
        "reason": dead.reason[:_REASON],
        "attempts": str(dead.attempts),
    }
    headers = {**_own(record.headers), **{f"{_MARK}{name}": text for name, text in told.items()}}
    buried = NewRecord(record.value, record.key, headers, record.partition)
    place = dlq_of(topic)
    try:
        place.topics.append(place.name, [buried])
    except TopicUnknown:
        place.topics.create(place.name, Shape(topic.topics.shape(topic.name).partitions))
        place.topics.append(place.name, [buried])


def dead_of(record: Record) -> Dead:
    """Read why a record of a dlq is there; what somebody else put there has no reason."""
    told = {name.removeprefix(_MARK): text for name, text in record.headers.items() if name.startswith(_MARK)}
    attempts = told.get("attempts", "")
    return Dead(
        told.get("group", ""),
        told.get("code", FailureCode.CORRUPT if record.fault else ""),
        told.get("reason", record.fault),
        int(attempts) if attempts.isdecimal() else 0,
    )


def waiting(topic: Topic, limit: int) -> list[Record]:
    """Return the dead records of a topic that were not replayed yet, the oldest of each partition first."""
    place = dlq_of(topic)
    try:
        bounds = place.bounds()
    except TopicUnknown:
        return []
    replayed = {share.partition: share.committed for share in place.groups().get(REPLAY_GROUP, [])}
    found: list[Record] = []
    for number in range(len(bounds)):
        start = max(bounds[number].first, replayed.get(number, 0))
        if start < bounds[number].next and len(found) < limit:
            found += place.read(number, start, limit - len(found))
    return found


def replay(topic: Topic, limit: int | None = None) -> int:
    """Append the dead records that are there now to their topic again; return how many. Safe to repeat when killed."""
    place = dlq_of(topic)
    try:
        ends = [bounds.next for bounds in place.bounds()]
    except TopicUnknown:
        return 0
    replayed = {share.partition: share.committed for share in place.groups().get(REPLAY_GROUP, [])}
    firsts = [bounds.first for bounds in place.bounds()]
    left = {n: end for n, end in enumerate(ends) if max(replayed.get(n, 0), firsts[n]) < end}
    if not left:
        return 0
    member = place.topics.join(place.name, REPLAY_GROUP)
    try:
        return _replay(topic, member, left, float("inf") if limit is None else limit)
    finally:
        member.close()


def _replay(topic: Topic, member: Member, left: dict[int, int], limit: float) -> int:
    count = 0
    idle_since = time.monotonic()
    while left and count < limit and time.monotonic() - idle_since < _PATIENCE:
        records = member.read(int(min(_BATCH, limit - count)), 0.5)
        if not records:
            continue
        topic.topics.append(topic.name, [_again(record) for record in records if not record.fault])
        member.commit({record.partition: record.offset + 1 for record in records})
        count += len(records)
        idle_since = time.monotonic()
        left = {n: end for n, end in left.items() if all(r.partition != n or r.offset + 1 < end for r in records)}
    return count


def _again(record: Record) -> NewRecord:
    headers = {**_own(record.headers), REPLAY_FOR: dead_of(record).group}
    return NewRecord(record.value, record.key, headers, record.partition)


def _own(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in headers.items() if not name.startswith(_MARK) and name != REPLAY_FOR}
