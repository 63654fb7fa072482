"""The topic contract on records: appended durably, numbered, found again, kept as long as retention says."""

import threading
import time
from collections.abc import Callable

import pytest

from pabal.errors import InvalidInput, NameTaken, StoreClosed, TooLarge, TopicUnknown
from pabal.testing.store_place import in_threads, soon
from pabal.testing.topic_place import (
    Damage,
    Reopen,
    TopicPlace,
    append,
    commit,
    joined,
    numbers,
    record,
    take,
    values,
)
from pabal.topic_store import MAX_VALUE, Bounds, NewRecord, Position, Shape, Topics

# The partitions that Kafka's own clients choose for these keys, among seven.
PARTITIONS_OF_KEYS = {"a": 5, "room-1": 0, "device-001": 5, "user@example.com": 6, "파발": 4, "0": 3, "x" * 100: 4}


class RecordTests(TopicPlace):
    def test_t1_what_was_appended_is_there_for_every_other_handle(
        self, topics: Topics, reopen: Reopen, topic: str
    ) -> None:
        topics.create(topic, Shape(1))
        append(topics, topic, "one", "two")
        other = reopen()
        try:
            assert values(other.read(topic, 0, 0, 10)) == ["one", "two"]
        finally:
            other.close()

    def test_t2_offsets_begin_at_0_and_rise_in_the_order_of_append(self, topics: Topics, topic: str) -> None:
        topics.create(topic, Shape(2))
        assert append(topics, topic, 0, 1, partition=1) == [Position(1, 0), Position(1, 1)]
        assert append(topics, topic, 2, partition=0) == [Position(0, 0)]
        assert append(topics, topic, 3, 4, partition=1) == [Position(1, 2), Position(1, 3)]
        assert numbers(topics.read(topic, 1, 0, 10)) == [0, 1, 3, 4]
        assert topics.bounds(topic) == [Bounds(0, 1), Bounds(0, 4)]

    def test_t2_appenders_at_once_get_offsets_of_their_own_without_gaps(self, topics: Topics, topic: str) -> None:
        topics.create(topic, Shape(1))
        got: list[Position] = []

        def appender(first: int) -> Callable[[], None]:
            def work() -> None:
                for call in range(first, first + 50, 5):
                    got.extend(append(topics, topic, *range(call, call + 5)))

            return work

        in_threads(*[appender(first) for first in range(0, 200, 50)])
        assert sorted(position.offset for position in got) == list(range(200))
        found = topics.read(topic, 0, 0, 1000)
        assert [item.offset for item in found] == list(range(200))
        # The records of one appender keep their order; those of others may stand between them.
        assert sorted(numbers(found), key=lambda number: number // 50) == list(range(200))

    def test_t3_a_key_names_the_partition_that_kafka_gives_it(self, topics: Topics, topic: str) -> None:
        topics.create(topic, Shape(7))
        positions = topics.append(topic, [record("v", key) for key in PARTITIONS_OF_KEYS])
        assert [position.partition for position in positions] == list(PARTITIONS_OF_KEYS.values())

    def test_t9_records_that_are_too_old_go_and_offsets_stay(self, topics: Topics, topic: str) -> None:
        topics.create(topic, Shape(1, max_age=1.0))
        append(topics, topic, "a", "b", "c")

        def gone() -> bool:
            topics.trim(topic)
            return topics.bounds(topic) == [Bounds(3, 3)]

        assert soon(gone, timeout=20.0)
        assert append(topics, topic, "d") == [Position(0, 3)]
        assert values(topics.read(topic, 0, 0, 10)) == ["d"]
        with joined(topics, topic) as member:
            assert values(take(member, 1)) == ["d"]

    def test_t9_what_is_kept_can_be_changed_for_every_handle(self, topics: Topics, reopen: Reopen, topic: str) -> None:
        topics.create(topic, Shape(1))
        append(topics, topic, "a", "b", "c")
        other = reopen()
        append(other, topic, "d")
        topics.retain(topic, max_bytes=1 << 20)
        topics.retain(topic, max_age=1.0)
        assert soon(lambda: other.shape(topic) == Shape(1, 1.0, 1 << 20), timeout=20.0)

        def gone() -> bool:
            other.trim(topic)
            return other.bounds(topic) == [Bounds(4, 4)]

        assert soon(gone, timeout=20.0)
        topics.retain(topic, max_age=0.0, max_bytes=0)
        assert soon(lambda: other.shape(topic) == Shape(1), timeout=20.0)
        with pytest.raises(InvalidInput, match="0 or more"):
            topics.retain(topic, max_age=-1.0)
        with pytest.raises(TopicUnknown):
            topics.retain(f"{topic}-none", max_age=1.0)
        other.close()

    def test_t10_a_damaged_record_says_so_and_the_others_are_read(
        self, topics: Topics, damage: Damage, topic: str
    ) -> None:
        topics.create(topic, Shape(1))
        append(topics, topic, "one", "two", "three", key="k")
        damage(topic, 0, 1)
        found = topics.read(topic, 0, 0, 10)
        assert [bool(item.fault) for item in found] == [False, True, False]
        with joined(topics, topic) as member:
            assert [bool(item.fault) for item in take(member, 3)] == [False, True, False]

    def test_a_record_comes_back_as_it_was_appended(self, topics: Topics, topic: str) -> None:
        topics.create(topic, Shape(1))
        headers = {"traceparent": "00-ab-cd-01", "name": "Grüße 파발"}
        given = [
            NewRecord(b"\x00\xff{", "k\u00fc", headers),
            NewRecord(b"", "only a key"),
            NewRecord(b"no key"),
            NewRecord(bytes(range(256)) * 100, "\udcff\udcfe"),  # a key that is no UTF-8
        ]
        before = time.time()
        topics.append(topic, given)
        found = topics.read(topic, 0, 0, 10)
        assert [(r.value, r.key, dict(r.headers)) for r in found] == [(r.value, r.key, dict(r.headers)) for r in given]
        assert all(r.topic == topic and before - 1 <= r.at <= time.time() + 1 and not r.fault for r in found)
        assert str(found[2]) == f"{topic}/0/2"

    def test_records_without_a_key_go_somewhere_and_are_all_there(self, topics: Topics, topic: str) -> None:
        topics.create(topic, Shape(3))
        for number in range(20):
            append(topics, topic, number)
        found = [item for number in range(3) for item in topics.read(topic, number, 0, 100)]
        assert sorted(numbers(found)) == list(range(20))

    def test_reading_begins_where_asked_and_ends_at_the_limit(self, topics: Topics, topic: str) -> None:
        topics.create(topic, Shape(1))
        append(topics, topic, *range(20))
        assert numbers(topics.read(topic, 0, 5, 3)) == [5, 6, 7]
        assert numbers(topics.read(topic, 0, 18, 100)) == [18, 19]
        assert topics.read(topic, 0, 20, 100) == []

    def test_offsets_are_found_by_time(self, topics: Topics, topic: str) -> None:
        topics.create(topic, Shape(2))
        append(topics, topic, "a", "b", partition=0)
        time.sleep(0.05)
        between = time.time()
        time.sleep(0.05)
        append(topics, topic, "c", partition=0)
        assert topics.offsets_at(topic, between) == [2, 0]
        assert topics.offsets_at(topic, between - 3600) == [0, 0]
        assert topics.offsets_at(topic, between + 3600) == [3, 0]
        for early in (-0.001, -0.002, -1e9):  # before 1970
            assert topics.offsets_at(topic, early) == [0, 0]

    def test_a_topic_is_made_once_and_keeps_its_partitions(self, topics: Topics, topic: str) -> None:
        assert topics.create(topic, Shape(3, 3600.0, 1 << 20)) is True
        assert topics.create(topic, Shape(3, 3600.0, 1 << 20)) is False
        assert topics.shape(topic) == Shape(3, 3600.0, 1 << 20)
        assert topic in topics.topics()
        with pytest.raises(NameTaken, match="3 partitions, not 4"):
            topics.create(topic, Shape(4))

    def test_a_topic_that_is_not_there_is_named(self, topics: Topics, topic: str) -> None:
        for call in (
            lambda: append(topics, topic, "x"),
            lambda: topics.read(topic, 0, 0, 1),
            lambda: topics.bounds(topic),
            lambda: topics.join(topic, "g"),
            lambda: topics.groups(topic),
            lambda: topics.settings(topic),
            lambda: topics.shape(topic),
        ):
            with pytest.raises(TopicUnknown):
                call()

    def test_what_no_driver_can_take_is_refused_and_nothing_is_written(self, topics: Topics, topic: str) -> None:
        for shape in (Shape(0), Shape(-1), Shape(20_000), Shape(1, max_age=-1)):
            with pytest.raises(InvalidInput):
                topics.create(topic, shape)
        topics.create(topic, Shape(2))
        with pytest.raises(TooLarge):
            topics.append(topic, [record("fine"), NewRecord(b"x" * (MAX_VALUE + 1))])
        with pytest.raises(InvalidInput, match="partitions 0 to 1"):
            topics.append(topic, [record("fine"), record("astray", partition=2)])
        with pytest.raises(InvalidInput):
            topics.read(topic, 2, 0, 1)
        assert topics.bounds(topic) == [Bounds(0, 0), Bounds(0, 0)]
        [position] = topics.append(topic, [NewRecord(b"x" * MAX_VALUE)])
        [found] = topics.read(topic, position.partition, 0, 1)
        assert len(found.value) == MAX_VALUE

    def test_a_topic_keeps_a_document(self, topics: Topics, reopen: Reopen, topic: str) -> None:
        topics.create(topic, Shape(1))
        assert topics.settings(topic) == {}
        topics.configure(topic, {"schema": {"type": "object"}, "n": 1})
        topics.configure(topic, {"schema": {"type": "object"}, "n": 2})
        other = reopen()
        try:
            assert other.settings(topic) == {"schema": {"type": "object"}, "n": 2}
        finally:
            other.close()

    def test_what_a_topic_is_made_with_stands_beside_what_it_has_and_replaces_nothing(
        self, topics: Topics, reopen: Reopen, topic: str
    ) -> None:
        assert topics.create(topic, Shape(1), {"n": 1}) is True
        other = reopen()
        try:
            assert other.create(topic, Shape(1), {"n": 1, "m": [2]}) is False
            assert topics.create(topic, Shape(1)) is False
            with pytest.raises(NameTaken, match="another n"):
                topics.create(topic, Shape(1), {"n": 2, "k": 3})
            assert topics.settings(topic) == other.settings(topic) == {"n": 1, "m": [2]}
            other.configure(topic, {"m": 5})
            assert topics.settings(topic) == {"m": 5}
        finally:
            other.close()

    def test_closed_topics_say_so(self, reopen: Reopen, topic: str) -> None:
        topics = reopen()
        topics.create(topic, Shape(1))
        append(topics, topic, "x")
        topics.close()
        topics.close()
        calls: list[Callable[[], object]] = [
            lambda: topics.create(topic, Shape(1)),
            topics.topics,
            lambda: topics.settings(topic),
            lambda: topics.append(topic, [NewRecord(b"y")]),
            lambda: topics.read(topic, 0, 0, 1),
            lambda: topics.bounds(topic),
            lambda: topics.join(topic, "group"),
            lambda: topics.groups(topic),
        ]
        for call in calls:
            with pytest.raises(StoreClosed):
                call()

    def test_a_reader_that_waits_is_woken_by_an_append(self, topics: Topics, topic: str) -> None:
        topics.create(topic, Shape(1))
        append(topics, topic, "first")
        with joined(topics, topic) as member:
            commit(member, take(member, 1))
            later = threading.Timer(0.3, append, (topics, topic, "x"))
            later.start()
            start = time.monotonic()
            assert values(take(member, 1)) == ["x"]
            assert time.monotonic() - start < 5.0
            later.join()

    def test_a_waiting_read_ends_when_it_is_woken(self, topics: Topics, topic: str) -> None:
        topics.create(topic, Shape(1))
        with joined(topics, topic) as member:
            later = threading.Timer(0.3, member.wake)
            later.start()
            start = time.monotonic()
            assert member.read(10, 30.0) == []
            assert time.monotonic() - start < 10.0
            later.join()

    def test_facts_say_where_it_is(self, topics: Topics) -> None:
        assert {"place", "woken by"} <= topics.facts().keys()
