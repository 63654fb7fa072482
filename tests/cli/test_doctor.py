"""`pabal doctor`: says what it found, mends it if asked, and how much is left."""

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from pabal.policy.policy import Policy
from pabal.store import State
from tests.cli.command import Pabal


def test_a_healthy_store_is_well(any_pabal: Pabal) -> None:
    any_pabal.ok("publish", "jobs", "1")
    assert any_pabal.ok("doctor").splitlines()[0] == "all is well"
    assert any_pabal("doctor", "--json") == (0, "", "")


def test_what_is_left_behind_is_found_and_mended(tmp_path: Path) -> None:
    pabal = Pabal(f"file:{tmp_path / 'spool'}", tmp_path)
    pabal.ok("publish", "jobs", "1")
    left = tmp_path / "spool" / "jobs" / "tmp" / "left-behind.json"
    left.write_text("{}")
    os.utime(left, (1e9, 1e9))
    found = pabal("doctor", "--json")
    assert found.code == 0, "an ordinary leftover is no trouble"
    assert list(found.documents[0]) == ["where", "problem", "remedy", "repaired", "ordinary"]
    assert found.documents[0]["ordinary"] is True
    assert "pabal doctor --repair" in pabal("doctor").out
    assert left.exists(), "looking mends nothing"
    mended = pabal("doctor", "--repair")
    assert mended.code == 0 and "mended: " in mended.out
    assert not left.exists()
    assert pabal.ok("doctor").startswith("all is well")
    assert pabal.counts() == {"ready": 1}


def test_a_lost_index_is_reported_and_made_again_by_adopt(tmp_path: Path) -> None:
    pabal = Pabal(f"hybrid:{tmp_path / 'spool'}", tmp_path)
    for number in range(3):
        pabal.ok("publish", "jobs", str(number))
    for path in (tmp_path / "spool").glob("pabal.db*"):
        path.unlink() if path.is_file() else shutil.rmtree(path)
    for command in ("status", "doctor"):
        ran = pabal(command)
        assert ran.code == 3 and "IndexMissing" in ran.err and "3 body files" in ran.err
        assert "pabal doctor --adopt" in ran.err and not (tmp_path / "spool" / "pabal.db").exists()
    (tmp_path / "spool" / "bodies").rename(tmp_path / "spool" / "bodies.orphaned")  # as if they were older
    assert "3 found, 3 mended, 0 left" in pabal.ok("doctor", "--adopt")
    assert pabal.counts() == {"ready": 3}


def test_adopt_is_for_hybrid_stores_and_makes_none(tmp_path: Path) -> None:
    pabal = Pabal(f"sqlite:{tmp_path / 'store.db'}", tmp_path)
    assert pabal("doctor", "--adopt").code == 3 and not (tmp_path / "store.db").exists()
    pabal.ok("publish", "jobs", "1")
    assert pabal("doctor", "--adopt").code == 2


def test_a_damaged_header_is_named_and_nothing_is_made_in_its_place(pabal: Pabal, tmp_path: Path) -> None:
    pabal.ok("publish", "jobs", "1")
    path = tmp_path / "store.db"
    good = path.read_bytes()
    schema = good[:110] + b"\xff" * 900 + good[1010:]
    for bad in (b"\0" * 100 + good[100:], good[:16] + b"\xff" * 84 + good[100:], b"dear reader\n", schema):
        path.write_bytes(bad)
        for command in (["status"], ["peek", "jobs"], ["backup", str(tmp_path / "copy.tar")]):
            ran = pabal(*command)
            assert ("pabal doctor --repair" in ran.err) is (bad != b"dear reader\n"), ran
            assert ran.code == 6 and "publish to make one" not in ran.err, ran
            assert str(path) in ran.err and path.read_bytes() == bad
        ran = pabal("doctor")
        assert ran.code == (6 if bad == b"dear reader\n" else 1) and path.read_bytes() == bad, ran
        ran = pabal("doctor", "--repair")
        if bad == b"dear reader\n":
            assert ran.code == 6 and path.read_bytes() == bad, ran
            continue
        assert ran.code == 0 and "1 left" not in ran.out, ran
        # Without the list of free pages nothing tells whether a message was handled: it is a dead letter.
        assert pabal.counts() in ({"ready": 1}, {"dead": 1})
        [kept] = tmp_path.glob("store.db.damaged-*")
        assert kept.read_bytes() == bad
        kept.unlink()
    for nothing, code in ((b"dear reader\n", 6), (b"", 3)):
        path.write_bytes(nothing)
        ran = pabal("doctor", "--salvage", str(tmp_path / "new"))
        assert ran.code == code and str(path) in ran.err and not (tmp_path / "new").exists(), ran


