"""Groups: members, owners of partitions, committed offsets. There is no coordinator: each member takes its own share.

The fair share of a member follows from the list of live members alone, so all members agree on it. A member with too
many partitions gives some up, one with too few takes free ones; both happen only between two reads of that member.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pabal.clock import Clock
from pabal.errors import Fenced, GroupBusy
from pabal.sql.connection import Connection
from pabal.sql.writer import Transaction
from pabal.topic_store import Share
from pabal.topic_stores.sqlite.records import Known, are_bounds, damaged

# Not by their indexes: a damaged one may lead to another group, or to a member of another. The tables are small.
_GROUP = "select id from topic_groups not indexed where topic = ? and name = ?"
_MEMBERS = "select id from topic_members not indexed where grp = ? order by id"
_GONE = "select id from topic_members not indexed where grp = ? and (boot <> ? or deadline <= ?)"


class Group(NamedTuple):
    """The number of a group, and the bell that wakes its members."""

    id: int
    bell: str


class Step(NamedTuple):
    """A commit of a member to a partition, with the epoch of its ownership."""

    offset: int
    epoch: int
    note: str


class Held(NamedTuple):
    """A partition that a member owns: the epoch, the committed offset, and the note beside it."""

    epoch: int
    committed: int
    note: str


def find_group(tx: Transaction, topic: Known, name: str) -> Group:
    """Return a group; it is made if it is missing, at the beginning of every partition."""
    number: int | None = tx.run(_GROUP, (topic.id, name)).get
    if number is None:
        number = tx.run("insert into topic_groups (topic, name) values (?, ?) returning id", (topic.id, name)).get
        partitions = range(topic.base, topic.base + topic.partitions)
        tx.many("insert into topic_shares (grp, partition) values (?, ?)", [(number, part) for part in partitions])
    assert number is not None
    return Group(number, topic.bell)


def enter(tx: Transaction, group: Group, name: str, clock: Clock, session: float) -> int:
    """Add a member; return its number."""
    number: int = tx.run(
        "insert into topic_members (grp, name, boot, deadline) values (?, ?, ?, ?) returning id",
        (group.id, name, clock.boot_id, clock.boot() + session),
    ).get
    _changed(tx, group)
    return number


def leave(tx: Transaction, group: Group, member: int) -> None:
    """Remove a member and free its partitions."""
    if tx.change("delete from topic_members where id = ?", (member,)):
        _free(tx, group, member)
        _changed(tx, group)


def beat(tx: Transaction, group: Group, member: int, clock: Clock, session: float) -> bool:
    """Prolong the session of a member and remove expired ones; False if it is no longer a member."""
    if not tx.change("update topic_members set deadline = ? where id = ?", (clock.boot() + session, member)):
        return False
    expire(tx, group, clock)
    return True


def expire(tx: Transaction, group: Group, clock: Clock) -> None:
    """Remove the members whose session is over."""
    for (member,) in tx.run(_GONE, (group.id, clock.boot_id, clock.boot())).fetchall():
        leave(tx, group, member)


def settle_share(tx: Transaction, topic: Known, group: Group, member: int) -> dict[int, Held]:
    """Give up surplus partitions or take free ones; return the partitions that the member owns."""
    members = [row[0] for row in tx.run(_MEMBERS, (group.id,)).fetchall()]
    share, rest = divmod(topic.partitions, len(members))
    wanted = share + (members.index(member) < rest)
    held = [row[0] for row in _owned(tx, group, member)]
    for partition in held[wanted:]:
        tx.run(
            "update topic_shares set owner = null, epoch = epoch + 1 where grp = ? and partition = ?",
            (group.id, partition),
        )
    if len(held) > wanted:
        _changed(tx, group)
    elif len(held) < wanted:
        _take(tx, group, member, wanted - len(held))
    owned = _owned(tx, group, member)
    for part, _, committed, _ in owned:
        end = tx.run("select next_offset from topic_partitions where id = ?", (part,)).get
        if not are_bounds(committed, end):  # it would read nothing for ever
            what = f"the offset of a group of {topic.name} in partition {part - topic.base}, which ends at {end},"
            raise damaged(what, committed)
    return {part - topic.base: Held(epoch, committed, note) for part, epoch, committed, note in owned}


def commit(tx: Transaction, topic: Known, group: Group, member: int, steps: Mapping[int, Step]) -> None:
    """Move the committed offsets of the group."""
    for number, (offset, epoch, note) in steps.items():
        if not tx.change(
            "update topic_shares set note = iif(?1 >= committed, ?2, note), committed = max(committed, ?1)"
            " where grp = ?3 and partition = ?4 and owner = ?5 and epoch = ?6",
            (offset, note, group.id, topic.base + number, member, epoch),
        ):
            raise fenced(topic, number)


def fenced(topic: Known, number: int) -> Fenced:
    return Fenced(f"partition {number} of {topic.name} was given to another member: nothing was committed, read on")


def reset(tx: Transaction, topic: Known, group: str, offsets: Mapping[int, int], clock: Clock) -> None:
    """Set the offsets of a group without members."""
    found = find_group(tx, topic, group)
    expire(tx, found, clock)
    if live := len(tx.run(_MEMBERS, (found.id,)).fetchall()):
        raise GroupBusy(f"group {group} of {topic.name} has {live} live members: stop them first")
    for partition, offset in offsets.items():
        tx.run(
            "update topic_shares set committed = ?, note = '', epoch = epoch + 1 where grp = ? and partition = ?",
            (offset, found.id, topic.base + partition),
        )


def generation(db: Connection, group: Group) -> int:
    found: int = db.execute("select generation from topic_groups where id = ?", (group.id,)).get
    return found


def shares(db: Connection, topic: Known, clock: Clock) -> dict[str, list[Share]]:
    """Return every group of a topic with its partitions; a member whose session is over owns nothing."""
    found: dict[str, list[Share]] = {}
    for name, partition, committed, first, end, owner in db.execute(
        "select g.name, s.partition, s.committed, p.first_offset, p.next_offset, m.name from topic_groups g not indexed"
        " join topic_shares s on s.grp = g.id join topic_partitions p on p.id = s.partition"
        " left join topic_members m on m.id = s.owner and m.boot = ? and m.deadline > ?"
        " where g.topic = ? order by g.name, s.partition",
        (clock.boot_id, clock.boot(), topic.id),
    ):
        lag = end - max(committed, first)
        found.setdefault(name, []).append(Share(partition - topic.base, committed, lag, owner or ""))
    return found


def _owned(tx: Transaction, group: Group, member: int) -> list[tuple[int, int, int, str]]:
    rows: list[tuple[int, int, int, str]] = tx.run(
        "select partition, epoch, committed, note from topic_shares where grp = ? and owner = ? order by partition",
        (group.id, member),
    ).fetchall()
    return rows


def _take(tx: Transaction, group: Group, member: int, count: int) -> None:
    rows = tx.run(
        "select partition from topic_shares where grp = ? and owner is null order by partition limit ?",
        (group.id, count),
    ).fetchall()
    for (partition,) in rows:
        tx.run(
            "update topic_shares set owner = ?, epoch = epoch + 1 where grp = ? and partition = ?",
            (member, group.id, partition),
        )


def _free(tx: Transaction, group: Group, member: int) -> None:
    tx.run(
        "update topic_shares set owner = null, epoch = epoch + 1 where grp = ? and owner = ?",
        (group.id, member),
    )


def _changed(tx: Transaction, group: Group) -> None:
    tx.run("update topic_groups set generation = generation + 1 where id = ?", (group.id,))
    tx.wakeups[group.bell] = group.id
