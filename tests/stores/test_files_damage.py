"""The file store with damaged files of its own, or with files that a person renamed, moved or edited."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pabal import Policy
from pabal.cli.main import cli
from pabal.errors import InvalidPolicy, QueueDamaged, StoreRefused
from pabal.message import Message
from pabal.queues.queue import Queue
from pabal.store import Entry, Failure, Outcome, Published, State
from pabal.stores.files import FileStore
from pabal.stores.files import settle as settling
from pabal.stores.files.names import digest
from pabal.stores.files.settlement_folder import read_plan
from pabal.stores.layout import NativeLayout
from pabal.testing import ManualClock
from pabal.testing.store_place import (
    QUEUE,
    ack,
    bury,
    count,
    draft,
    drain,
    publish,
    state_of,
    take,
    take_one,
)


@pytest.fixture
def queue(root: Path) -> Path:
    return root / QUEUE


def all_well(store: FileStore) -> bool:
    return store.check(repair=False) == []


# Deduplication


@pytest.mark.parametrize("purged", [False, True])
def test_a_dedup_record_that_ends_later_than_any_window_counts_no_more(
    store: FileStore, queue: Path, clock: ManualClock, purged: bool
) -> None:
    key: dict[str, Any] = {"id": "m"} if purged else {"dedup_key": "k"}
    publish(store, "first", **key)
    ack(store, take_one(store))
    if purged:
        store.purge(QUEUE, State.DONE)
    (link,) = [path for path in (queue / "dedup").iterdir() if path.name.startswith("g" if purged else "k")]
    text = os.readlink(link)
    link.unlink()
    link.symlink_to(f"9{text[1:]}")
    (found,) = store.check(repair=False)
    assert found.where == str(link) and not found.ordinary
    clock.advance(30 * 86400)
    answers = store.publish([draft("second", **key)])
    assert not answers[0].duplicate and drain(store) == ["second"]
    assert store.check(repair=True) == [] or all_well(store)


def test_a_damaged_dedup_record_is_removed_by_a_repair(store: FileStore, queue: Path) -> None:
    publish(store, "first", dedup_key="k")
    (link,) = [path for path in (queue / "dedup").iterdir() if path.name.startswith("k")]
    link.unlink()
    link.symlink_to("rubbish")
    (found,) = store.check(repair=True)
    assert found.repaired and all_well(store) and drain(store) == ["first"]


# The order of groups


@pytest.mark.parametrize(
    "text", [b"1006606", b"ffffffffffffffff", b"zz", b"", b"\0" * 26, b"000fffffffffffff", b"\xff"]
)
def test_a_damaged_stamp_is_taken_from_the_names(
    store: FileStore, queue: Path, root: Path, clock: ManualClock, text: bytes
) -> None:
    publish(store, "first", id="first", group="g")
    whole = (queue / ".lock").read_bytes()
    (queue / ".lock").write_bytes(text + whole[len(text) :] if text else b"")
    clock.step_wall(-3600)  # the clock alone would put the next ones before the first
    with closing(FileStore(root, clock=clock)) as other:
        found = other.check(repair=False)
        assert not text or [finding.where for finding in found] == [str(queue / ".lock")]
        for number in range(3):
            publish(other, number, id=f"m{number}", group="g")
        assert drain(other) == ["first", 0, 1, 2] and all_well(other)


def test_every_bit_of_the_stamp_may_flip(store: FileStore, queue: Path) -> None:
    publish(store, "first", id="first", group="g")
    whole = (queue / ".lock").read_bytes()
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        (queue / ".lock").write_bytes(damaged)
        (finding,) = store.check(repair=bit % 2 == 0)
        assert finding.where == str(queue / ".lock") and finding.repaired is (bit % 2 == 0)
        publish(store, bit, group="g")
        assert all_well(store)
    assert drain(store) == ["first", *range(len(whole) * 8)]


def test_a_lock_file_larger_than_any_message_is_mended(store: FileStore, queue: Path) -> None:
    publish(store, 1)
    os.truncate(queue / ".lock", 1 << 33)
    (found,) = store.check(repair=False)
    assert found.where == str(queue / ".lock") and not found.repaired
    assert [finding.repaired for finding in store.check(repair=True)] == [True] and all_well(store)


def test_a_stamp_of_an_earlier_version_counts(store: FileStore, queue: Path, clock: ManualClock) -> None:
    publish(store, 1, group="g")
    drain(store)
    (queue / ".lock").write_bytes(b"%016x" % int((clock.now() + 3600) * 1e6))
    assert all_well(store)
    publish(store, 2, group="g")
    assert int((queue / ".lock").read_bytes()[:16], 16) == int((clock.now() + 3600) * 1e6) + 1


@pytest.mark.parametrize("year", [2112, 2200, 9000])
def test_a_clock_beyond_the_last_stamp_loses_nothing(store: FileStore, clock: ManualClock, year: int) -> None:
    publish(store, 0, group="g")
    clock.step_wall((year - 2025) * 366 * 86400.0)
    publish(store, 1, group="g", id="one")
    publish(store, 2, group="g")
    clock.step_wall(-(year - 2025) * 366 * 86400.0)
    publish(store, 3, group="g", id="three")
    assert drain(store) == [0, 1, 2, 3] and all_well(store)
    assert count(store, State.DONE) == 4


def test_a_name_with_a_stamp_that_cannot_be_does_not_stop_its_group(store: FileStore, queue: Path) -> None:
    publish(store, 1, 2, group="g")
    (first, second) = sorted(os.listdir(queue / "ready"))
    before, _, after = second.partition("~g")
    os.rename(
        queue / "ready" / second, queue / "ready" / f"{before}~g{after[:8]}.fffffffffffff~{after.partition('~')[2]}"
    )
    (queue / ".lock").write_bytes(b"")
    publish(store, 3, group="g")
    assert drain(store) == [1, 3, 2]


# Files that a person renamed, moved or edited

LAYOUTS = {"native": NativeLayout(), "plain": NativeLayout(native=False)}


@pytest.fixture(params=list(LAYOUTS))
def any_store(request: pytest.FixtureRequest, root: Path, clock: ManualClock) -> Iterator[FileStore]:
    with closing(FileStore(root, clock=clock, layout=LAYOUTS[request.param])) as store:
        yield store


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("options", [{"id": "m"}, {"dedup_key": "k"}, {"id": "m", "dedup_key": "k", "group": "g"}])
def test_a_renamed_file_is_no_duplicate_of_itself(
    any_store: FileStore, queue: Path, options: dict[str, Any], known: bool
) -> None:
    (id,) = publish(any_store, "body", **options)
    if known:
        assert count(any_store, State.READY) == 1
    (name,) = os.listdir(queue / "ready")
    os.rename(queue / "ready" / name, queue / "ready" / "again.json")
    assert count(any_store, State.READY) == 1
    assert any_store.publish([draft("later", **options)]) == [Published(id, duplicate=True)]
    (lease,) = take(any_store)
    assert lease.message.body == "body" and ack(any_store, lease) is Outcome.APPLIED
    assert any_store.publish([draft("later", **options)]) == [Published(id, duplicate=True)]
    assert drain(any_store) == [] and count(any_store, State.DONE) == 1


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("options", [{}, {"id": "m"}, {"id": "m", "dedup_key": "k"}])
def test_a_renamed_file_keeps_its_unique_key(
    any_store: FileStore, queue: Path, options: dict[str, Any], edited: bool
) -> None:
    (id,) = publish(any_store, "body", unique="u", **options)
    (path,) = (queue / "ready").iterdir()
    path = path.rename(queue / "ready" / "again.json")
    if edited:
        path.write_text(json.dumps({**json.loads(path.read_bytes()), "payload": "now"}))
    assert count(any_store, State.READY) == 1
    assert any_store.publish([draft("later", unique="u")]) == [Published(id, duplicate=True)]
    assert drain(any_store) == ["now" if edited else "body"]
    assert any_store.publish([draft("later", unique="u")])[0].id != id


@pytest.mark.parametrize("name", ["again.json", ""])
@pytest.mark.parametrize("options", [{}, {"id": "m", "group": "g"}, {"dedup_key": "k"}])
def test_a_dead_message_may_be_moved_back_by_hand(
    any_store: FileStore, queue: Path, options: dict[str, str], name: str
) -> None:
    publish(any_store, "body", **options)
    bury(any_store, take_one(any_store))
    (dead,) = (path for path in (queue / "dead").iterdir() if path.suffix != ".why")
    os.rename(dead, queue / "ready" / (name or dead.name))
    assert drain(any_store) == ["body"] and count(any_store, State.DEAD) == 0


@pytest.mark.parametrize("more", [{}, {"messageId": "other"}, {"deduplicationKey": "other"}])
def test_an_edited_file_is_taken_as_it_is_now(any_store: FileStore, queue: Path, more: dict[str, str]) -> None:
    publish(any_store, "before", id="m", dedup_key="k")
    (path,) = (queue / "ready").iterdir()
    (queue / "draft").write_text(json.dumps({**json.loads(path.read_bytes()), "payload": "now", **more}))
    path.unlink()
    os.rename(queue / "draft", queue / "ready" / "again.json")
    assert drain(any_store) == ["now"]


def test_a_copy_is_still_a_duplicate(any_store: FileStore, queue: Path) -> None:
    publish(any_store, "body", id="m")
    (path,) = (queue / "ready").iterdir()
    for name in ("copy.json", "copy2.json"):
        shutil.copyfile(path, queue / name)
        os.rename(queue / name, queue / "ready" / name)
    assert drain(any_store) == ["body"] and count(any_store, State.DONE) == 3


def test_a_copy_of_what_was_purged_is_still_a_duplicate(any_store: FileStore, queue: Path) -> None:
    publish(any_store, "body", id="m", dedup_key="k")
    (path,) = (queue / "ready").iterdir()
    shutil.copyfile(path, queue / "copy.json")
    assert drain(any_store) == ["body"] and any_store.purge(QUEUE, State.DONE) == 1
    os.rename(queue / "copy.json", queue / "ready" / "copy.json")
    assert drain(any_store) == []


def test_of_two_copies_of_a_renamed_file_one_is_delivered(any_store: FileStore, queue: Path) -> None:
    publish(any_store, "body", id="m")
    (path,) = (queue / "ready").iterdir()
    shutil.copyfile(path, queue / "copy.json")
    os.rename(path, queue / "ready" / "one.json")
    os.rename(queue / "copy.json", queue / "ready" / "two.json")
    assert drain(any_store) == ["body"]


def test_many_renamed_files_are_compared_with_all_others_once(
    any_store: FileStore, queue: Path, listed: list[str]
) -> None:
    for number in range(300):
        publish(any_store, number, id=f"m{number}")
    for number, name in enumerate(os.listdir(queue / "ready")):
        os.rename(queue / "ready" / name, queue / "ready" / f"again{number}.json")
    listed.clear()
    assert sorted(drain(any_store)) == list(range(300))
    assert listed.count(str(queue / "dead")) <= 2


# Settlements with follow-ups


@pytest.fixture
def committed(store: FileStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a settlement that is committed, and was not finished by a process that died."""
    publish(store, "in", id="m")
    lease = take_one(store)
    with monkeypatch.context() as patch:
        patch.setattr(settling, "complete", lambda *_: None)
        patch.setattr(settling, "_tidy", lambda *_: None)
        ack(store, lease, draft("out", queue="next", id="m.out"), draft("here"), draft("later", delay=60.0))
    (folder,) = (root / ".settling").iterdir()
    return folder


