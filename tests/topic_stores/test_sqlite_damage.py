"""Damage to the file of the topics that is made on purpose; `tests/damage` has the random one."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from pabal.cli.exits import Exit
from pabal.cli.main import cli
from pabal.errors import StoreFailed
from pabal.sql.connection import connect
from pabal.testing import ManualClock
from pabal.topic_store import NewRecord, Shape
from pabal.topic_stores.sqlite import SqliteTopics


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("topics") / "topics.db"
    topics = SqliteTopics(path)
    for name in ("events", "other"):
        topics.create(name, Shape(3), {"schema": {"type": "object"}})
        topics.append(name, [NewRecord(f"{name}-{n}".encode() * 30, f"key-{n % 7}", {"n": str(n)}) for n in range(200)])
    member = topics.join("events", "readers")
    while records := member.read(50):
        member.commit({record.partition: record.offset + 1 for record in records})
    member.close()
    topics.close()
    return path


def test_settings_of_a_topic_that_cannot_be_read_are_set_aside(
    template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "topics.db"
    shutil.copy(template, path)
    connection = connect(path)
    connection.execute("update topics set settings = '{no' where name = 'events'").fetchall()
    connection.execute("update topic_groups set name = cast(x'ff' as text)").fetchall()
    connection.close()
    topics = SqliteTopics(path)
    with pytest.raises(StoreFailed, match="pabal topic doctor --repair"):
        topics.settings("events")
    assert topics.settings("other") and topics.groups("other") == {}
    topics.close()
    assert [_run(path, "doctor"), _run(path, "doctor", "--repair"), _run(path, "doctor")] == [1, 0, 0]
    assert "all is well" in capsys.readouterr().out
    topics = SqliteTopics(path)
    assert topics.settings("events") == {} and list(topics.groups("events")) == ["damaged-1"]
    topics.close()


def test_a_schema_that_no_record_can_be_checked_with_is_set_aside(template: Path, tmp_path: Path) -> None:
    path = tmp_path / "topics.db"
    shutil.copy(template, path)
    connection = connect(path)
    connection.execute("update topics set settings = replace(settings, 'object', 'objecT')").fetchall()
    connection.close()
    assert [_run(path, "doctor"), _run(path, "doctor", "--repair"), _run(path, "doctor")] == [1, 0, 0]
    with closing(SqliteTopics(path)) as topics:
        assert topics.settings("events") == {}


def test_records_out_of_order_name_the_doctor_of_topics(template: Path, tmp_path: Path) -> None:
    path = tmp_path / "topics.db"
    shutil.copy(template, path)
    connection = connect(path)
    leaves = "select pageno from dbstat where name = 'topic_records' and pagetype = 'leaf' order by pageno"
    pages: list[int] = [row[0] for row in connection.execute(leaves)][:2]  # of the first partition
    connection.close()
    _swap(path, *pages)
    topics = SqliteTopics(path)
    with pytest.raises(StoreFailed, match="does not fit its rows: run `pabal topic doctor --repair`"):
        topics.read("events", 0, 0, 1000)
    topics.close()


def _swap(path: Path, *pages: int) -> None:
    data = bytearray(path.read_bytes())
    one, other = (slice((number - 1) * 4096, number * 4096) for number in pages)
    data[one], data[other] = data[other], data[one]
    path.write_bytes(data)


def test_rows_of_another_table_are_no_topics_and_the_damaged_file_is_kept(template: Path, tmp_path: Path) -> None:
    path = tmp_path / "topics.db"
    shutil.copy(template, path)
    connection = connect(path)
    first = "select min(pageno) from dbstat where name = ? and pagetype = 'leaf'"
    pages: list[int] = [connection.execute(first, (table,)).get for table in ("topics", "topic_records")]
    connection.close()
    _swap(path, *pages)
    damaged = path.read_bytes()
    with closing(SqliteTopics(path)) as topics, pytest.raises(StoreFailed, match="run `pabal topic doctor --repair`"):
        topics.topics()
    assert _run(path, "doctor") == 1
    _run(path, "doctor", "--repair")
    assert damaged in [each.read_bytes() for each in tmp_path.glob("topics.db.damaged*")]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Three topics with two partitions each, and a group that has read the first one."""
    path = tmp_path / "topics.db"
    with closing(SqliteTopics(path)) as topics:
        for name in ("first", "middle", "last"):
            topics.create(name, Shape(2, max_age=86400.0))
            for partition in range(2):
                topics.append(name, [NewRecord(name.encode(), partition=partition) for _ in range(4)])
        with closing(topics.join("first", "readers")) as member:
            member.commit({record.partition: record.offset + 1 for record in member.read(100)})
    return path


