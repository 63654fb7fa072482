"""What is peculiar to the hybrid store: bodies are files, written before they are named and removed after."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pabal.errors import StoreFailed, TooLarge
from pabal.sql import writer
from pabal.store import Dead, Done, Failure, Settlement, State, Terms
from pabal.stores.hybrid import HybridStore
from pabal.stores.sqlite import tending
from pabal.stores.sqlite.bodies import BodyFolder, Document
from pabal.testing import ManualClock
from pabal.testing.store_place import FAILED, ack, bodies, draft, drain, publish, settle, take, take_one


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[HybridStore]:
    store = HybridStore(tmp_path / "root", clock=clock)
    yield store
    store.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "root" / "bodies" / "jobs"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_body_can_be_read_with_cat(store: HybridStore, folder: Path) -> None:
    publish(store, {"temp": 36.5}, id="m1")
    assert b'"payload":{"temp":36.5}' in (folder / "m1.json").read_bytes()


def test_ack_leaves_the_file_and_the_sweep_removes_it(
    store: HybridStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store, 1, id="m1")
    ack(store, take_one(store))
    assert names(folder) == ["m1.json"]
    there_when_synced: list[list[str]] = []
    monkeypatch.setattr(writer, "sync_data", lambda fd: there_when_synced.append(names(folder)))
    store.purge("jobs", State.DONE, age=3600)
    assert there_when_synced == [["m1.json"]]  # a power cut cannot bring back a message whose file is gone
    assert names(folder) == []
    assert store.counts("jobs")[State.DONE] == 1


def test_a_sweep_ends_when_its_time_is_over_and_the_next_goes_on(
    store: HybridStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tending, "_SWEEP_SECONDS", 0.0)
    store.publish([draft(number) for number in range(tending._SWEEP_SLICE + 1)])
    assert len(drain(store)) == tending._SWEEP_SLICE + 1
    store.purge("jobs", State.DONE, age=3600)
    assert len(names(folder)) == 1
    store.purge("jobs", State.DONE, age=3600)
    assert names(folder) == []


def test_a_kept_message_keeps_its_file_until_purged(store: HybridStore, folder: Path) -> None:
    publish(store, 1, id="m1")
    settle(store, take_one(store), Done(keep=True))
    store.purge("jobs", State.DONE, age=3600)
    assert names(folder) == ["m1.json"]
    assert store.purge("jobs", State.DONE) == 1
    assert names(folder) == []


def test_a_duplicate_leaves_no_second_file(store: HybridStore, folder: Path) -> None:
    publish(store, "first", id="m1")
    assert store.publish([draft("second", id="m1")])[0].duplicate
    assert store.publish([draft("third", id="m2", dedup_key="k"), draft("fourth", id="m3", dedup_key="k")])[1].duplicate
    assert names(folder) == ["m1.json", "m2.json"]
    assert drain(store) == ["first", "third"]


def test_an_id_used_again_before_the_sweep_gets_a_file_of_its_own(store: HybridStore, folder: Path) -> None:
    publish(store, "old", id="m1")
    ack(store, take_one(store))
    file = folder / "m1.json"
    kept = file.read_bytes()
    store._db.write(lambda tx: tx.run("delete from messages"), durable=True)
    publish(store, "new", id="m1")
    assert len(names(folder)) == 2
    store.purge("jobs", State.DONE)
    assert not file.exists() and kept
    assert drain(store) == ["new"]


def test_a_lost_settlement_leaves_no_file_of_its_follow_up(store: HybridStore, folder: Path) -> None:
    publish(store, 1, id="m1")
    lease = take_one(store)
    ack(store, lease)
    settle(store, lease, Dead(FAILED, then=(draft(2, id="m2"),)))
    assert names(folder) == ["m1.json"]


def test_a_missing_body_is_dead_and_all_else_is_served(store: HybridStore, folder: Path) -> None:
    publish(store, 1, id="m1")
    publish(store, 2, id="m2")
    (folder / "m1.json").unlink()
    assert bodies(take(store, 5)) == [2]
    entry = store.find("jobs", "m1")
    assert entry is not None and entry.state is State.DEAD
    assert entry.failure is not None and entry.failure.code == "MISSING_PAYLOAD"


def test_a_link_in_place_of_a_body_is_not_followed(store: HybridStore, folder: Path, tmp_path: Path) -> None:
    publish(store, 1, id="m1")
    (folder / "m1.json").rename(tmp_path / "elsewhere")
    (folder / "m1.json").symlink_to(tmp_path / "elsewhere")
    assert take(store) == []
    entry = store.find("jobs", "m1")
    assert entry is not None and entry.state is State.DEAD


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, int], None]:
    """Let the opening of one file fail."""
    usual = os.open

    def fail(bad: Path, number: int) -> None:
        def open_all_but_one(path: str, flags: int, *more: int) -> int:
            if os.fspath(path) == os.fspath(bad):
                raise OSError(number, os.strerror(number), bad)
            return usual(path, flags, *more)

        monkeypatch.setattr(os, "open", open_all_but_one)

    return fail


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENXIO])
def test_g10_a_body_that_may_not_be_read_is_set_aside_and_all_else_is_served(
    store: HybridStore, folder: Path, unreadable: Callable[[Path, int], None], number: int
) -> None:
    for name in ("a", "b", "c"):
        publish(store, name, id=name)
    unreadable(folder / "b.json", number)
    assert [finding.where for finding in store.check(repair=False)] == ["jobs/b"]
    assert bodies(take(store, 3)) == ["a", "c"]
    assert [entry.id for entry in store.browse("jobs", State.CORRUPT)] == ["b"]


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_g10_a_body_that_cannot_be_read_for_now_holds_up_nobody_and_comes_again(
    store: HybridStore,
    folder: Path,
    clock: ManualClock,
    unreadable: Callable[[Path, int], None],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    for name in ("a", "b", "c"):
        publish(store, name, id=name)
    unreadable(folder / "a.json", number)
    assert [finding.where for finding in store.check(repair=True)] == ["jobs/a"]
    with pytest.raises(StoreFailed, match="repeat"):
        store.lease("jobs", 1, 30.0)
    assert bodies(store.lease("jobs", 3, 30.0)) == ["b", "c"]
    clock.advance(31)
    assert bodies(store.expired("jobs", 3)) == ["b", "c"]
    monkeypatch.undo()
    clock.advance(31)
    assert "a" in bodies(store.expired("jobs", 3))


def test_more_bodies_than_files_may_be_open_are_published_at_once(tmp_path: Path) -> None:
    script = """
