"""Dead records: what a group could not handle stands in `<topic>.dlq`, as it was, with the reason in its headers.

Replaying appends it to its topic again, marked for the group that failed: the others have had it and pass it over.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from pabal.appending import Topic
from pabal.errors import InvalidInput, TooLarge, TopicUnknown
from pabal.store import FailureCode
from pabal.topic import Bounds, Member, NewRecord, Record, Shape

SUFFIX = ".dlq"
REPLAY_FOR = "pabal-replay-for"
REPLAY_GROUP = "pabal.replay"
_MARK = "pabal-dlq-"
_LEFT = f"{_MARK}left"  # why the value did not come along
_BATCH = 100
_PATIENCE = 15.0  # seconds without a record after which somebody else must have the rest
_CORRUPT = FailureCode.CORRUPT
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
    marks = {f"{_MARK}{name}": text for name, text in told.items()}
    try:
        _append(topic, NewRecord(record.value, record.key, {**_own(record.headers), **marks}, record.partition))
    except TooLarge as exc:  # others may write what we may not: it stays where it stands, and that is told
        _append(topic, NewRecord(b"", headers={**marks, _LEFT: str(exc)[:_REASON]}, partition=record.partition))


def _append(topic: Topic, buried: NewRecord) -> None:
    place = dlq_of(topic)
    try:
        place.topics.append(place.name, [buried])
    except TopicUnknown:
        place.topics.create(place.name, Shape(topic.topics.shape(topic.name).partitions))
        place.topics.append(place.name, [buried])
    except TooLarge:
        raise
    except InvalidInput:  # somebody made their topic with fewer partitions
        place.topics.append(place.name, [buried._replace(partition=None)])


def dead_of(record: Record) -> Dead:
    """Read why a record of a dlq is there; what somebody else put there has no reason."""
    told = {name.removeprefix(_MARK): text for name, text in record.headers.items() if name.startswith(_MARK)}
    attempts = told.get("attempts", "")
    return Dead(
        told.get("group", ""),
        told.get("code", _CORRUPT if record.fault else ""),
        told.get("reason", record.fault),
        int(attempts) if attempts.isdecimal() else 0,
    )


def waiting(topic: Topic, limit: int) -> list[Record]:
    """Return the dead records of a topic that no replay has come to yet, the oldest of each partition first."""
    place = dlq_of(topic)
    found: list[Record] = []
    for number, (start, _) in _not_replayed(place).items():
        if len(found) < limit:
            found += place.read(number, start, limit - len(found))
    return found


def replay(topic: Topic, limit: int | None = None) -> int:
    """Append the dead records that are there now to their topic again; return how many. Safe to repeat when killed.

    Those that are not whole are passed over: damaged on disk, or too large to be in the dlq.
    """
    place = dlq_of(topic)
    left = {number: end for number, (_, end) in _not_replayed(place).items()}
    if not left:
        return 0
    member = place.topics.join(place.name, REPLAY_GROUP)
    try:
        return _replay(topic, member, left, float("inf") if limit is None else limit)
    finally:
        member.close()


def _not_replayed(place: Topic) -> dict[int, Bounds]:
    """Return what is left to replay in each partition that has something."""
    try:
        bounds = place.bounds()
    except TopicUnknown:
        return {}
    replayed = {share.partition: share.committed for share in place.groups().get(REPLAY_GROUP, [])}
    left = {n: Bounds(max(first, replayed.get(n, 0)), end) for n, (first, end) in enumerate(bounds)}
    return {number: bounds for number, bounds in left.items() if bounds.first < bounds.next}


def _replay(topic: Topic, member: Member, left: dict[int, int], limit: float) -> int:
    partitions = topic.topics.shape(topic.name).partitions
    count = 0
    idle_since = time.monotonic()
    while left and count < limit and time.monotonic() - idle_since < _PATIENCE:
        records = member.read(int(min(_BATCH, limit - count)), 0.5)
        if not records:
            continue
        sound = [record for record in records if _LEFT not in record.headers and dead_of(record).code != _CORRUPT]
        topic.topics.append(topic.name, [_again(record, partitions) for record in sound])
        member.commit({record.partition: record.offset + 1 for record in records})
        count += len(sound)
        idle_since = time.monotonic()
        left = {n: end for n, end in left.items() if all(r.partition != n or r.offset + 1 < end for r in records)}
    return count


def _again(record: Record, partitions: int) -> NewRecord:
    group, told = dead_of(record).group, record.headers.get(f"{_MARK}partition", "")
    partition = int(told) if told.isdecimal() and int(told) < partitions else None
    headers = {**_own(record.headers), **({REPLAY_FOR: group} if group else {})}  # of no group's: for all
    return NewRecord(record.value, record.key, headers, partition)


def _own(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in headers.items() if not name.startswith(_MARK) and name != REPLAY_FOR}
