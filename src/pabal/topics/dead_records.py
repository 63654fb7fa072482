"""Dead records: a record that a group could not handle is copied to `<topic>.dlq`, with the reason in its headers.

A replay appends it to its topic again, marked for the group that failed: other groups have handled it and skip it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pabal.errors import InvalidInput, TooLarge, TopicUnknown
from pabal.store import FailureCode
from pabal.topic_store import Bounds, Member, NewRecord, Record, Shape
from pabal.topics.browse import records_from
from pabal.topics.topic import Topic

SUFFIX = ".dlq"
REPLAY_FOR = "pabal-replay-for"
REPLAY_GROUP = "pabal.replay"
_MARK = "pabal-dlq-"
_LEFT = f"{_MARK}left"  # why the value was left behind
_BATCH = 100
_PATIENCE = 15.0  # seconds without a record: then another member must have the rest
_CORRUPT = FailureCode.CORRUPT
_REASON = 1000  # characters of a reason that are kept


class Dead(NamedTuple):
    """Why a record is dead, and for which group."""

    group: str
    code: str
    reason: str
    attempts: int


def dlq_of(topic: Topic) -> Topic:
    """Return the dead-letter topic of a topic; it may not exist yet."""
    return Topic(f"{topic.name}{SUFFIX}", topic.topics, clock=topic.clock)


def bury(topic: Topic, record: Record, dead: Dead) -> None:
    """Append a record to the dead-letter topic, which is made with the first."""
    origin = {
        "topic": topic.name,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "group": dead.group,
        "code": str(dead.code),
        "reason": dead.reason[:_REASON],
        "attempts": str(dead.attempts),
    }
    marks = {f"{_MARK}{name}": text for name, text in origin.items()}
    try:
        _append(topic, NewRecord(record.value, record.key, {**_own(record.headers), **marks}, record.partition))
    except TooLarge as exc:  # other clients may write larger records: it stays in its topic, and the copy says so
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
    except InvalidInput:  # the dead-letter topic was made with fewer partitions
        place.topics.append(place.name, [buried._replace(partition=None)])


def dead_of(record: Record) -> Dead:
    """Return why a record is in a dlq; a record of another client has no reason."""
    marks = {name.removeprefix(_MARK): text for name, text in record.headers.items() if name.startswith(_MARK)}
    attempts = marks.get("attempts", "")
    return Dead(
        marks.get("group", ""),
        marks.get("code", _CORRUPT if record.fault else ""),
        marks.get("reason", record.fault),
        int(attempts) if attempts.isdecimal() else 0,
    )


def waiting(topic: Topic, limit: int) -> list[Record]:
    """Return dead records of a topic that were not replayed yet, the oldest first."""
    left = {number: first for number, (first, _) in not_replayed(topic).items()}
    return records_from(dlq_of(topic), left, limit)[0] if left else []


def replay(topic: Topic, limit: int | None = None, until: Mapping[int, int] | None = None) -> int:
    """Append the dead records that are there now to their topic again; return how many. Safe to repeat when killed.

    With `until`, only those before these offsets of the dead-letter topic. Incomplete records are skipped: those
    damaged on disk, and those too large for the dlq.
    """
    place = dlq_of(topic)
    left = {
        number: end if until is None else min(end, until.get(number, 0))
        for number, (first, end) in not_replayed(topic).items()
        if until is None or first < until.get(number, 0)
    }
    if not left:
        return 0
    member = place.topics.join(place.name, REPLAY_GROUP)
    try:
        return _replay(topic, member, left, float("inf") if limit is None else limit)
    finally:
        member.close()


def not_replayed(topic: Topic) -> dict[int, Bounds]:
    """Return the bounds of the dead records of a topic that are left to replay, by partition of its dlq."""
    place = dlq_of(topic)
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
    idle_since = topic.clock.boot()
    while left and count < limit and topic.clock.boot() - idle_since < _PATIENCE:
        read = member.read(int(min(_BATCH, limit - count)), 0.5)
        records = [record for record in read if record.offset < left.get(record.partition, 0)]
        if not records:
            continue
        sound = [record for record in records if _LEFT not in record.headers and dead_of(record).code != _CORRUPT]
        topic.topics.append(topic.name, [_again(record, partitions) for record in sound])
        member.commit({record.partition: record.offset + 1 for record in records})
        count += len(sound)
        idle_since = topic.clock.boot()
        left = {n: end for n, end in left.items() if all(r.partition != n or r.offset + 1 < end for r in records)}
    return count


def _again(record: Record, partitions: int) -> NewRecord:
    group, number = dead_of(record).group, record.headers.get(f"{_MARK}partition", "")
    partition = int(number) if number.isdecimal() and int(number) < partitions else None
    headers = {**_own(record.headers), **({REPLAY_FOR: group} if group else {})}  # without a group: for all
    return NewRecord(record.value, record.key, headers, partition)


def _own(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in headers.items() if not name.startswith(_MARK) and name != REPLAY_FOR}
