"""`pabal topic` and `pabal bridge` on both drivers."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pabal.cli.exits import Exit
from pabal.connect import connect_topics
from pabal.ids import new_token
from pabal.policy.policy import RetryPolicy
from pabal.testing.store_place import soon
from pabal.topic_store import Shape
from pabal.topics.attempts import Received
from pabal.topics.consumer import consumer
from tests.cli.command import Pabal


@pytest.fixture(params=["sqlite", "kafka"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'topics.db'}"
    found: str = request.getfixturevalue("kafka").url
    return found


@pytest.fixture
def name() -> Iterator[str]:
    yield f"events-{new_token()}"


def test_a_topic_from_making_to_reading_again(pabal: Pabal, url: str, name: str) -> None:
    here = ("--topics", url)
    made = pabal.ok("topic", "create", name, "--partitions", "3", *here)
    assert made == f"made {name}, 3 partitions"
    assert "there already" in pabal.ok("topic", "create", name, "--partitions", "3", *here)
    assert pabal.ok("topic", "append", name, '{"n": 1}', "--key", "room-1", *here) == f"{name}/0/0"
    pabal.ok("topic", "append", name, "--lines", "--key", "room-1", "--header", "h=1", *here, stdin='2\n"three"\n')
    read = pabal("topic", "read", name, "--group", "g", "--count", "3", "--json", "--wait", "20s", *here)
    assert [document["body"] for document in read.documents] == [{"n": 1}, 2, "three"]
    assert read.documents[1]["headers"] == {"h": "1"} and read.documents[0]["key"] == "room-1"
    shares = pabal("topic", "groups", name, "--json", *here).documents
    assert [(share["committed"], share["lag"]) for share in shares] == [(3, 0), (0, 0), (0, 0)]
    assert "LAG" in pabal.ok("topic", "groups", name, *here)
    tail = pabal.ok("topic", "tail", name, "-n", "2", *here)
    assert len(tail.splitlines()) == 2 and f'{name}/0/2  room-1  "three"' in tail
    pabal.ok("topic", "reset-offsets", name, "--group", "g", "--offset", "1", "--partition", "0", *here)
    again = pabal("topic", "read", name, "--group", "g", "--count", "2", "--json", "--wait", "20s", *here)
    assert [document["offset"] for document in again.documents] == [1, 2]
    assert name in pabal.ok("topic", "list", *here)


def test_what_a_topic_keeps_is_changed(pabal: Pabal, url: str, name: str) -> None:
    here = ("--topics", url)
    pabal.ok("topic", "create", name, "--max-age", "7d", *here)
    said = pabal.ok("topic", "retain", name, "--max-age", "30d", "--max-bytes", "1000000", *here)
    assert said == f"{name} keeps records of 30d, 1000000 bytes in each partition"
    assert pabal.ok("topic", "retain", name, "--max-bytes", "0", *here) == f"{name} keeps any number of bytes"
    with connect_topics(url) as topics:
        assert soon(lambda: topics.driver.shape(name) == Shape(1, 30 * 86400.0, 0), timeout=20.0)
    ran = pabal("topic", "retain", name, *here)
    assert ran.code == Exit.INVALID and "--max-age, --max-bytes or both" in ran.err
    assert pabal("topic", "retain", name, "--max-bytes", "-1", *here).code == Exit.INVALID
    assert pabal("topic", "retain", f"{name}-none", "--max-age", "1d", *here).code == Exit.UNKNOWN


def test_a_schema_keeps_what_does_not_fit_out(pabal: Pabal, url: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"type": "object", "required": ["n"]}')
    pabal.ok("topic", "create", name, "--schema", str(tmp_path / "schema.json"), "--topics", url)
    ran = pabal("topic", "append", name, '{"m": 1}', "--topics", url)
    assert ran.code == Exit.INVALID and "must contain ['n'] properties" in ran.err
    pabal.ok("topic", "append", name, '{"n": 1}', "--topics", url)


def test_dead_records_are_listed_and_replayed(pabal: Pabal, url: str, name: str) -> None:
    def refuse(received: Received) -> None:
        raise ValueError("cannot")

    with connect_topics(url) as topics:
        topics.topic(name).create(1)
        topics.topic(name).append({"n": 1})
        consumer(topics.topic(name), "g", refuse, retry=RetryPolicy(limit=1), session=1.0).run(count=1, wait=20.0)
    assert "HANDLER_ERROR for g after 1: ValueError: cannot" in pabal.ok("topic", "dlq", name, "--topics", url)
    [document] = pabal("topic", "dlq", name, "--json", "--topics", url).documents
    assert document["body"] == {"n": 1} and document["dead"]["reason"] == "ValueError: cannot"
    assert pabal.ok("topic", "dlq", name, "--replay", "--topics", url) == "replayed 1"
    ran = pabal("topic", "dlq", name, "--topics", url)
    assert ran.code == Exit.NOTHING and "no dead records" in ran.err
    read = pabal("topic", "read", name, "--group", "g", "--json", "--wait", "20s", "--topics", url)
    assert read.documents[0]["offset"] == 1


def test_who_does_not_wait_reads_all_that_is_there(pabal: Pabal, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 't.db'}"
    with connect_topics(url) as topics:
        topics.topic("events").create(1)
        topics.topic("events").append_many(range(1200))
    read = pabal("topic", "read", "events", "--group", "g", "--count", "0", "--wait", "0", "--json", "--topics", url)
    assert len(read.documents) == 1200


def test_what_is_not_there_is_named(pabal: Pabal, tmp_path: Path) -> None:
    here = ("--topics", f"sqlite:{tmp_path / 't.db'}")
    ran = pabal("topic", "read", "events", "--group", "g", *here)
    assert ran.code == Exit.UNKNOWN and "pabal topic create" in ran.err
    pabal.ok("topic", "create", "events", *here)
    ran = pabal("topic", "append", "event", "x", *here)
    assert ran.code == Exit.UNKNOWN and "did you mean events?" in ran.err
    assert pabal("topic", "read", "events", "--group", "g", "--wait", "0", *here).code == Exit.NOTHING
    assert pabal("topic", "tail", "events", *here).code == Exit.NOTHING
    assert pabal("topic", "groups", "events", *here).code in (Exit.DONE, Exit.NOTHING)
    assert pabal("topic", "reset-offsets", "events", "--group", "g", *here).code == Exit.INVALID
    assert pabal("topic", "create", "events", "--partitions", "2", *here).code == Exit.INVALID
    with connect_topics(here[1]) as topics:
        member = topics.driver.join("events", "busy", session=30.0)
        member.read(1)
        ran = pabal("topic", "reset-offsets", "events", "--group", "busy", "--to", "latest", *here)
        assert ran.code == Exit.LEASE_LOST and "GroupBusy" in ran.err
        member.close()


def test_offsets_are_reset_by_time(pabal: Pabal, tmp_path: Path) -> None:
    here = ("--topics", f"sqlite:{tmp_path / 't.db'}")
    pabal.ok("topic", "create", "events", *here)
    pabal.ok("topic", "append", "events", "1", *here)
    for options, offset in (
        (("--back", "1h"), "0"),
        (("--at", "2099-01-01T00:00:00Z"), "1"),
        (("--to", "latest"), "1"),
        (("--to", "earliest"), "0"),
    ):
        shown = pabal.ok("topic", "reset-offsets", "events", "--group", "g", *options, *here)
        assert shown.splitlines()[1].split() == ["g", "0", offset]
    assert pabal("topic", "reset-offsets", "events", "--group", "g", "--at", "soon", *here).code == Exit.INVALID


def test_tail_follows(pabal: Pabal, tmp_path: Path) -> None:
    here = ("--topics", f"sqlite:{tmp_path / 't.db'}")
    pabal.ok("topic", "create", "events", *here)
    pabal.ok("topic", "append", "events", "1", *here)
    process = pabal.start("topic", "tail", "-f", "events", "--json", *here)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["body"] == 1
    pabal.ok("topic", "append", "events", "2", *here)
    assert json.loads(process.stdout.readline())["body"] == 2
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == Exit.INTERRUPTED


def test_bridges_carry_until_told_to_stop(pabal: Pabal, url: str, name: str) -> None:
    pabal.ok("topic", "create", name, "--topics", url)
    pabal.ok("publish", "orders", '{"n": 1}')
    assert pabal.ok("bridge", "to-topic", "orders", name, "--wait", "0.2", "--topics", url) == "carried 1"
    process = pabal.start("bridge", "to-queue", name, "copies", "--topics", url)
    end = time.monotonic() + 60
    while not pabal.counts("copies"):
        assert time.monotonic() < end
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out.strip()) == (0, "carried 1")
    assert pabal("bridge", "to-topic", "orders", name, "--wait", "0", "--topics", url).code == Exit.NOTHING