import resource, sys
import pabal
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
with pabal.connect(sys.argv[1]) as mq:
    assert len(mq.queue("jobs").publish_many(range(1000))) == 1000
    assert len(mq.queue("jobs").lease(1000)) == 1000
"""
    subprocess.run([sys.executable, "-c", script, f"hybrid:{tmp_path / 'many'}"], check=True)


def test_what_follows_from_one_leaves_no_file_when_what_follows_from_another_is_refused(
    store: HybridStore, folder: Path
) -> None:
    publish(store, 1, 2)
    first, second = take(store, 2)
    small, large = draft("small", queue="next"), draft("x" * 1000, queue="next", terms=Terms(max_bytes=500))
    with pytest.raises(TooLarge):
        store.settle([Settlement(first.receipt, Done(then=(small,))), Settlement(second.receipt, Done(then=(large,)))])
    assert names(folder.parent / "next") == []


def test_check_finds_missing_bodies_and_revives_nothing_dead(store: HybridStore, folder: Path) -> None:
    publish(store, 1, id="m1")
    publish(store, 2, id="m2")
    lease = take_one(store)
    store.settle([Settlement(lease.receipt, Dead(Failure("NACKED")))])
    for name in names(folder):
        (folder / name).unlink()
    (finding,) = store.check(repair=True)
    assert finding.where == "jobs/m2" and finding.repaired
    assert store.counts("jobs")[State.DEAD] == 2
    assert store.check(repair=True) == []


def test_check_removes_old_files_that_no_message_names(
    store: HybridStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store, 1, id="m1")
    BodyFolder(folder.parent).put([Document("jobs", "orphan", b"{}")])
    assert store.check(repair=True) == []  # it may belong to a publish under way
    later = time.time() + 120
    monkeypatch.setattr("pabal.stores.sqlite.check.time.time", lambda: later)
    assert [finding.repaired for finding in store.check(repair=False)] == [False]
    there_when_synced: list[list[str]] = []
    monkeypatch.setattr(writer, "sync_data", lambda fd: there_when_synced.append(names(folder)))
    (finding,) = store.check(repair=True)
    assert finding.where == "bodies/jobs/orphan.json" and finding.repaired
    assert there_when_synced[-1] == ["m1.json", "orphan.json"]  # on the disk too nobody names it, before it goes
    assert names(folder) == ["m1.json"]


def test_a_publish_that_slept_until_its_file_was_swept_is_refused(tmp_path: Path) -> None:
    folder = BodyFolder(tmp_path)
    places = folder.put([Document("jobs", "m1", b"{}")])
    folder.confirm(places)
    folder.drop(places)
    with pytest.raises(StoreFailed, match="repeat with the same id"):
        folder.confirm(places)


def test_follow_ups_have_files_too(store: HybridStore, folder: Path) -> None:
    publish(store, 1, id="m1")
    settle(store, take_one(store), Done(then=(draft(2, id="m2"),)))
    assert names(folder) == ["m1.json", "m2.json"]
    assert drain(store) == [2]
