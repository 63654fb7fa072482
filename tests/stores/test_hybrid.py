"""What is peculiar to the hybrid store: bodies are files, written before they are named and removed after."""

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pytest

from pabal.errors import StoreFailed, TooLarge
from pabal.sql import writer
from pabal.sql.connection import connect
from pabal.store import Dead, Done, Failure, Settlement, State, Terms
from pabal.stores.hybrid import HybridStore
from pabal.stores.sqlite import maintain
from pabal.stores.sqlite.bodies import BodyFolder, Document
from pabal.testing import ManualClock
from pabal.testing.store_place import FAILED, ack, bodies, draft, drain, publish, settle, take, take_one
from tests.sql.numbers import Interrupt, profiled


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


def test_a_damaged_name_among_the_orphaned_files_removes_no_body_of_a_waiting_message(
    store: HybridStore, folder: Path, tmp_path: Path
) -> None:
    publish(store, 2, id="m2")
    publish(store, 3, id="m3")
    ack(store, take_one(store))
    connection = connect(tmp_path / "root" / "pabal.db")
    connection.execute("update orphaned_files set name = 'jobs/m3.json'").fetchall()
    connection.close()
    store.purge("jobs", State.DONE, age=3600)
    assert "m3.json" in names(folder)
    assert drain(store) == [3]


def test_a_purge_removes_no_body_that_another_message_names(store: HybridStore, folder: Path, tmp_path: Path) -> None:
    publish(store, 2, id="m2", priority=9)
    publish(store, 3, id="m3")
    connection = connect(tmp_path / "root" / "pabal.db")
    connection.execute("update messages set document = 'jobs/m3.json' where id = 'm2'").fetchall()
    connection.close()
    assert bodies(take(store, 1)) == [3]  # m2 is set aside
    assert store.purge("jobs", State.CORRUPT) == 1
    assert names(folder) == ["m2.json", "m3.json"]


def test_a_sweep_ends_when_its_time_is_over_and_the_next_goes_on(
    store: HybridStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintain, "_SWEEP_SECONDS", 0.0)
    store.publish([draft(number) for number in range(maintain._SWEEP_SLICE + 1)])
    assert len(drain(store)) == maintain._SWEEP_SLICE + 1
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


@pytest.mark.parametrize("repair", [False, True])
def test_a_message_that_is_handled_during_a_check_is_no_damage(
    store: HybridStore, folder: Path, monkeypatch: pytest.MonkeyPatch, repair: bool
) -> None:
    publish(store, 1, id="a")
    publish(store, 2, id="b")
    get = BodyFolder.get

    def get_late(self: BodyFolder, place: bytes | str | None) -> bytes | None:
        monkeypatch.setattr(BodyFolder, "get", get)
        ack(store, take_one(store))
        (folder / "a.json").unlink()  # as the sweep does
        return get(self, place)

    monkeypatch.setattr(BodyFolder, "get", get_late)
    assert store.check(repair=repair) == []
    assert store.counts("jobs")[State.DONE] == 1


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


