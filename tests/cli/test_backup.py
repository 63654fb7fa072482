"""`pabal backup` and `pabal restore`: a store in use becomes one file, and the file a store."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

import pabal as library
from pabal.store import State
from tests.cli.command import COMMAND, Pabal
from tests.crash.conftest import need

WAITING = (State.READY, State.INFLIGHT, State.DELAYED)

GIVE = """
import sys
import pabal
with pabal.connect(sys.argv[1]) as mq:
    for number in range(10**9):
        print(mq.queue("jobs").publish(number, id=f"{sys.argv[2]}-{number}").id, flush=True)
"""
TAKE = """
import sys, time
import pabal
with pabal.connect(sys.argv[1]) as mq:
    while True:
        for delivery in mq.queue("jobs").lease(3, wait=0.1):
            delivery.ack(then=[mq.queue("next").draft(delivery.message.id, id=delivery.message.id)])
"""


class Load:
    """Processes that publish to one queue and carry messages on to the next, until they are killed."""

    def __init__(self, url: str) -> None:
        self._givers = [self._start(GIVE, url, name) for name in "ab"]
        self._takers = [self._start(TAKE, url) for _ in range(2)]
        self.published: set[str] = set()

    def _start(self, script: str, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True)

    def read(self, many: int) -> None:
        """Wait until each publisher has had so many more answers."""
        for giver in self._givers:
            assert giver.stdout is not None
            self.published |= {giver.stdout.readline().strip() for _ in range(many)}
        assert all(process.poll() is None for process in (*self._givers, *self._takers))

    def kill(self) -> None:
        for process in (*self._givers, *self._takers):
            process.kill()
        for process in (*self._givers, *self._takers):
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def loaded(any_pabal: Pabal) -> Iterator[Callable[[], Load]]:
    started: list[Load] = []

    def start() -> Load:
        started.append(Load(any_pabal.url))
        return started[-1]

    yield start
    for load in started:
        load.kill()


def remove_store(pabal: Pabal) -> None:
    for path in pabal.place.glob("store*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_a_backup_under_load_has_every_message_that_was_published_before(
    any_pabal: Pabal, loaded: Callable[[], Load]
) -> None:
    load = loaded()
    for day in range(2):
        load.read(60)
        before = set(load.published)
        ran = any_pabal.run("backup", "copy.tar", "--verify", "--json")
        assert ran.code == 0, ran
        assert ran.documents[0]["verified"] is True and day < 2
    load.read(20)
    load.kill()
    remove_store(any_pabal)
    assert any_pabal.run("restore", "copy.tar").code == 0
    with any_pabal.connect() as mq:
        jobs = {entry.id for state in WAITING for entry in mq.queue("jobs").entries(state)}
        following = {entry.id for entry in mq.queue("next").entries(State.READY)}
        assert before <= jobs | following
        assert not jobs & following and following, "a settlement and its follow-up are one step"
        assert mq.queue("jobs").publish("after").id
    assert any_pabal.ok("doctor").startswith("all is well")
    assert not [path for path in any_pabal.place.iterdir() if "tmp" in path.name or "verify" in path.name]


def test_a_backup_is_private_and_replaced_only_by_a_whole_one(any_pabal: Pabal) -> None:
    any_pabal.ok("publish", "jobs", "1")
    copy = any_pabal.place / "copy.tar"
    any_pabal.ok("backup", str(copy))
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    with tarfile.open(copy) as tar:
        assert {oct(member.mode) for member in tar} <= {"0o600", "0o700"}
    first = copy.read_bytes()
    remove_store(any_pabal)
    assert any_pabal("backup", str(copy)).code == 3
    assert copy.read_bytes() == first and not any_pabal.place.joinpath("store").exists()


def test_what_is_no_backup_is_not_overwritten_or_restored(any_pabal: Pabal) -> None:
    any_pabal.ok("publish", "jobs", "1")
    other = any_pabal.place / "letter.txt"
    other.write_text("dear")
    for command in ("backup", "restore"):
        ran = any_pabal(command, str(other))
        assert ran.code == 2 and "not a backup" in ran.err
    assert other.read_text() == "dear"
    assert any_pabal("backup", str(any_pabal.place)).code == 2


def test_a_damaged_backup_restores_nothing(any_pabal: Pabal) -> None:
    any_pabal.ok("publish", "jobs", '"a text that can be found"')
    copy = any_pabal.place / "copy.tar"
    any_pabal.ok("backup", str(copy))
    remove_store(any_pabal)
    good = copy.read_bytes()
    sums = good.rindex(b'{"kept":')
    for bad in (
        good.replace(b"can be found", b"CAN be found"),
        good[: len(good) // 2],
        good[:sums] + b"\0" + good[sums + 1 :],
        good.replace(b"  file", b"__file").replace(b"  pabal.db", b"__pabal.db").replace(b"  store", b"__store"),
    ):
        assert bad != good
        copy.write_bytes(bad)
        for options in (["--verify"], []):
            ran = any_pabal("restore", str(copy), *options)
            assert ran.code == 6 and "restore another backup" in ran.err, ran
        assert [path.name for path in any_pabal.place.iterdir()] == ["copy.tar"]
    copy.write_bytes(good.replace(b'{"format":', b'{"format";'))
    assert "not a backup" in any_pabal("restore", str(copy)).err
    copy.write_bytes(good)
    any_pabal.ok("restore", str(copy), "--verify")
    assert [path.name for path in any_pabal.place.iterdir()] == ["copy.tar"]
    any_pabal.ok("restore", str(copy))
    assert any_pabal.counts() == {"ready": 1}


def test_nothing_that_is_there_is_overwritten(any_pabal: Pabal) -> None:
    any_pabal.ok("publish", "jobs", "1")
    copy = str(any_pabal.place / "copy.tar")
    any_pabal.ok("backup", copy)
    any_pabal.ok("publish", "jobs", "2")
    ran = any_pabal("restore", copy)
    assert ran.code == 6 and "move it away" in ran.err
    assert any_pabal.counts() == {"ready": 2}


def test_a_backup_of_another_kind_is_named(pabal: Pabal, tmp_path: Path) -> None:
    pabal.ok("publish", "jobs", "1")
    copy = str(tmp_path / "copy.tar")
    pabal.ok("backup", copy)
    ran = pabal("--url", f"file:{tmp_path / 'other'}", "restore", copy)
    assert ran.code in (2, 6) and not (tmp_path / "other").exists()


def test_policies_dead_letters_and_empty_queues_come_along(any_pabal: Pabal) -> None:
    any_pabal.ok("policy", "set", "empty", "--set", "maxBytes=7000")
    any_pabal.ok("publish", "jobs", "1")
    with any_pabal.connect() as mq:
        for delivery in mq.queue("jobs").lease():
            delivery.bury("broken")
    copy = str(any_pabal.place / "copy.tar")
    any_pabal.ok("backup", copy)
    before = any_pabal.ok("list-dlq", "jobs", "--json")
    remove_store(any_pabal)
    any_pabal.ok("restore", copy)
    assert any_pabal.ok("list-dlq", "jobs", "--json") == before
    assert any_pabal.ok("queues").split() == ["empty", "jobs"]
    with any_pabal.connect() as mq:
        assert mq.queue("empty").policy.max_bytes == 7000


def test_a_backup_of_files_does_not_go_into_the_store(pabal: Pabal, tmp_path: Path) -> None:
    at = ["--url", f"file:{tmp_path / 'spool'}"]
    pabal.ok(*at, "publish", "jobs", "1")
    (tmp_path / "link").symlink_to(tmp_path / "spool/jobs")
    for place in ("spool/copy.tar", "link/copy.tar"):
        ran = pabal(*at, "backup", str(tmp_path / place))
        assert ran.code == 2 and "lies in the store" in ran.err and not (tmp_path / place).exists()


def test_files_that_others_gave_any_name_are_backed_up(pabal: Pabal, tmp_path: Path) -> None:
    at = ["--url", f"file:{tmp_path / 'spool'}"]
    pabal.ok(*at, "publish", "jobs", "1")
    names = {"two\nlines.json", "\x0b\x85\u2028.json", os.fsdecode(b"\xff.json"), "%41\\n  b.json"}
    for name in names:
        (tmp_path / "spool/jobs/ready" / name).write_text('{"payload": 1}')
    pabal.ok(*at, "backup", str(tmp_path / "copy.tar"), "--verify")
    pabal.ok("--url", f"file:{tmp_path / 'other'}", "restore", str(tmp_path / "copy.tar"))
    assert names < set(os.listdir(tmp_path / "other/jobs/ready"))


def test_a_backup_is_verified_in_a_folder_of_any_name(any_pabal: Pabal) -> None:
    folder = any_pabal.place / "50%41 of?all#1"
    folder.mkdir()
    any_pabal.ok("publish", "jobs", "1")
    any_pabal.ok("backup", str(folder / "copy.tar"), "--verify")
    any_pabal.ok("restore", str(folder / "copy.tar"), "--verify")
    assert os.listdir(folder) == ["copy.tar"]


@pytest.mark.parametrize("name", ["no place", "other/file.json", "jobs/b.json"])
def test_a_row_with_a_damaged_name_keeps_no_other_from_the_backup(pabal: Pabal, tmp_path: Path, name: str) -> None:
    at = ["--url", f"hybrid:{tmp_path / 'spool'}"]
    for id in "ab":
        pabal.ok(*at, "publish", "jobs", "1", "--id", id)
    database = apsw.Connection(str(tmp_path / "spool/pabal.db"))
    database.execute("update messages set document = ? where id = 'a'", (name,))
    database.close()
    copy = str(tmp_path / "copy.tar")
    pabal.ok(*at, "backup", copy)
    ran = pabal(*at, "restore", copy, "--verify")
    assert ran.code == 6 and "1 faults" in ran.err
    other = ["--url", f"hybrid:{tmp_path / 'other'}"]
    pabal.ok(*other, "restore", copy)
    pabal.ok(*other, "doctor", "--repair")
    assert pabal(*other, "status", "--json").documents[0]["ready"] == (1 if "b.json" in name else 2)


def test_a_file_that_holds_only_topics_is_backed_up(pabal: Pabal) -> None:
    with library.connect_topics(pabal.url) as topics:
        topics.topic("events").create(partitions=1)
        topics.topic("events").append({"n": 1})
    copy = str(pabal.place / "copy.tar")
    pabal.ok("backup", copy, "--verify")
    remove_store(pabal)
    pabal.ok("restore", copy)
    with library.connect_topics(pabal.url, create=False) as topics:
        assert topics.topics() == ["events"]


def test_body_files_stay_while_a_backup_reads_them(tmp_path: Path) -> None:
    """A message that is settled during a backup keeps its file until the backup has ended or is a minute dead."""
    from pabal.stores.hybrid import HybridStore
    from pabal.testing import ManualClock
    from pabal.testing.store_place import ack, publish, take_one

    clock = ManualClock()
    store = HybridStore(tmp_path / "store", clock=clock)
    folder = tmp_path / "store" / "bodies" / "jobs"
    publish(store, 1)
    store._keep_bodies(60.0)
    ack(store, take_one(store))
    store.purge("jobs", State.DONE, age=3600)
    store.check(repair=True)
    assert len(os.listdir(folder)) == 1
    clock.advance(61)
    store.purge("jobs", State.DONE, age=3600)
    assert os.listdir(folder) == []
    store.close()


def test_archived_dead_letters_are_restored_once(any_pabal: Pabal) -> None:
    document = {
        "originalMessage": {"messageId": "m1", "timestamp": "2026-01-01T00:00:00Z", "payload": {"n": 1}, "group": "g"},
        "failure": {
            "reasonCode": "POISON",
            "reasonMessage": "bad",
            "failedAt": "2026-01-02T00:00:00+00:00",
            "attempt": 3,
            "consumerId": "c",
        },
        "routing": {"sourceQueue": "jobs", "dlqQueue": ""},
    }
    archive = any_pabal.place / "1767225600000.jsonl"
    archive.write_text(json.dumps(document) + "\n")
    assert "1 dead of jobs can be restored" in any_pabal.ok("restore", str(archive), "--verify")
    assert any_pabal.ok("restore", str(archive)) == "1 dead in jobs again"
    assert any_pabal.ok("restore", str(archive)) == "0 dead in jobs again, 1 known there"
    (found,) = any_pabal("list-dlq", "jobs", "--json").documents
    assert found["failure"]["code"] == "POISON" and found["attempt"] == 3
    any_pabal.ok("reprocess", "jobs", "m1")
    assert any_pabal.counts() == {"ready": 1}
    archive.write_text('{"what": 1}\n')
    ran = any_pabal("restore", str(archive))
    assert ran.code == 2 and "line 1" in ran.err


@pytest.mark.root
@pytest.mark.parametrize("kind", ["sqlite:{}/q.db", "file:{}/spool", "hybrid:{}/both"])
def test_a_store_on_a_read_only_file_system_is_backed_up(tmp_path: Path, kind: str) -> None:
    need("root, for mounts", os.geteuid() == 0)
    place, copy = tmp_path / "place", tmp_path / "copy"
    place.mkdir()
    url = kind.format(place)
    with library.connect(url) as mq:
        mq.queue("jobs").publish("body", id="a")
    mounted = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    command = [*COMMAND, "--url", url, "backup", str(copy)]
    subprocess.run(["unshare", "-m", "sh", "-c", mounted, place, *command], check=True, capture_output=True)
    restored = Pabal(kind.format(tmp_path / "restored"), tmp_path)
    restored.ok("restore", str(copy))
    assert "body" in restored.ok("peek", "jobs")
