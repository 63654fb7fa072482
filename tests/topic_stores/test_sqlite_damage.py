"""Damage to the file of the topics that is made on purpose; `tests/damage` has the random one."""

import shutil
from pathlib import Path

import pytest

from pabal.cli.exits import Exit
from pabal.cli.main import cli
from pabal.errors import StoreFailed
from pabal.sql.connection import connect
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


def test_records_out_of_order_name_the_doctor_of_topics(template: Path, tmp_path: Path) -> None:
    path = tmp_path / "topics.db"
    shutil.copy(template, path)
    connection = connect(path)
    leaves = "select pageno from dbstat where name = 'topic_records' and pagetype = 'leaf' order by pageno"
    pages: list[int] = [row[0] for row in connection.execute(leaves)][:2]  # of the first partition
    connection.close()
    data = bytearray(path.read_bytes())
    one, other = (slice((number - 1) * 4096, number * 4096) for number in pages)
    data[one], data[other] = data[other], data[one]
    path.write_bytes(data)
    topics = SqliteTopics(path)
    with pytest.raises(StoreFailed, match="does not fit its rows: run `pabal topic doctor --repair`"):
        topics.read("events", 0, 0, 1000)
    topics.close()


def _run(path: Path, *arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli(["topic", "--topics", f"sqlite:{path}", *arguments], prog_name="pabal")
    assert isinstance(ended.value.code, int)
    return Exit(ended.value.code)