def test_g4_nothing_overtakes_a_member_of_its_group_that_cannot_be_read_for_now(
    store: HybridStore, folder: Path, unreadable: Callable[[Path, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, group in (("a", "g"), ("b", "g"), ("c", "g"), ("d", "h"), ("e", "")):
        publish(store, name, id=name, group=group)
    unreadable(folder / "b.json", errno.EIO)
    token = "t" * 16
    first = take(store, 9, token=token, successive=True)
    assert bodies(first) == ["a", "d", "e"]
    for lease in first:
        ack(store, lease)
    with pytest.raises(StoreFailed, match="repeat"):
        take(store, 9, token=token, successive=True)
    monkeypatch.undo()
    assert bodies(take(store, 9, token=token, successive=True)) == ["b", "c"]


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


@pytest.mark.parametrize("kind", ["sqlite", "hybrid", "file"])
def test_many_queues_leave_descriptors_for_bodies_and_watches(tmp_path: Path, kind: str) -> None:
    script = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
import pabal
with pabal.connect(sys.argv[1]) as mq:
    for number in range(40):
        mq.queue(f"q{number}").publish(number)
    for number in range(40):
        [delivery] = mq.queue(f"q{number}").lease(1, wait=1.0)
        delivery.ack()
    assert mq.queue("q0").lease(1, wait=0.1) == []
"""
    subprocess.run([sys.executable, "-c", script, f"{kind}:{tmp_path / 'many'}"], check=True)


def test_a_store_whose_process_runs_out_of_descriptors_gives_up_those_that_it_keeps(tmp_path: Path) -> None:
    script = """
import os, resource, sys
import pabal
with pabal.connect(sys.argv[1]) as mq:
    for number in range(12):
        mq.queue(f"q{number}").publish(number)
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))
    for number in range(24):
        mq.queue(f"q{number}").publish(number)
        assert mq.queue(f"q{number}").lease(1)
"""
    subprocess.run([sys.executable, "-c", script, f"hybrid:{tmp_path / 'many'}"], check=True)


def test_g10_a_body_that_another_program_made_huge_harms_no_other(store: HybridStore, folder: Path) -> None:
    publish(store, "a", id="a")
    publish(store, "b", id="b")
    os.truncate(folder / "a.json", 1 << 40)
    assert bodies(store.lease("jobs", 2, 30.0)) == ["b"]
    (entry,) = store.browse("jobs", State.CORRUPT)
    assert entry.id == "a" and "TooLarge" in str(entry.failure)


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


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every file be old enough to be a leftover."""
    later = time.time() + 120
    monkeypatch.setattr("pabal.stores.sqlite.check.time.time", lambda: later)


def test_check_sets_files_aside_that_no_message_names(
    store: HybridStore, folder: Path, request: pytest.FixtureRequest
) -> None:
    publish(store, 1, id="m1")
    BodyFolder(folder.parent).put([Document("jobs", "orphan", b"{}")])
    assert store.check(repair=True) == []  # it may belong to a publish under way
    request.getfixturevalue("later")
    assert [finding.repaired for finding in store.check(repair=False)] == [False]
    (finding,) = store.check(repair=True)
    assert finding.where == "bodies/jobs/orphan.json" and finding.repaired
    assert names(folder) == ["m1.json"]
    aside = folder.parent.with_name("bodies.orphaned") / "jobs"
    assert names(aside) == ["orphan.json", "orphan.json.reason"] and (aside / "orphan.json").read_bytes() == b"{}"
    assert "no message of" in (aside / "orphan.json.reason").read_text()
    assert "1 files" in store.facts()["orphaned"]


@pytest.mark.usefixtures("later")
def test_a_file_that_cannot_be_set_aside_is_not_reported_as_repaired(store: HybridStore, folder: Path) -> None:
    publish(store, 1, id="m1")
    BodyFolder(folder.parent).put([Document("jobs", "orphan", b"{}")])
    folder.parent.with_name("bodies.orphaned").write_text("in the way")
    (finding,) = store.check(repair=True)
    assert not finding.repaired and "failed" in finding.remedy
    assert names(folder) == ["m1.json", "orphan.json"]


def test_a_row_that_names_no_file_any_more_is_set_aside_once(tmp_path: Path) -> None:
    store = HybridStore(tmp_path / "root")
    publish(store, 1, id="m1")
    store.close()
    db = connect(tmp_path / "root" / "pabal.db")
    db.execute("update messages set document = 5, crc = 0").fetchall()
    db.close()
    store = HybridStore(tmp_path / "root")
    (finding,) = store.check(repair=True)
    assert finding.repaired and finding.remedy == "set it aside as corrupt"
    assert store.check(repair=False) == []
    store.close()


@pytest.mark.usefixtures("later")
def test_a_start_with_another_index_loses_no_message_of_the_right_one(tmp_path: Path, clock: ManualClock) -> None:
    root = tmp_path / "root"
    right = HybridStore(root, clock=clock)
    publish(right, "a", "b", "c")
    right.close()
    wrong = HybridStore(root, db=tmp_path / "other.db", clock=clock)
    assert [finding.repaired for finding in wrong.check(repair=True)] == [True] * 3
    wrong.close()
    right = HybridStore(root, clock=clock)
    ack(right, take_one(right))  # also without a check
    assert [finding.remedy for finding in right.check(repair=True)] == ["put it back"] * 2
    assert right.check(repair=True) == []
    assert drain(right) == ["b", "c"]
    right.purge("jobs", State.DONE)
    assert names(root / "bodies" / "jobs") == [] and names(root / "bodies.orphaned" / "jobs") == []
    right.close()


@pytest.mark.usefixtures("later")
def test_a_lost_index_is_made_again_from_the_files(tmp_path: Path, clock: ManualClock) -> None:
    root = tmp_path / "root"
    store = HybridStore(root, clock=clock)
    for number in range(5):
        publish(store, number, id=f"m{9 - number}", group="g", created_at=1e9 + number)
    publish(store, "other", queue="mail")
    (root / "bodies" / "jobs" / "half.json").write_text('{"messageId": "half", "pay')
    store.close()
    for path in root.glob("pabal.db*"):
        path.unlink() if path.is_file() else shutil.rmtree(path)

    store = HybridStore(root, clock=clock)
    findings = store.adopt()
    assert [finding.repaired for finding in findings].count(True) == 6
    (left,) = (finding for finding in findings if not finding.repaired)
    assert left.where.endswith("half.json") and "cannot be read" in left.problem
    assert drain(store) == list(range(5)) and drain(store, queue="mail") == ["other"]
    (left,) = store.adopt()
    assert left.where.endswith("half.json") and store.check(repair=False) == []
    store.close()


@pytest.mark.usefixtures("later")
def test_adopt_takes_in_nothing_twice_and_revives_what_died_for_want_of_its_file(
    store: HybridStore, folder: Path, tmp_path: Path
) -> None:
    publish(store, "done", id="m1")
    ack(store, take_one(store))
    publish(store, "dead", id="m2")
    (folder / "m2.json").rename(tmp_path / "m2.json")
    assert take(store) == [] and store.counts("jobs")[State.DEAD] == 1
    store.check(repair=True)
    (folder / "m1.json").write_bytes((tmp_path / "m2.json").read_bytes().replace(b"m2", b"m1"))
    (tmp_path / "m2.json").rename(folder / "m2.json")
    findings = store.adopt()
    assert sorted(finding.repaired for finding in findings) == [False, True]
    assert drain(store) == ["dead"]


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


def test_no_descriptor_is_left_open_where_a_signal_handler_raises(store: HybridStore) -> None:
    """At every moment at which Python lets a handler raise: when a function begins, and when one of C has ended."""
    publish(store, "first", id="first")
    seen = point = 0

    def handler(frame: FrameType, event: str, argument: object) -> None:
        nonlocal seen
        places = ("sqlite/bodies.py", "pabal/filesystem.py", "pabal/durable.py")
        if event in ("call", "c_return") and frame.f_code.co_filename.endswith(places):
            seen += 1
            if seen == point:
                sys.setprofile(None)
                raise Interrupt

    def use() -> None:
        store._bodies.get(store._bodies.put([Document("jobs", f"m{point}", b"x" * 1000)])[0])

    use()
    before = os.listdir("/proc/self/fd")
    while seen >= point:
        point, seen = point + 1, 0
        with suppress(Interrupt), profiled(handler):
            use()
        assert len(os.listdir("/proc/self/fd")) == len(before), point
    assert point > 20


def test_a_queue_that_is_deleted_leaves_no_bodies(store: HybridStore, folder: Path) -> None:
    publish(store, *range(300))
    ack(store, take_one(store))
    assert store.delete("jobs", force=True) == 299
    assert names(folder) == []


def test_two_that_write_the_same_id_to_a_new_queue_at_once_both_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made_by_both(path: Path) -> None:
        path.mkdir(parents=True)
        (path / "same.json").write_bytes(b"of the other")

    monkeypatch.setattr("pabal.stores.sqlite.bodies.make_dirs", made_by_both)
    folder = BodyFolder(tmp_path / "bodies")
    [place] = folder.put([Document("jobs", "same", b"mine")])
    assert folder.get(place) == b"mine" and folder.get("jobs/same.json") == b"of the other"