@pytest.mark.parametrize("scheme", ["sqlite", "file", "hybrid"])
def test_what_can_be_no_store_is_named(scheme: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    pabal = Pabal(f"{scheme}:{place}", tmp_path)
    for make in (os.mkfifo, os.mkdir if scheme == "sqlite" else Path.touch):
        make(place)
        for command in (["status"], ["doctor"], ["publish", "jobs", "1"], ["backup", str(tmp_path / "copy.tar")]):
            ran = pabal(*command)
            assert ran.code == 6 and f"{place} is " in ran.err and "publish to make one" not in ran.err, ran
        place.rename(tmp_path / make.__name__)
    assert not (tmp_path / "copy.tar").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("scheme", ["sqlite", "file", "hybrid"])
def test_a_folder_that_may_not_be_entered_is_named(scheme: str, tmp_path: Path) -> None:
    place = tmp_path / "closed"
    place.mkdir(mode=0o700)
    url = f"{scheme}:{place / 'store'}"
    Pabal(url, tmp_path).ok("publish", "jobs", "1")
    script = (
        "import os, pabal.stores.files, pabal.stores.hybrid as _; from pabal.cli.main import main; os.setuid(65534)"
    )
    for command in ("status", "doctor"):
        argv = [sys.executable, "-c", f"{script}; main()", "--url", url, command]
        ran = subprocess.run(argv, cwd="/", capture_output=True, text=True)
        assert ran.returncode == 6 and "StoreFailed: Permission denied" in ran.stderr, ran
        assert str(place) in ran.stderr


@pytest.mark.parametrize("scheme", ["sqlite", "hybrid"])
def test_salvage_finds_messages_that_no_page_leads_to(scheme: str, tmp_path: Path) -> None:
    """The first page, and that above all messages, are gone. More damages are in tests/damage."""
    pabal = Pabal(f"{scheme}:{tmp_path / 'store'}", tmp_path)
    with pabal.connect() as mq:
        mq.queue("jobs").publish_many([{"n": number, "fill": "x" * 300} for number in range(300)])
        mq.queue("jobs").configure(Policy(max_bytes=7000))
        mq.queue("jobs").lease()[0].ack()
    path = tmp_path / "store" / "pabal.db" if scheme == "hybrid" else tmp_path / "store"
    with sqlite3.connect(path) as db:
        (root,) = db.execute("select rootpage from sqlite_schema where name = 'messages'").fetchone()
    db.close()
    good = path.read_bytes()
    for number, (page, code) in enumerate([(root, 0), (1, 0)]):
        bad = good[: (page - 1) * 4096] + os.urandom(4096) + good[page * 4096 :]
        path.write_bytes(bad)
        target = str(tmp_path / f"new-{number}")
        ran = pabal("doctor", "--salvage", target)
        assert ran.code == code and path.read_bytes() == bad, ran
        new = Pabal(f"{scheme}:{target}", tmp_path)
        with new.connect() as mq:
            jobs = mq.queue("jobs")
            # Without the first page nothing tells free pages from others: all that waits is dead.
            found = [*jobs.entries(State.READY), *jobs.entries(State.DEAD)]
            bodies = [entry.message.body for entry in found if entry.message]
            assert sorted(body["n"] for body in bodies if isinstance(body, dict)) == list(range(1, 300))
            assert all(body == {"n": body["n"], "fill": "x" * 300} for body in bodies if isinstance(body, dict))
            assert len([*jobs.entries(State.DEAD)]) == (299 if page == 1 else 0)
            assert jobs.policy.max_bytes == 7000
        assert new("doctor").code == 0
    assert pabal("doctor", "--salvage", target).code == 6, "nothing is overwritten"


@pytest.mark.parametrize("scheme", ["sqlite", "hybrid"])
def test_compact_gives_space_back_while_others_use_the_store(scheme: str, tmp_path: Path) -> None:
    pabal = Pabal(f"{scheme}:{tmp_path / 'store'}", tmp_path)
    with pabal.connect() as mq:
        jobs = mq.queue("jobs")
        jobs.publish_many(["x" * 2000] * 1000 if scheme == "sqlite" else [1] * 3000)
        (held,) = jobs.lease()
        while jobs.purge(State.READY):
            pass
        jobs.publish("kept")
        (sizes,) = pabal("compact", "--json").documents
        assert sizes["after"] < sizes["before"] / 2
        held.ack()
        assert [delivery.message.body for delivery in jobs.lease()] == ["kept"]
    assert pabal.ok("doctor").startswith("all is well")


def test_compact_of_a_file_store_has_nothing_to_do(tmp_path: Path) -> None:
    pabal = Pabal(f"file:{tmp_path / 'store'}", tmp_path)
    pabal.ok("publish", "jobs", "1")
    assert "by itself" in pabal("compact").err


def test_who_holds_a_lock_is_shown(any_pabal: Pabal) -> None:
    any_pabal.ok("publish", "jobs", "1")
    place = any_pabal.place
    lock = {"sqlite": "store.lock", "file": "store/jobs/.lock", "hybrid": "store/pabal.db.lock"}
    path = place / lock[any_pabal.url.partition(":")[0]]
    assert "locks" not in any_pabal.ok("doctor")
    with subprocess.Popen(["flock", str(path), "sh", "-c", "echo held; read end"], stdin=-1, stdout=-1) as holder:
        assert holder.stdin and holder.stdout and holder.stdout.readline() == b"held\n"
        shown = any_pabal.ok("doctor")
        holder.stdin.write(b"\n")
    assert f"process {holder.pid} (flock, runs since 2" in shown and f"holds {path}" in shown