def finished(store: FileStore, clock: ManualClock) -> None:
    clock.advance(600)
    assert (drain(store, "next"), sorted(drain(store))) == (["out"], ["here", "later"])
    assert count(store, State.DELAYED) == 0


def test_half_a_plan_is_enough(store: FileStore, root: Path, committed: Path, clock: ManualClock) -> None:
    data = (committed / "plan.json").read_bytes()
    (committed / "plan.json").write_bytes(bytes(len(data) // 2) + data[len(data) // 2 :])
    with closing(FileStore(root, clock=clock)) as other:
        assert state_of(other, "m") is State.DONE
        finished(other, clock)


@pytest.mark.parametrize("damage", [bytes, lambda data: b"", lambda data: data.replace(b"state", b"stale"), None])
def test_without_its_plan_the_follow_ups_are_published_and_the_input_is_set_aside(
    store: FileStore, root: Path, committed: Path, clock: ManualClock, damage: Callable[[bytes], bytes] | None
) -> None:
    path = committed / "plan.json"
    if damage is None:
        path.unlink()
    else:
        data = path.read_bytes()
        path.write_bytes(damage(data) if damage is not bytes else bytes(len(data)))
    with closing(FileStore(root, clock=clock)) as other:
        finished(other, clock)
        entry = other.find(QUEUE, "m")
        assert entry is not None and entry.state is State.CORRUPT and b'"in"' in entry.data
        assert entry.failure is not None and entry.failure.code == "DamagedPlan"
        assert os.listdir(root / ".settling") == [] and all_well(other)
        os.rename(root / QUEUE / "corrupt" / "m", root / QUEUE / "ready" / "m.json")
        assert drain(other) == ["in"]


@pytest.mark.parametrize("kept", [[], ["plan.json"]])
def test_a_folder_in_the_place_of_a_plan_is_set_aside_with_what_it_holds(
    store: FileStore, root: Path, committed: Path, clock: ManualClock, kept: list[str]
) -> None:
    for name in ("plan.json", "why"):
        (committed / name).unlink(missing_ok=True)
        (committed / name).mkdir()
        for file in kept:
            (committed / name / file).write_text("precious")
    with closing(FileStore(root, clock=clock)) as other:
        finished(other, clock)
        assert other.find(QUEUE, "m") is not None
        assert os.listdir(root / ".settling") == [] and all_well(other)
        set_aside = [path for path in (root / QUEUE / "corrupt").iterdir() if path.is_dir()]
        assert [os.listdir(path) for path in set_aside] == [kept, kept]


def test_a_folder_in_the_place_of_a_plan_that_was_left_is_set_aside_by_a_repair(
    store: FileStore, root: Path, clock: ManualClock
) -> None:
    publish(store, "in", id="m")
    for name in (f"m~token~tag~{digest(QUEUE)}", "nobodys"):
        left = root / ".settling" / name
        (left / "plan.json").mkdir(parents=True)
        os.utime(left, (clock.now(), clock.now()))
    clock.advance(600)
    assert len(store.check(repair=False)) == 2
    assert [finding.repaired for finding in store.check(repair=True)] == [True, False]
    (found,) = store.check(repair=True)
    assert found.where.endswith("nobodys") and not found.repaired


def test_a_folder_in_the_place_of_a_reason_that_was_left_is_set_aside_by_a_repair(
    store: FileStore, root: Path, committed: Path, clock: ManualClock
) -> None:
    (committed / "why").mkdir()
    (committed / "input").unlink()
    os.utime(committed, (clock.now(), clock.now()))
    clock.advance(600)
    store.check(repair=True)
    assert os.listdir(root / ".settling") == [] and all_well(store)
    assert [path.is_dir() for path in (root / QUEUE / "corrupt").glob("why~??*[!y]")] == [True]


def test_a_settlement_that_is_committed_while_another_looks_for_its_plan_is_not_damaged(
    store: FileStore, root: Path, committed: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("plan.json", "input"):
        os.rename(committed / name, tmp_path / name)
    os.utime(committed, (clock.now(), clock.now()))

    def commit() -> None:
        for path in (tmp_path / "plan.json", tmp_path / "input"):
            if path.exists():
                os.rename(path, committed / path.name)

    def look_too_early(folder: str) -> dict[str, Any] | None:
        found = read_plan(folder)
        commit()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(settling, "read_plan", look_too_early)
        FileStore(root, clock=clock).close()
    commit()
    with closing(FileStore(root, clock=clock)) as other:
        assert state_of(other, "m") is State.DONE
        finished(other, clock)


def test_an_input_by_another_name_is_found_again(
    store: FileStore, root: Path, committed: Path, clock: ManualClock
) -> None:
    os.rename(committed / "input", committed / "inpux")
    os.utime(committed, (clock.now(), clock.now()))
    clock.advance(600)
    with closing(FileStore(root, clock=clock)) as other:
        assert state_of(other, "m") is State.DONE
        finished(other, clock)


def test_a_follow_up_by_another_name_is_found_again(
    store: FileStore, root: Path, committed: Path, clock: ManualClock
) -> None:
    (path,) = committed.glob("0.*")
    os.rename(path, committed / "x")
    with closing(FileStore(root, clock=clock)) as other:
        assert state_of(other, "m") is State.DONE
        finished(other, clock)


def test_a_file_that_no_plan_explains_is_set_aside(
    store: FileStore, root: Path, committed: Path, clock: ManualClock
) -> None:
    (committed / "x").write_text('{"payload": "precious"}')
    with closing(FileStore(root, clock=clock)) as other:
        finished(other, clock)
        (entry,) = other.browse(QUEUE, State.CORRUPT)
        assert b"precious" in entry.data and os.listdir(root / ".settling") == []


def test_a_folder_that_says_nothing_at_all_is_found_by_a_check(
    store: FileStore, root: Path, committed: Path, clock: ManualClock
) -> None:
    (committed / "plan.json").unlink()
    os.rename(committed, root / ".settling" / "x")
    (root / ".settling" / "file").write_text("")
    with closing(FileStore(root, clock=clock)) as other:
        finished(other, clock)
        found = other.check(repair=True)
        assert [Path(finding.where).name for finding in found] == ["file", "x"]
        assert not any(finding.repaired for finding in found) and (root / ".settling" / "x" / "input").exists()


# Names in the other folders


def test_a_renamed_file_in_flight_comes_back(store: FileStore, queue: Path) -> None:
    publish(store, "a", "b", id="")
    take(store, 2)
    one, two = sorted(os.listdir(queue / "inflight"))
    os.rename(queue / "inflight" / one, queue / "inflight" / "again.json")
    os.rename(queue / "inflight" / two, queue / "inflight" / f"{two.partition('~a')[0]}.json")
    assert len(store.check(repair=False)) == 2
    assert store.expired(QUEUE, 10) == [] and sorted(drain(store)) == ["a", "b"] and all_well(store)


@pytest.mark.parametrize("name", ["again.json", "100-123-x~"])
def test_a_renamed_dead_message_is_found_by_a_check(store: FileStore, queue: Path, name: str) -> None:
    publish(store, "body", id="m")
    bury(store, take_one(store))
    (dead,) = (path for path in (queue / "dead").iterdir() if path.suffix != ".why")
    os.rename(dead, queue / "dead" / name)
    (finding,) = store.check(repair=True)
    assert finding.where == str(queue / "dead" / name) and finding.repaired
    assert state_of(store, "m") is State.DEAD and store.revive(QUEUE, ["m"]) == ["m"] and drain(store) == ["body"]


# Settings, format and reasons


@pytest.mark.parametrize("text", ["", "{", "[]", "\0" * 40, '{"visibilityTimeoutSec": -1}', '{"retry": 5}'])
def test_a_policy_that_cannot_be_read_harms_only_its_queue(
    store: FileStore, root: Path, queue: Path, text: str
) -> None:
    for name in (QUEUE, "other"):
        store.configure(name, {})
        publish(store, "body", queue=name)
    (queue / "settings.json").write_text(text)
    bad, good = Queue(QUEUE, store), Queue("other", store)
    for call in (lambda: bad.policy, lambda: bad.publish(1), lambda: bad.lease()):
        with pytest.raises(InvalidPolicy, match=f"queue {QUEUE} has a policy that cannot be read"):
            call()
    assert [delivery.message.body for delivery in good.lease()] == ["body"]
    assert store.counts(QUEUE)[State.READY] == 1
    status = CliRunner().invoke(cli, ["--url", f"file:{root}", "status"])
    assert status.exit_code == 0 and "cannot be read" in status.output and "other" in status.output
    (finding,) = store.check(repair=False)
    assert finding.where == str(queue / "settings.json") and not finding.repaired
    (finding,) = store.check(repair=True)
    assert finding.repaired and all_well(store)
    (aside,) = queue.glob("settings.json.*")
    assert aside.read_text() == text
    assert [delivery.message.body for delivery in Queue(QUEUE, store).lease()] == ["body"]


def test_a_policy_that_cannot_be_read_is_replaced_where_it_is_known_from_elsewhere(
    store: FileStore, queue: Path
) -> None:
    store.configure(QUEUE, {})
    (queue / "settings.json").write_text("{")
    Queue(QUEUE, store).ensure_policy(Policy(visibility=7.0))
    assert Queue(QUEUE, store).policy.visibility == 7.0 and all_well(store)


@pytest.mark.parametrize(
    "damage", [lambda t: b"", lambda t: t.replace(b"1", b"3", 1), lambda t: t.replace(b"for", b"fxr")]
)
def test_a_damaged_format_does_not_close_the_store(
    store: FileStore, root: Path, clock: ManualClock, damage: Callable[[bytes], bytes]
) -> None:
    publish(store, "body")
    path = root / "pabal.json"
    path.write_bytes(damage(path.read_bytes()))
    with closing(FileStore(root, clock=clock)) as other:
        assert drain(other) == ["body"]
        assert [finding.where for finding in other.check(repair=False)] == [str(path)]
        assert [finding.repaired for finding in other.check(repair=True)] == [True] and all_well(other)


def test_the_format_file_of_another_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pabal.json").write_text("{")
    with pytest.raises(StoreRefused, match="is this the root of a file store"):
        FileStore(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"code": 5}', '{"code": "X", "at": "now"}', "\0\0", "\udcff"])
def test_a_damaged_reason_harms_only_its_message(store: FileStore, queue: Path, text: str) -> None:
    publish(store, 1, 2)
    for lease in take(store, 2):
        bury(store, lease)
    path = next((queue / "dead").glob("*.why"))
    path.write_bytes(os.fsencode(text))
    one, two = store.browse(QUEUE, State.DEAD)
    assert [one.failure is None, two.failure is None].count(True) == 1
    (finding,) = store.check(repair=True)
    assert finding.where == str(path) and finding.repaired and all_well(store)
    assert len(store.browse(QUEUE, State.CORRUPT)) == 1 and len(store.browse(QUEUE, State.DEAD)) == 2


def test_a_reason_under_another_name_is_no_message(store: FileStore, queue: Path) -> None:
    publish(store, 1)
    bury(store, take(store)[0])
    path = next((queue / "dead").glob("*.why"))
    path.rename(path.with_name("again.json"))
    (finding,) = store.check(repair=True)
    assert finding.repaired and all_well(store)
    assert [entry.message and entry.message.body for entry in store.browse(QUEUE, State.DEAD)] == [1]
    assert len(store.browse(QUEUE, State.CORRUPT)) == 1


@pytest.mark.parametrize("folder", ["ready", "inflight", "dead"])
def test_a_name_that_is_not_utf_8_harms_only_its_message(
    store: FileStore, root: Path, queue: Path, folder: str
) -> None:
    publish(store, 1, 2)
    for lease in take(store, 2) if folder != "ready" else []:
        if folder == "dead":
            bury(store, lease)
    path = next(path for path in (queue / folder).iterdir() if path.suffix == ".json")
    os.rename(path, os.fsencode(path).replace(b"-01", b"-\xff1"))
    for command in (["status"], ["peek", QUEUE], ["list-dlq", QUEUE], ["doctor"], ["doctor", "--repair"], ["doctor"]):
        found = CliRunner().invoke(cli, ["--url", f"file:{root}", *command])
        assert found.exit_code in (0, 1) and (found.exception is None or isinstance(found.exception, SystemExit))
    assert found.output.startswith("all is well")


def test_a_corrupt_file_is_as_old_as_its_reason(store: FileStore, queue: Path, clock: ManualClock) -> None:
    publish(store, 1)
    (queue / "ready" / "bad.json").write_text("{no")
    os.utime(queue / "ready" / "bad.json", (1, 1))
    take(store)
    assert count(store, State.CORRUPT) == 1
    assert store.oldest(QUEUE, State.CORRUPT) == pytest.approx(clock.now(), abs=1)


# Something else where a queue keeps its folders


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("how", ["file", "link", "ready"])
def test_a_settlement_for_a_queue_that_is_no_folder_keeps_nothing_else_from_working(
    root: Path, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*args: object) -> None:
        raise _Killed

    with closing(FileStore(root)) as store:
        jobs = Queue(QUEUE, store)
        jobs.publish("in")
        Queue("next", store).publish("before")
        Queue("other", store).publish("other")
        (delivery,) = jobs.lease()
        with monkeypatch.context() as patch, pytest.raises(_Killed):
            patch.setattr(settling, "complete", killed)
            delivery.ack(then=[Queue("next", store).draft("out")])
    place = root / "next" / "ready" if how == "ready" else root / "next"
    place.rename(tmp_path / "away")
    if how == "link":
        place.symlink_to(tmp_path / "away")
    else:
        place.write_text("in the way")
    with closing(FileStore(root)) as store:
        assert Queue("other", store).lease()[0].body == "other"
        found = [each for each in store.check(repair=False) if "cannot be finished" in each.problem]
        assert len(found) == 1 and not found[0].ordinary
    place.unlink()
    (tmp_path / "away").rename(place)
    with closing(FileStore(root)) as store:
        assert {each.body for each in Queue("next", store).lease(5)} == {"before", "out"}
        assert count(store, State.DONE) == 1


@pytest.mark.parametrize("part", ["ready", "dedup", "tmp", "dead", ".lock", "a FIFO"])
def test_a_queue_with_something_else_in_place_of_a_part_is_the_only_one_that_suffers(root: Path, part: str) -> None:
    with closing(FileStore(root)) as store:
        Queue("bad", store).publish("bad")
        Queue("good", store).publish("good")
    place = root / "bad" / (part if part != "a FIFO" else ".lock")
    if place.name == ".lock":
        place.unlink()
        os.mkfifo(place) if part == "a FIFO" else place.mkdir()
    else:
        shutil.rmtree(place)
        place.write_text("in the way")
    run = CliRunner()
    for command in ("status", "status --json", "metrics", "queues"):
        ran = run.invoke(cli, ["--url", f"file:{root}", *command.split()])
        assert ran.exit_code == 0 and "good" in ran.output, ran.output
    with closing(FileStore(root)) as store:
        with suppress(QueueDamaged):
            Queue("bad", store).lease()
        assert [each.body for each in Queue("good", store).lease()] == ["good"]
        found = [each for each in store.check(repair=False) if not each.ordinary]
        assert [each.where for each in found] == [str(place)]
        store.check(repair=True)
        assert all_well(store)
        Queue("bad", store).publish("again")
        assert "again" in [each.body for each in Queue("bad", store).lease(5)]


@pytest.mark.parametrize("made", [os.mkfifo, os.mkdir])
def test_no_reader_waits_for_something_else_in_place_of_the_reason_of_a_corrupt_file(
    store: FileStore, queue: Path, made: Callable[[Path], None]
) -> None:
    store.configure(QUEUE, {})
    (queue / "corrupt" / "m.json").write_text("damaged")
    made(queue / "corrupt" / "m.json.why")
    (entry,) = store.browse(QUEUE, State.CORRUPT)
    assert entry.data == b"damaged" and entry.failure is not None


def _link(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("made", [os.mkfifo, os.mkdir, _link])
@pytest.mark.parametrize(
    "mark", [".look-done", ".look-corrupt", "dedup/.done", "dedup/.swept", ".deleted", ".carrying"]
)
def test_nobody_waits_for_something_else_in_place_of_a_mark(
    store: FileStore, queue: Path, clock: ManualClock, mark: str, made: Callable[[Path], None]
) -> None:
    publish(store, 1, 2)
    ack(store, take_one(store))
    made(queue / mark)
    clock.advance(60)
    with ThreadPoolExecutor(1) as pool:
        try:
            tidied = pool.submit(_tidy_up, store, clock)
            assert tidied.result(timeout=5) == 1
        finally:
            with suppress(OSError):
                os.close(os.open(queue / mark, os.O_RDWR))  # ends the wait of a writer
    assert drain(store) == [2]
    found = store.check(repair=True)
    assert [(each.where, each.repaired) for each in found if not each.ordinary] in ([(str(queue / mark), True)], [])
    assert all_well(store) and not (queue / mark).is_symlink() and not (queue / mark).is_fifo()


def _tidy_up(store: FileStore, clock: ManualClock) -> int:
    """Do what reads and writes the marks of a queue; return how many settled messages were removed."""
    store.expired(QUEUE, 10)
    removed = 0
    for _ in range(3):
        removed += store.trim(QUEUE, State.DONE, age=10) + store.trim(QUEUE, State.CORRUPT, age=10)
        clock.advance(3600)
    return removed + store.purge(QUEUE, State.DONE)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        folder = os.open(path.parent, os.O_PATH)
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")  # the path of a socket has to be short
        os.close(folder)


@pytest.mark.parametrize("made", [os.mkfifo, os.mkdir, _link, _socket])
def test_messages_are_carried_without_a_wait_for_something_else_in_place_of_the_mark(
    store: FileStore, queue: Path, made: Callable[[Path], None]
) -> None:
    publish(store, 1)
    made(queue / ".carrying")
    entries = [Entry(QUEUE, id, State.DEAD, message=Message(id, 1), failure=Failure("NO")) for id in ("c1", "c2")]

    def carry() -> list[str]:
        return [id for entry in entries for id in store.carry(QUEUE, [entry], window=0.0)]

    with ThreadPoolExecutor(1) as pool:
        try:
            with pytest.raises(QueueDamaged, match=r"\.carrying.*doctor --repair"):
                pool.submit(carry).result(timeout=5)
        finally:
            with suppress(OSError):
                os.close(os.open(queue / ".carrying", os.O_RDWR))  # ends the wait of a writer
    store.check(repair=True)
    carry()
    assert all_well(store) and count(store, State.DEAD) == 2


@pytest.mark.parametrize("made", [os.mkfifo, os.mkdir, _link])
def test_a_queue_is_deleted_whatever_is_in_place_of_its_mark(
    store: FileStore, queue: Path, made: Callable[[Path], None]
) -> None:
    publish(store, 1)
    made(queue / ".deleted")
    with ThreadPoolExecutor(1) as pool:
        try:
            assert pool.submit(store.delete, QUEUE, force=True).result(timeout=5) == 1
        finally:
            with suppress(OSError):
                os.close(os.open(queue / ".deleted", os.O_RDWR))
    assert store.queues() == []