def _harm(path: Path, change: str) -> None:
    with closing(connect(path)) as connection:
        connection.execute(change).fetchall()


def _all(path: Path) -> dict[str, list[bytes]]:
    with closing(SqliteTopics(path)) as topics:
        return {
            name: [
                record.value
                for part in range(topics.shape(name).partitions)
                for record in topics.read(name, part, 0, 9)
            ]
            for name in topics.topics()
        }


@pytest.mark.parametrize("name", ["first", "middle", "last"])
@pytest.mark.parametrize("field", ["base", "partitions"])
@pytest.mark.parametrize("bit", range(0, 63, 3))
def test_a_flipped_bit_in_the_partitions_of_a_topic_never_delivers_the_records_of_another(
    small: Path, name: str, field: str, bit: int
) -> None:
    whole = _all(small)
    flipped = f"({field} | (1 << {bit})) - ({field} & (1 << {bit}))"
    _harm(small, f"update topics set {field} = {flipped} where name = '{name}'")
    with closing(SqliteTopics(small)) as topics:
        assert topics.check(repair=False)
        for each in whole:
            try:
                topics.append(each, [NewRecord(each.encode(), partition=0)])
                found = [record.value for part in range(2) for record in topics.read(each, part, 0, 100)]
                with closing(topics.join(each, "new")) as member:
                    found += [record.value for record in member.read(100)]
            except StoreFailed as exc:
                assert "pabal topic doctor --repair" in str(exc)
            else:
                assert set(found) == {each.encode()}
        assert topics.check(repair=True)
        assert topics.check(repair=False) == []
    assert {each: set(values) for each, values in _all(small).items()} == {each: {each.encode()} for each in whole}
    assert all(len(values) >= 8 for values in _all(small).values())


@pytest.mark.parametrize("value", ["-86400.0", "9e999", "-9e999"])
def test_a_retention_that_no_topic_can_have_removes_nothing(small: Path, value: str) -> None:
    _harm(small, f"update topics set max_age = {value} where name = 'first'")
    clock = ManualClock()
    with closing(SqliteTopics(small, clock=clock)) as topics:
        for _ in range(4):
            topics.append("first", [NewRecord(b"first", partition=0)])
            clock.advance(200)
        with pytest.raises(StoreFailed, match="pabal topic doctor --repair"):
            topics.trim("first")
        assert topics.bounds("first")[0] == (0, 8)
        assert len(topics.check(repair=True)) == 1
        assert topics.shape("first") == Shape(2, 0.0, 0) and topics.bounds("first")[0] == (0, 8)
        assert topics.shape("last") == Shape(2, 86400.0, 0)


@pytest.mark.parametrize("offset", [5, 1 << 39, 1 << 62, -1])
def test_a_group_beyond_the_end_is_refused_and_reads_all_again_after_the_repair(small: Path, offset: int) -> None:
    _harm(small, f"update topic_shares set committed = {offset} where partition = 1")
    with closing(SqliteTopics(small)) as topics:
        with (
            closing(topics.join("first", "readers")) as member,
            pytest.raises(StoreFailed, match="pabal topic doctor --repair"),
        ):
            member.read(100)
        assert len(topics.check(repair=True)) == 1 and topics.check(repair=False) == []
        with closing(topics.join("first", "readers")) as member:
            assert len(member.read(100)) == 4


