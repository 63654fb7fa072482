"""What only topics in SQLite can be asked: retention to the record, clocks moved by hand, one file for all."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from pabal.connect import connect, connect_topics
from pabal.errors import InvalidText, InvalidUrl, NameTaken, StoreMissing, StoreRefused
from pabal.policy.retention import LOOK_SECONDS
from pabal.testing import ManualClock
from pabal.testing.store_place import Child
from pabal.testing.topic_place import append, commit, numbers, take
from pabal.topic_store import Bounds, NewRecord, Shape
from pabal.topic_stores.sqlite import SqliteTopics


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def topics(tmp_path: Path, clock: ManualClock) -> Iterator[SqliteTopics]:
    with closing(SqliteTopics(tmp_path / "topics.db", clock=clock)) as found:
        yield found


def test_t9_a_partition_is_cut_back_to_its_size(topics: SqliteTopics) -> None:
    topics.create("log", Shape(2, max_bytes=1000))
    topics.append("log", [NewRecord(b"x" * 100, partition=0) for _ in range(25)])
    topics.append("log", [NewRecord(b"y" * 100, partition=1)])
    topics.trim("log")
    assert topics.bounds("log") == [Bounds(15, 25), Bounds(0, 1)]
    assert topics.trim("log") == 0
    assert [record.offset for record in topics.read("log", 0, 0, 100)] == list(range(15, 25))


def test_t9_keys_that_are_not_ascii_count_by_their_bytes(topics: SqliteTopics) -> None:
    topics.create("log", Shape(1, max_bytes=10_000))
    for _ in range(20):
        topics.append("log", [NewRecord(b"x", "\N{HANGUL SYLLABLE GA}" * 33) for _ in range(50)])
        topics.trim("log")
    first, end = topics.bounds("log")[0]
    assert (end, end - first) == (1000, 100)


def test_t1_records_that_are_stored_are_not_refused_for_what_could_not_be_trimmed(
    topics: SqliteTopics, clock: ManualClock
) -> None:
    topics.create("log", Shape(1, max_age=60.0))
    append(topics, "log", "old")
    clock.advance(100)
    with closing(apsw.Connection(topics.facts()["place"])) as db:
        db.execute("create trigger held before delete on topic_records begin select 1 from nowhere; end")
    append(topics, "log", "new")
    assert topics.bounds("log") == [Bounds(0, 2)]


def test_a_key_or_header_that_no_text_can_hold_is_refused(topics: SqliteTopics) -> None:
    topics.create("log", Shape(1))
    for more in ({"key": "\ud800"}, {"headers": {"a": "\ud800"}}, {"headers": {"\udcff": "a"}}):
        with pytest.raises(InvalidText, match="key or header"):
            topics.append("log", [NewRecord(b"x", **more)])
    topics.append("log", [NewRecord(b"x", key="\udcff", headers={"a": "\udcff"})])  # bytes that others wrote
    assert topics.bounds("log") == [Bounds(0, 1)]


def test_t9_records_go_when_their_time_is_over_and_not_before(topics: SqliteTopics, clock: ManualClock) -> None:
    topics.create("log", Shape(1, max_age=60.0))
    append(topics, "log", "old")
    clock.advance(40)
    append(topics, "log", "new")
    clock.advance(19)
    assert topics.trim("log") == 0
    clock.advance(2)
    assert topics.trim("log") == 1
    assert topics.bounds("log") == [Bounds(1, 2)]


def test_t9_who_appends_trims_now_and_then(topics: SqliteTopics, clock: ManualClock) -> None:
    topics.create("log", Shape(1, max_age=60.0))
    for _ in range(5):
        append(topics, "log", "x")
        clock.advance(50)
    assert topics.bounds("log") == [Bounds(0, 5)]  # too old at one look: the clock may have jumped
    clock.advance(LOOK_SECONDS)
    append(topics, "log", "x")
    first, end = topics.bounds("log")[0]
    assert end == 6 and first >= 1


def test_t9_a_clock_that_is_ahead_for_a_while_removes_nothing(topics: SqliteTopics, clock: ManualClock) -> None:
    topics.create("log", Shape(1, max_age=86400.0))
    append(topics, "log", "x")
    for _ in range(3):
        clock.step_wall(10 * 86400)
        clock.advance(20)
        append(topics, "log", "x")
        clock.step_wall(-10 * 86400)
        clock.advance(LOOK_SECONDS)
        append(topics, "log", "x")
    assert topics.bounds("log") == [Bounds(0, 7)]


def test_t9_who_appends_goes_by_what_another_process_said(tmp_path: Path, clock: ManualClock) -> None:
    with closing(SqliteTopics(tmp_path / "t.db", clock=clock)) as ours:
        ours.create("log", Shape(1))
        append(ours, "log", "old")
        with closing(SqliteTopics(tmp_path / "t.db", clock=clock)) as theirs:
            theirs.retain("log", max_age=60.0)
        clock.advance(100)
        append(ours, "log", "new")
        clock.advance(LOOK_SECONDS)
        append(ours, "log", "newer")
        assert ours.bounds("log") == [Bounds(1, 3)]


def test_t9_less_is_kept_at_once(topics: SqliteTopics) -> None:
    topics.create("log", Shape(1))
    topics.append("log", [NewRecord(b"x" * 100) for _ in range(25)])
    topics.retain("log", max_bytes=1000)
    assert topics.bounds("log") == [Bounds(15, 25)]


def test_times_of_a_partition_rise_when_the_clock_steps_back(topics: SqliteTopics, clock: ManualClock) -> None:
    topics.create("log", Shape(1))
    append(topics, "log", "a")
    clock.step_wall(-3600)
    append(topics, "log", "b")
    clock.step_wall(7200)
    append(topics, "log", "c")
    times = [record.at for record in topics.read("log", 0, 0, 10)]
    assert times == sorted(times) and topics.offsets_at("log", times[2]) == [2]


def test_t5_a_step_of_the_wall_clock_ends_no_session(topics: SqliteTopics, clock: ManualClock) -> None:
    topics.create("log", Shape(1))
    append(topics, "log", 1, 2)
    one = topics.join("log", "g", session=1000.0)
    records = take(one, 2)
    clock.step_wall(86400)
    two = topics.join("log", "g", session=1000.0)
    assert two.read(10) == []
    commit(one, records)
    one.close()
    two.close()


def test_t5_members_of_another_boot_are_gone(topics: SqliteTopics, clock: ManualClock) -> None:
    topics.create("log", Shape(1))
    append(topics, "log", 1, 2)
    dead = topics.join("log", "g", session=1000.0)
    assert numbers(take(dead, 2)) == [1, 2]
    clock.reboot()
    fresh = topics.join("log", "g", session=1000.0)
    assert numbers(take(fresh, 2)) == [1, 2]
    fresh.close()
    dead.close()


def test_who_is_past_its_session_is_not_told_as_an_owner(topics: SqliteTopics, clock: ManualClock) -> None:
    topics.create("log", Shape(1))
    with closing(topics.join("log", "g", session=1000.0)) as silent:
        silent.read(1)
        assert topics.groups("log")["g"][0].owner == silent.name
        clock.advance(1001)
        assert topics.groups("log")["g"][0].owner == ""


def test_topics_and_queues_share_a_file(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'all.db'}"
    with connect(url) as mq, connect_topics(url) as topics:
        topics.topic("jobs").create(1)
        mq.queue("jobs").publish("message")
        topics.topic("jobs").append("record")
        assert [d.message.body for d in mq.queue("jobs").lease(5)] == ["message"]
        assert [r.value for r in topics.topic("jobs").read(0)] == [b'"record"']


def test_a_name_that_differs_only_in_case_is_refused(topics: SqliteTopics) -> None:
    topics.create("Log", Shape(1))
    with pytest.raises(NameTaken, match="only in case"):
        topics.create("log", Shape(1))


def test_a_handle_lives_through_a_fork(topics: SqliteTopics) -> None:
    topics.create("log", Shape(1))
    append(topics, "log", 0)
    child = Child(lambda: [position.offset for position in append(topics, "log", 1, 2)])
    assert child.result() == [1, 2]
    append(topics, "log", 3)
    assert numbers(topics.read("log", 0, 0, 10)) == [0, 1, 2, 3]


def test_looking_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match="pabal topic create"):
        connect_topics(f"sqlite:{tmp_path / 'none.db'}", create=False)
    assert os.listdir(tmp_path) == []


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    import apsw

    SqliteTopics(tmp_path / "t.db").close()
    connection = apsw.Connection(str(tmp_path / "t.db"))
    connection.execute("alter table topics add more text; update meta set value = 99 where key = 'schema.topics'")
    connection.close()
    with pytest.raises(StoreRefused, match="schema 99 of topics"):
        SqliteTopics(tmp_path / "t.db")


@pytest.mark.parametrize(
    "url", ["sqlite://host/x.db", "sqlite:", "sqlite:x?a=b", "kafka:", "kafka://u:p@h", "redis://h"]
)
def test_a_url_that_is_none_says_what_to_write(url: str) -> None:
    with pytest.raises(InvalidUrl):
        connect_topics(url)
