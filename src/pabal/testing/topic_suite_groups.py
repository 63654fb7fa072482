"""The topic contract on groups: fair shares, no record skipped, no stale member accepted when members come and go."""

import os
import signal
import time
from collections import Counter

import pytest

from pabal.errors import Fenced, GroupBusy, InvalidInput, TooLarge
from pabal.testing.store_place import Child, soon
from pabal.testing.topic_place import (
    SESSION,
    Reopen,
    TopicPlace,
    append,
    commit,
    joined,
    numbers,
    settle,
    take,
    values,
)
from pabal.topic_store import Shape, Share, Topics


class GroupTests(TopicPlace):
    def test_t4_every_group_sees_every_record(self, topics: Topics, topic: str) -> None:
        topics.create(topic, Shape(2))
        append(topics, topic, *range(5), partition=0)
        append(topics, topic, *range(5, 10), partition=1)
        for group in ("billing", "audit"):
            with joined(topics, topic, group) as member:
                found = take(member, 10)
                assert sorted(numbers(found)) == list(range(10))
                assert [n for n in numbers(found) if n < 5] == list(range(5))  # in order within a partition
                commit(member, found)
        assert set(topics.groups(topic)) == {"billing", "audit"}

    def test_t5_a_group_goes_on_where_it_committed(self, topics: Topics, topic: str) -> None:
        topics.create(topic, Shape(1))
        append(topics, topic, *range(10))
        with joined(topics, topic) as member:
            commit(member, take(member, 10)[:4])
        assert topics.groups(topic)["readers"] == [Share(0, 4, 6)]
        with joined(topics, topic) as member:
            assert numbers(take(member, 6)) == [4, 5, 6, 7, 8, 9]

    def test_t5_members_share_the_partitions_and_each_has_one_owner(self, topics: Topics, topic: str) -> None:
        topics.create(topic, Shape(4))
        with joined(topics, topic) as one:
            settle(one, partitions=4)
            with joined(topics, topic) as two:
                settle(one, two, partitions=4)
        with joined(topics, topic) as one, joined(topics, topic) as two:
            settle(one, two, partitions=4)
            assert len(one.partitions) == len(two.partitions) == 2
            owners = Counter(share.owner for share in topics.groups(topic)["readers"])
            assert owners == {one.name: 2, two.name: 2}
            for number in range(4):
                append(topics, topic, number, partition=number)
            for member in (one, two):
                assert sorted(numbers(take(member, 2))) == sorted(member.partitions)

    def test_t5_who_leaves_is_replaced_at_once(self, topics: Topics, topic: str) -> None:
        topics.create(topic, Shape(2))
        with joined(topics, topic, session=20.0) as one:
            with joined(topics, topic, session=20.0) as two:
                settle(one, two, partitions=2)
            settle(one, partitions=2, timeout=12.0)

    def test_t5_the_partitions_of_a_killed_process_are_taken_over(
        self, topics: Topics, reopen: Reopen, topic: str
    ) -> None:
        topics.create(topic, Shape(2))
        for number in range(2):
            append(topics, topic, *range(10 * number, 10 * number + 10), partition=number)

        def work_and_die() -> None:
            member = reopen().join(topic, "readers", session=SESSION)
            found = take(member, 20)
            commit(member, [item for item in found if item.offset < 3])
            os.kill(os.getpid(), signal.SIGKILL)

        child = Child(work_and_die)
        os.waitpid(child.pid, 0)
        with joined(topics, topic) as member:
            found = take(member, 14)
            assert sorted(numbers(found)) == [*range(3, 10), *range(13, 20)]
            assert member.partitions == {0, 1}

    def test_t5_more_members_than_partitions_leave_some_idle_until_needed(self, topics: Topics, topic: str) -> None:
        topics.create(topic, Shape(1))
        with joined(topics, topic) as one:
            settle(one, partitions=1)
            with joined(topics, topic) as two:
                end = time.monotonic() + 2 * SESSION
                while time.monotonic() < end:
                    one.read(1, 0.05), two.read(1, 0.05)
                assert len(one.partitions) + len(two.partitions) == 1
                owner, idle = (one, two) if one.partitions else (two, one)
                owner.close()
                settle(idle, partitions=1)

    def test_t6_a_member_that_was_replaced_cannot_commit(self, topics: Topics, reopen: Reopen, topic: str) -> None:
        topics.create(topic, Shape(1))
        append(topics, topic, *range(5))
        stale = topics.join(topic, "readers", session=SESSION, patience=SESSION)
        found = take(stale, 5)
        with joined(topics, topic) as fresh:
            # The first hangs: it neither reads nor commits, and another gets its partition.
            assert numbers(take(fresh, 5)) == [0, 1, 2, 3, 4]
            commit(fresh, found[:2])
            with pytest.raises(Fenced):
                commit(stale, found)
            assert topics.groups(topic)["readers"][0].committed == 2
            commit(fresh, found[:3])
        assert soon(lambda: stale.read(10, 0.2) != [], timeout=20.0)  # and it joins again like any other member
        stale.close()

    def test_t7_a_commit_never_moves_back(self, topics: Topics, topic: str) -> None:
        topics.create(topic, Shape(1))
        append(topics, topic, *range(10))
        with joined(topics, topic) as member:
            found = take(member, 10)
            commit(member, found[:7])
            commit(member, found[:3])
        assert topics.groups(topic)["readers"] == [Share(0, 7, 3)]

    def test_t7_only_a_group_without_members_is_reset(self, topics: Topics, topic: str) -> None:
        topics.create(topic, Shape(2))
        append(topics, topic, *range(10), partition=0)
        with joined(topics, topic) as member:
            commit(member, take(member, 10))
            with pytest.raises(GroupBusy):
                topics.reset(topic, "readers", {0: 0})
        topics.reset(topic, "readers", {0: 8})
        with joined(topics, topic) as member:
            assert numbers(take(member, 2)) == [8, 9]
        topics.reset(topic, "newcomers", {0: 9, 1: 0})
        with joined(topics, topic, "newcomers") as member:
            assert numbers(take(member, 1)) == [9]

    def test_t8_nothing_comes_twice_while_members_come_and_go_in_good_order(self, topics: Topics, topic: str) -> None:
        topics.create(topic, Shape(3))
        for number in range(3):
            append(topics, topic, *range(100 * number, 100 * number + 100), partition=number)
        seen: list[int] = []

        def work(*members: object, until: int) -> None:
            end = time.monotonic() + 30
            while len(seen) < until and time.monotonic() < end:
                for member in members:
                    found = member.read(7, 0.02)  # type: ignore[attr-defined]  # members
                    seen.extend(numbers(found))
                    commit(member, found)  # type: ignore[arg-type]  # members

        with joined(topics, topic) as one:
            work(one, until=60)
            with joined(topics, topic) as two:
                work(one, two, until=150)
                with joined(topics, topic) as three:
                    work(one, two, three, until=220)
                work(one, two, until=260)
            work(one, until=300)
        assert Counter(seen) == Counter(range(300))
        for number in range(3):
            ours = [n for n in seen if n // 100 == number]
            assert ours == sorted(ours), "order within a partition is kept across its owners"

    def test_t11_a_note_is_found_by_whoever_takes_the_partition_over(self, topics: Topics, topic: str) -> None:
        topics.create(topic, Shape(2))
        append(topics, topic, *range(5), partition=0)
        with joined(topics, topic) as member:
            take(member, 5)
            member.commit({0: 0}, {0: "at the very beginning"})
            member.commit({0: 2}, {0: "Grüße 파발"})
            assert member.note(0) == ""  # the note as it was when this member joined
        for _ in range(2):
            with joined(topics, topic) as member:
                assert numbers(take(member, 3)) == [2, 3, 4]
                assert (member.note(0), member.note(1)) == ("Grüße 파발", "")
                member.commit({0: 1}, {0: "behind what is committed"})
        with joined(topics, topic) as member:
            found = take(member, 3)
            member.commit({0: 2}, {0: "the same offset"})
        with joined(topics, topic) as member:
            take(member, 3)
            assert member.note(0) == "the same offset"
            commit(member, found)
        with joined(topics, topic) as member:
            settle(member, partitions=2)
            assert member.note(0) == ""

    def test_t11_the_note_of_a_killed_process_is_found(self, topics: Topics, reopen: Reopen, topic: str) -> None:
        topics.create(topic, Shape(1))
        append(topics, topic, *range(3))

        def begin_and_die() -> None:
            member = reopen().join(topic, "readers", session=SESSION)
            take(member, 3)
            member.commit({0: 1}, {0: "begun 1"})
            os.kill(os.getpid(), signal.SIGKILL)

        child = Child(begin_and_die)
        os.waitpid(child.pid, 0)
        with joined(topics, topic) as member:
            assert numbers(take(member, 2)) == [1, 2] and member.note(0) == "begun 1"
        topics.reset(topic, "readers", {0: 1})
        with joined(topics, topic) as member:
            assert numbers(take(member, 2)) == [1, 2] and member.note(0) == ""

    def test_t11_a_note_that_no_driver_can_take_is_named(self, topics: Topics, topic: str) -> None:
        topics.create(topic, Shape(1))
        append(topics, topic, 0)
        with joined(topics, topic) as member:
            take(member, 1)
            with pytest.raises(TooLarge, match="1000"):
                member.commit({0: 1}, {0: "x" * 1001})
            with pytest.raises(InvalidInput, match="goes with an offset"):
                member.commit({}, {0: "x"})
            member.commit({0: 1}, {0: "파" * 1000})

    def test_a_member_can_go_back_without_committing(self, topics: Topics, topic: str) -> None:
        topics.create(topic, Shape(1))
        append(topics, topic, *range(10))
        with joined(topics, topic) as member:
            assert numbers(take(member, 6)) == list(range(6))
            member.seek(0, 2)
            assert numbers(take(member, 8)) == list(range(2, 10))

    def test_a_paused_partition_stays_and_waits(self, topics: Topics, topic: str) -> None:
        topics.create(topic, Shape(2))
        with joined(topics, topic) as member:
            settle(member, partitions=2)
            member.pause(0)
            append(topics, topic, "held", partition=0)
            append(topics, topic, "free", partition=1)
            assert values(take(member, 1)) == ["free"]
            assert member.read(10, 0.5) == []
            assert member.partitions == {0, 1}
            member.resume(0)
            assert values(take(member, 1)) == ["held"]