@pytest.mark.parametrize("first", [-(1 << 63), -1, 3, 1 << 41])
def test_a_trim_ends_whatever_the_first_offset_is(small: Path, first: int) -> None:
    _harm(small, f"update topic_partitions set first_offset = {first} where id = 1")
    with closing(SqliteTopics(small)) as topics:
        try:
            topics.retain("first", max_bytes=1)
        except StoreFailed as exc:
            assert "pabal topic doctor --repair" in str(exc)
        topics.check(repair=True)
        topics.retain("first", max_bytes=1)
        assert topics.check(repair=False) == []
        assert topics.bounds("first") == [(3, 4), (3, 4)]


def test_a_trim_of_a_partition_that_seems_to_begin_long_before_its_records_ends(small: Path) -> None:
    _harm(small, f"update topic_records set id = id + {1 << 39} where id >> 40 = 1")
    _harm(small, f"update topic_partitions set next_offset = next_offset + {1 << 39} where id = 1")
    with closing(SqliteTopics(small)) as topics:
        topics.retain("first", max_bytes=6)
        assert topics.bounds("first")[0] == ((1 << 39) + 2, (1 << 39) + 4)
        clock_ahead = topics.read("first", 0, 0, 9)[0].at + 10
        assert topics.offsets_at("first", clock_ahead)[0] == (1 << 39) + 4


def _lead_astray(path: Path, index: str, name: bytes) -> None:
    """Flip the last bit of the number of a row behind a name in an index."""
    connection = connect(path)
    page = int(connection.execute("select rootpage from sqlite_schema where name = ?", (index,)).get) - 1
    connection.close()
    data = bytearray(path.read_bytes())
    data[data.index(name, page * 4096) + len(name)] ^= 1
    path.write_bytes(data)


def test_a_damaged_index_of_names_leads_to_no_other_topic(tmp_path: Path) -> None:
    path = tmp_path / "topics.db"
    names = ["pad", "evens", "odds"]
    with closing(SqliteTopics(path)) as topics:
        for name in names:
            topics.create(name, Shape(1))
            topics.append(name, [NewRecord(name.encode(), "")])
    _lead_astray(path, "sqlite_autoindex_topics_1", b"evens")  # row 2 becomes 3
    with closing(SqliteTopics(path)) as topics:
        topics.append("evens", [NewRecord(b"evens", "")])
        found = {name: {record.value for record in topics.read(name, 0, 0, 9)} for name in names}
        assert found == {name: {name.encode()} for name in names}
        assert topics.create("evens", Shape(1)) is False
        assert all(finding.repaired for finding in topics.check(repair=True))
        assert topics.check(repair=False) == []


def test_a_damaged_index_of_groups_moves_no_offset_of_another_group(tmp_path: Path) -> None:
    path = tmp_path / "topics.db"
    with closing(SqliteTopics(path)) as topics:
        topics.create("events", Shape(1))
        topics.append("events", [NewRecord(b"x", "")] * 9)
        for name in ("pad", "readers", "writers"):
            topics.reset("events", name, {0: 4})
    _lead_astray(path, "sqlite_autoindex_topic_groups_1", b"readers")  # row 2 becomes 3
    with closing(SqliteTopics(path)) as topics:
        with closing(topics.join("events", "readers")) as member:
            assert [record.offset for record in member.read(9)] == [4, 5, 6, 7, 8]
            member.commit({0: 9})
        offsets = {name: shares[0].committed for name, shares in topics.groups("events").items()}
        assert offsets == {"pad": 4, "readers": 9, "writers": 4}
        topics.reset("events", "readers", {0: 0})
        offsets = {name: shares[0].committed for name, shares in topics.groups("events").items()}
        assert offsets == {"pad": 4, "readers": 0, "writers": 4}


def _run(path: Path, *arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli(["topic", "--topics", f"sqlite:{path}", *arguments], prog_name="pabal")
    assert isinstance(ended.value.code, int)
    return Exit(ended.value.code)


def test_a_record_with_a_damaged_time_is_shown(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _harm(small, "update topic_records set at = 1e15 where id >> 40 = 1")
    assert [_run(small, "tail", "first"), _run(small, "tail", "first", "--json")] == [0, 0]
    assert "9999-12-30" in capsys.readouterr().out
