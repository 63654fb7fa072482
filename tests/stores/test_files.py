"""The file store: what is peculiar to files. Names on disk, foreign and unsafe files, recovery, full disks."""

import errno
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pabal import durable, filesystem
from pabal.clock import iso_stamp
from pabal.codecs.json import JsonCodec
from pabal.errors import QueueFull, StoreClosed, StoreError, StoreFailed, StoreFull, StoreRefused, Uncertain
from pabal.message import Message
from pabal.policy.policy import LARGEST_MAX_BYTES
from pabal.store import Done, Draft, Outcome, Published, Retry, Settlement, State, Terms
from pabal.stores.files import FileStore, foreign, index, read
from pabal.stores.files import lease as leasing
from pabal.stores.files import publish as publishing
from pabal.stores.files import settle as settling
from pabal.stores.files.lease import JUDGING_SECONDS
from pabal.stores.layout import NativeLayout
from pabal.testing import ManualClock
from pabal.testing.store_place import (
    FAILED,
    QUEUE,
    Child,
    ack,
    bodies,
    bury,
    count,
    draft,
    drain,
    in_threads,
    publish,
    retry,
    settle,
    state_of,
    take,
    take_one,
)


@pytest.fixture
def queue(store: FileStore, root: Path) -> Path:
    """The directory of a queue that exists and is empty."""
    store.configure(QUEUE, {})
    return root / QUEUE


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def move_in(queue: Path, name: str, text: str, *, age: float = 0.0, clock: ManualClock | None = None) -> None:
    """Publish as another program does: write elsewhere on the same file system, move in."""
    draft = queue.parent.parent / "draft"
    draft.write_text(text)
    if clock is not None:
        os.utime(draft, (clock.now() - age, clock.now() - age))
    os.rename(draft, queue / "ready" / name)


# Names and places


def test_the_state_is_the_directory_and_a_lease_rewrites_nothing(store: FileStore, queue: Path) -> None:
    publish(store, {"a": 1}, id="m-1", priority=7)
    (name,) = names(queue / "ready")
    assert name.startswith("093-") and "-m-1~c" in name and name.endswith(".json")
    document = (queue / "ready" / name).read_bytes()
    assert json.loads(document)["payload"] == {"a": 1}
    inode = (queue / "ready" / name).stat().st_ino
    lease = take_one(store)
    (held,) = names(queue / "inflight")
    assert held.startswith(name.removesuffix(".json") + "~a1~l" + lease.receipt.token)
    ack(store, lease)
    (done,) = (queue / "done").iterdir()
    assert done.read_bytes() == document and done.stat().st_ino == inode
    assert names(queue / "ready") == names(queue / "inflight") == names(queue / "tmp") == []


def test_a_process_that_lists_the_names_has_the_order_of_one_that_saw_them_come(root: Path, clock: ManualClock) -> None:
    ids = ["a-b", "a", "a.c", "b", "A", "a-b-c"]  # names of files sort otherwise: "~" follows an id
    with closing(FileStore(root, clock=clock)) as first:
        assert take(first, 1) == []  # it follows the directory from now on
        for place, id in enumerate(ids):
            publish(first, place, id=id)
        publish(first, "urgent", id="z", priority=1)
        publish(first, "mine", id="a-a", target="me")
        settle(first, take_one(first), Retry())  # a name with the marks of an attempt
        with closing(FileStore(root, clock=clock)) as second:
            found = [lease.receipt.id for lease in second.lease(QUEUE, 20, 60.0, consumer="me")]
    assert found == ["z", *sorted([*ids, "a-a"])]


def test_the_reason_of_a_death_stands_beside_it(store: FileStore, queue: Path) -> None:
    publish(store, 1)
    bury(store, take_one(store))
    message, reason = names(queue / "dead")
    assert reason == f"{message}.why"
    assert json.loads((queue / "dead" / reason).read_bytes())["reason"] == FAILED.reason


def test_nobody_else_may_look_inside(store: FileStore, root: Path) -> None:
    publish(store, 1)
    for path in root.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_newer_format_is_refused_by_name(root: Path) -> None:
    FileStore(root).close()
    (root / "pabal.json").write_text('{"format": 2}')
    with pytest.raises(StoreRefused, match="format 2.*format 1"):
        FileStore(root)


@pytest.mark.parametrize("state", [state for state in State if state is not State.DONE])
def test_a_queue_is_there_while_one_of_its_folders_is(store: FileStore, queue: Path, state: State) -> None:
    """Programs that copy trees may leave out empty folders: no message may vanish with them."""
    publish(store, 1)
    if state is State.DEAD:
        bury(store, take_one(store))
    elif state is State.DELAYED:
        publish(store, 2, delay=60)
    elif state is State.INFLIGHT:
        take_one(store)
    elif state is State.CORRUPT:
        (queue / "corrupt" / "damaged.json").write_bytes(b"{")
    root = queue.parent
    store.close()
    for folder in [path for path in queue.iterdir() if path.is_dir() and path.name != state]:
        shutil.rmtree(folder)
    with closing(FileStore(root)) as again:
        assert again.queues() == [QUEUE]
        assert [entry.state for entry in again.browse(QUEUE, state)] == [state]
        assert [finding for finding in again.check(repair=False) if not finding.ordinary] == []
        publish(again, 3)


def test_settings_are_a_document_for_people(store: FileStore, queue: Path) -> None:
    store.configure(QUEUE, {"paused": True})
    assert (queue / "settings.json").read_text() == '{\n  "paused": true\n}\n'


# Foreign files


@pytest.mark.parametrize(
    "name", ["task-1.json", "with space.json", "new\nline.json", "no-extension", "a~b.json", "é.json"]
)
def test_any_file_name_is_taken_in(store: FileStore, queue: Path, name: str) -> None:
    assert take(store) == []
    move_in(queue, name, '{"payload": "hello"}')
    lease = take_one(store)
    assert lease.message.body == "hello" and lease.message.id == lease.receipt.id
    assert ack(store, lease) is Outcome.APPLIED
    assert state_of(store, lease.receipt.id) is State.DONE


def test_a_foreign_file_keeps_its_id_and_its_bytes(store: FileStore, queue: Path) -> None:
    text = '{ "messageId": "evt:1",  "payload": {"b": 2}, "attributes": {"priority": "high"} }'
    move_in(queue, "whatever.json", text)
    publish(store, "normal")
    assert store.counts(QUEUE)[State.READY] == 2
    (name,) = [name for name in names(queue / "ready") if "evt:1" in name]
    assert name.startswith("094-") and "~f" in name
    lease = take_one(store)
    assert (lease.receipt.id, lease.message.id, lease.message.priority) == ("evt:1", "evt:1", 6)
    (held,) = (queue / "inflight").iterdir()
    assert held.read_text() == text


def test_foreign_files_are_flushed_together_and_those_that_changed_since_once_more(
    store: FileStore, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(4):
        move_in(queue, f"{n}.json", f'{{"payload": {n}}}')
    flushed: list[str] = []
    sync, sync_all = durable.sync, durable.sync_all

    def count(fd: int) -> None:
        flushed.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        sync(fd)

    def then_change(fds: list[int]) -> None:
        sync_all(fds)
        move_in(queue, "2.json", '{"payload": "another"}')

    monkeypatch.setattr(durable, "sync", count)
    monkeypatch.setattr(durable, "sync_all", then_change)
    assert {lease.message.body for lease in take(store, 10)} == {0, 1, "another", 3}
    assert [flushed.count(f"{n}.json") for n in range(4)] == [1, 1, 2, 1]


def test_hidden_and_unfinished_names_are_left_alone(store: FileStore, queue: Path) -> None:
    for name in (".hidden", "half.json.tmp"):
        move_in(queue, name, '{"payload": 1}')
    assert take(store) == [] and sum(store.counts(QUEUE).values()) == 0
    assert names(queue / "ready") == [".hidden", "half.json.tmp"]


def test_a_file_without_an_id_may_come_twice_by_the_same_name(store: FileStore, queue: Path) -> None:
    for n in (1, 2):
        move_in(queue, "report.json", f'{{"payload": {n}}}')
        assert drain(store) == [n]
    assert store.find(QUEUE, "report") is not None and count(store, State.DONE) == 2


@pytest.mark.parametrize("field", ['"messageId": "same"', '"deduplicationKey": "same"'])
def test_a_foreign_duplicate_is_done_with_its_reason(store: FileStore, queue: Path, field: str) -> None:
    move_in(queue, "a.json", f'{{{field}, "payload": 1}}')
    assert drain(store) == [1]
    move_in(queue, "b.json", f'{{{field}, "payload": 2}}')
    assert drain(store) == []
    reasons = [entry.failure.code for entry in store.browse(QUEUE, State.DONE) if entry.failure]
    assert reasons == ["DUPLICATE"] and count(store, State.DONE) == 2


def test_ids_and_keys_of_foreign_files_count_for_our_own(store: FileStore, queue: Path) -> None:
    move_in(queue, "a.json", '{"messageId": "m", "deduplicationKey": "k", "payload": 1}')
    take_one(store)
    assert store.publish([draft(2, id="m")]) == [Published("m", duplicate=True)]
    assert store.publish([draft(3, dedup_key="k")]) == [Published("m", duplicate=True)]


def test_a_half_written_file_is_left_for_two_seconds(store: FileStore, queue: Path, clock: ManualClock) -> None:
    move_in(queue, "slow.json", '{"payload": "ha', clock=clock)
    publish(store, "other")
    assert drain(store) == ["other"]
    assert names(queue / "ready") == ["slow.json"] and store.next_due(QUEUE) is not None
    (queue / "ready" / "slow.json").write_text('{"payload": "half"}')
    assert drain(store) == ["half"]


def test_what_is_no_message_is_set_aside_with_its_reason(store: FileStore, queue: Path, clock: ManualClock) -> None:
    for name, text in {"cut.json": '{"payload": ', "nan.json": '{"payload": NaN}', "empty.json": ""}.items():
        move_in(queue, name, text, age=3, clock=clock)
    publish(store, "good")
    assert drain(store) == ["good"]
    codes = sorted(entry.failure.code for entry in store.browse(QUEUE, State.CORRUPT) if entry.failure)
    assert codes == ["InvalidNumber", "NotJson", "NotJson"]
    reasons = [path.read_text() for path in (queue / "corrupt").glob("nan*.why")]
    assert reasons and reasons[0].startswith("InvalidNumber: ")
    assert {entry.data for entry in store.browse(QUEUE, State.CORRUPT)} >= {b'{"payload": NaN}', b""}


def test_a_file_dated_in_the_future_is_not_left_for_ever(store: FileStore, queue: Path, clock: ManualClock) -> None:
    move_in(queue, "odd.json", "{", age=-1000, clock=clock)
    assert take(store) == []
    clock.advance(3)
    assert take(store) == [] and count(store, State.CORRUPT) == 1


def test_a_name_that_is_not_utf_8_is_taken_in(store: FileStore, queue: Path) -> None:
    publish(store, "good")
    move_in(queue, os.fsdecode(b"caf\xe9.json"), '{"payload": "latin"}')
    assert sorted(drain(store)) == ["good", "latin"]


class Fragile(JsonCodec):
    """A codec with a fault of its own."""

    def decode(self, data: bytes, *, id: str = "", at: float = 0.0, own: bool = False) -> Message:
        if b"odd" in data:
            raise ZeroDivisionError("what was never thought of")
        return super().decode(data, id=id, at=at, own=own)


def test_g10_an_unexpected_fault_with_one_file_does_not_stop_the_others(tmp_path: Path, clock: ManualClock) -> None:
    with closing(FileStore(tmp_path / "spool", clock=clock, layout=NativeLayout(codec=Fragile()))) as store:
        store.configure(QUEUE, {})
        for name, body in {"a.json": "odd", "b.json": "good"}.items():
            move_in(tmp_path / "spool" / QUEUE, name, f'{{"payload": "{body}"}}', age=3, clock=clock)
        assert drain(store) == ["good"]
        (entry,) = store.browse(QUEUE, State.CORRUPT)
        assert entry.failure is not None and entry.failure.code == "ZeroDivisionError"


@pytest.mark.parametrize("first", ['{"payload": "first"}', "{"])
def test_g10_the_next_file_of_a_name_is_not_taken_for_the_one_that_was_read(
    store: FileStore, queue: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    assert take(store) == []
    move_in(queue, "job.json", first, age=3, clock=clock)
    whole = filesystem.read_whole

    def slow(path: str) -> tuple[bytes, float]:
        found = whole(path)
        monkeypatch.undo()
        move_in(
            queue, "job.json", '{"payload": "second"}', age=3, clock=clock
        )  # its name is free again, and is used for the next
        return found

    monkeypatch.setattr(foreign, "read_whole", slow)
    got = drain(store) + drain(store)
    assert got == ["second"] and count(store, State.CORRUPT) == 0


def test_a_watch_rings_for_a_file_that_is_moved_in(store: FileStore, queue: Path) -> None:
    with closing(store.watch([QUEUE])) as watch:
        while watch.wait(0.02):
            pass
        move_in(queue, "a.json", '{"payload": 1}')
        assert watch.wait(5)


# Unsafe files


def make_symlink(path: Path) -> None:
    secret = path.parent.parent.parent / "secret.json"
    secret.write_text('{"payload": "secret"}')
    path.symlink_to(secret)


def make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


def make_link(path: Path) -> None:
    other = path.parent.parent.parent / "other.json"
    other.write_text('{"payload": "linked"}')
    os.link(other, path)


def make_huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("make", "code"),
    [
        (make_symlink, "NotARegularFile"),
        (os.mkfifo, "NotARegularFile"),
        (make_socket, "NotARegularFile"),
        (os.mkdir, "NotARegularFile"),
        (make_link, "LinkedFile"),
        (make_huge, "TooLarge"),
    ],
)
def test_an_unsafe_file_is_never_opened_as_a_message(
    store: FileStore, queue: Path, make: Callable[[Path], None], code: str
) -> None:
    make(queue / "ready" / "bait.json")
    make(queue / "ready" / "100-0000000000001-bait~c00000000.json")  # looks like one of ours
    publish(store, "good")
    assert drain(store) == ["good"]
    entries = store.browse(QUEUE, State.CORRUPT)
    assert [entry.failure.code for entry in entries if entry.failure] == [code] * 2
    assert all(b"secret" not in entry.data for entry in entries)
    assert names(queue / "ready") == names(queue / "inflight") == []
    assert store.purge(QUEUE, State.CORRUPT) == 2 and names(queue / "corrupt") == []


@pytest.mark.parametrize(("more", "code"), [(-1, "NotJson"), (0, "NotJson"), (1, "TooLarge")])
def test_a_document_is_too_large_only_above_the_limit(
    store: FileStore, queue: Path, clock: ManualClock, more: int, code: str
) -> None:
    move_in(queue, ".large", "x")
    os.truncate(queue / "ready" / ".large", LARGEST_MAX_BYTES + more)
    os.utime(queue / "ready" / ".large", (clock.now() - 3, clock.now() - 3))
    os.rename(queue / "ready" / ".large", queue / "ready" / "large.json")
    assert take(store) == []
    (reason,) = (queue / "corrupt").glob("*.why")
    assert reason.read_text().startswith(f"{code}: ")


def test_a_directory_with_something_in_it_is_purged_whole(store: FileStore, queue: Path) -> None:
    (queue / "ready" / "folder" / "inside").mkdir(parents=True)
    (queue / "ready" / "folder" / "inside" / "file").write_text("x")
    assert take(store) == [] and count(store, State.CORRUPT) == 1
    assert store.purge(QUEUE, State.CORRUPT) == 1 and names(queue / "corrupt") == []


# Recovery


def stop_before_finishing(store: FileStore, verdict: Done | Retry) -> None:
    """Settle in a child process that dies right after the commit point."""
    lease = take_one(store)

    def die() -> None:
        settling.complete = lambda *_: os._exit(0)  # in the child only
        settle(store, lease, verdict)

    child = Child(die)
    with pytest.raises(AssertionError, match="it died"):
        child.result()


def test_what_was_committed_is_finished_by_whoever_comes(store: FileStore, root: Path, clock: ManualClock) -> None:
    publish(store, "in", id="m")
    stop_before_finishing(store, Done(then=(draft("out", queue="next", id="m.out"), draft("here"))))
    assert len(names(root / ".settling")) == 1
    with closing(FileStore(root, clock=clock)) as other:
        assert names(root / ".settling") == []
        assert state_of(other, "m") is State.DONE
        assert (drain(other, "next"), drain(other)) == (["out"], ["here"])


def test_a_handle_that_was_open_finishes_it_too(store: FileStore, root: Path) -> None:
    publish(store, "in", id="m")
    stop_before_finishing(store, Done(then=(draft("out"),)))
    assert drain(store) == ["out"] and names(root / ".settling") == []


def test_g4_a_head_on_its_way_back_blocks_its_group(store: FileStore, root: Path, clock: ManualClock) -> None:
    publish(store, 1, 2, group="g")
    stop_before_finishing(store, Retry(0.0, FAILED, then=(draft("out", queue="next"),)))
    assert bodies(take(store, 10)) == [1]  # not 2: the empty lease finished what was begun, and 1 is first again


def test_g4_a_settlement_that_never_was_does_not_block_a_group(
    store: FileStore, root: Path, clock: ManualClock
) -> None:
    publish(store, 1, 2, group="g")
    lease = take_one(store)

    def die() -> None:
        store._root.move = lambda *_: os._exit(0)  # type: ignore[method-assign]
        ack(store, lease, draft("out", queue="next"))

    with pytest.raises(AssertionError, match="it died"):
        Child(die).result()
    assert len(names(root / ".settling")) == 1 and bodies(take(store)) == []
    assert ack(store, lease) is Outcome.APPLIED
    assert bodies(take(store)) == [2]


def test_g3_a_sweeper_that_dies_holds_what_it_took_for_seconds_only(store: FileStore, clock: ManualClock) -> None:
    publish(store, 1)
    take_one(store, 1)
    clock.advance(2)
    assert len(store.expired(QUEUE, 1)) == 1
    clock.advance(JUDGING_SECONDS + 0.1)
    assert JUDGING_SECONDS <= 5 and len(store.expired(QUEUE, 1)) == 1


def test_a_folder_that_was_never_committed_is_removed_when_it_is_old(
    store: FileStore, root: Path, clock: ManualClock
) -> None:
    publish(store, "in", id="m")
    folder = root / ".settling" / "m~0000000000000000~0000000000~aaaaaaaa"
    folder.mkdir()
    (folder / "0.aaaaaaaa~left").write_text("x")
    os.utime(folder, (clock.now(), clock.now()))
    store.expired(QUEUE, 1)
    assert folder.exists()
    clock.advance(61)
    store.expired(QUEUE, 1)
    assert not folder.exists() and drain(store) == ["in"]


def test_a_wall_clock_that_jumps_ahead_takes_no_folder_from_its_owner(
    store: FileStore, root: Path, clock: ManualClock
) -> None:
    folder = root / ".settling" / "m~0000000000000000~0000000000~aaaaaaaa"
    folder.mkdir()
    clock.step_wall(3600)
    store.expired(QUEUE, 1)
    clock.advance(30)
    store.expired(QUEUE, 1)
    assert folder.exists()
    clock.advance(31)
    store.expired(QUEUE, 1)
    assert not folder.exists()


def test_g6_a_publisher_that_died_after_its_claim_is_finished_by_the_next(store: FileStore, queue: Path) -> None:
    def die() -> None:
        durable.sync_dir = lambda path: os._exit(0)  # the flush of the records
        publish(store, "first", id="m", dedup_key="k")

    with pytest.raises(AssertionError, match="it died"):
        Child(die).result()
    assert len(names(queue / "tmp")) == 1 and take(store) == []
    assert store.publish([draft("second", id="m", dedup_key="k")]) == [Published("m", duplicate=True)]
    assert names(queue / "tmp") == [] and drain(store) == ["first"]


def test_g6_an_id_of_ours_that_comes_back_as_given_is_known(store: FileStore) -> None:
    once = draft("a")
    assert store.publish([once]) == [Published(once.message.id)]
    again = Draft(QUEUE, once.message, given_id=True)
    assert store.publish([again]) == [Published(once.message.id, duplicate=True)]
    ack(store, take_one(store))
    assert store.publish([again]) == [Published(once.message.id, duplicate=True)]


def test_g6_a_draft_that_is_published_again_is_known(store: FileStore, clock: ManualClock) -> None:
    once, twice = draft("a"), draft("b")
    assert store.publish([once]) == [Published(once.message.id)]
    clock.advance(0.5)
    assert store.publish([once]) == [Published(once.message.id, duplicate=True)]
    assert [each.duplicate for each in store.publish([twice, twice])] == [False, True]
    assert drain(store) == ["a", "b"]


def test_g6_a_follow_up_with_the_id_of_its_input_is_known(store: FileStore) -> None:
    publish(store, 1)
    lease = take_one(store)
    assert ack(store, lease, draft(2, id=lease.message.id), draft(3)) is Outcome.APPLIED
    assert drain(store) == [3]


@pytest.mark.parametrize("step", ["_claim", "_reveal"])
def test_g1_what_a_check_takes_from_a_sleeping_publisher_is_not_said_to_be_stored(
    store: FileStore, root: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    late = ManualClock()
    whole: Callable[..., None] = getattr(publishing, step)

    def slow(*args: Any) -> None:
        monkeypatch.undo()
        late.step_wall(1000)  # past the window of its key, too
        with closing(FileStore(root, clock=late)) as other:
            other.check(repair=True)
        whole(*args)

    monkeypatch.setattr(publishing, step, slow)
    with pytest.raises(StoreError):
        publish(store, "precious", dedup_key="k")
    assert store.publish([draft("precious", id="m", dedup_key="k")]) == [Published("m")]
    assert drain(store) == ["precious"]


@pytest.mark.parametrize("keys", [{}, {"dedup_key": "k"}])
def test_a_limit_holds_also_for_a_publisher_that_was_overtaken(
    store: FileStore, root: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, keys: dict[str, str]
) -> None:
    terms = Terms(max_waiting=1)
    whole = publishing.stage

    def slow(files: list[publishing.EncodedDraft | publishing.StagedFile]) -> None:
        monkeypatch.undo()
        with closing(FileStore(root, clock=clock)) as other:
            publish(other, "quick", terms=terms)
        whole(files)

    monkeypatch.setattr(publishing, "stage", slow)
    with pytest.raises(QueueFull):
        publish(store, "slow", terms=terms, **keys)
    assert drain(store) == ["quick"] and names(root / QUEUE / "tmp") == []
    assert publish(store, "again", terms=terms, **keys) and drain(store) == ["again"]


def test_check_finds_and_mends_what_is_left_behind(store: FileStore, queue: Path, clock: ManualClock) -> None:
    publish(store, {"text": "good " * 20}, id="bad")
    publish(store, "good", id="good")
    (path,) = (queue / "ready").glob("*-bad~*")
    path.write_bytes(path.read_bytes().replace(b"good", b"evil", 1))
    (queue / "tmp" / "0000000000~left").write_text("x")
    (queue / "dead" / "nobody.json.why").write_text("{}")
    (queue / "why").rmdir()
    clock.advance(100)
    problems = [finding.problem.partition(":")[0] for finding in store.check(repair=False)]
    expected = ["missing directory", "left by a writer that died", "damaged", "a reason without its message"]
    assert problems == expected
    assert (queue / "tmp" / "0000000000~left").exists() and count(store, State.CORRUPT) == 0
    assert all(finding.repaired for finding in store.check(repair=True))
    assert store.check(repair=True) == [] and count(store, State.CORRUPT) == 1
    assert drain(store) == ["good"]


def test_check_publishes_what_its_records_promise(store: FileStore, queue: Path, clock: ManualClock) -> None:
    def die() -> None:
        durable.sync_dir = lambda path: os._exit(0)
        publish(store, "first", id="m")

    with pytest.raises(AssertionError, match="it died"):
        Child(die).result()
    clock.advance(100)
    (finding,) = store.check(repair=True)
    assert "published" in finding.problem and drain(store) == ["first"]


# Sharing


def test_many_handles_see_one_group_in_one_order(root: Path, clock: ManualClock) -> None:
    handles = [FileStore(root, clock=clock) for _ in range(3)]
    for n in range(9):
        publish(handles[n % 3], n, id=f"{9 - n}", group="g")
    clock.step_wall(-3600)
    publish(handles[0], 9, id="0", group="g")
    got = []
    for n in range(10):
        lease = take_one(handles[n % 3])
        assert all(take(handle) == [] for handle in handles)
        got.append(lease.message.body)
        if n == 4 and lease.attempt == 1:
            retry(handles[0], lease)
            lease = take_one(handles[1])
        ack(handles[(n + 1) % 3], lease)
    assert got == list(range(10))
    for handle in handles:
        handle.close()


def test_without_inotify_the_directories_are_listed_again(
    root: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left() -> None:
        raise OSError(errno.EMFILE, "no inotify instance to be had")

    monkeypatch.setattr(index, "Inotify", none_left)
    with closing(FileStore(root, clock=clock)) as store, closing(FileStore(root, clock=clock)) as other:
        assert store.facts()["woken by"] == "poll"
        for n in range(3):
            publish(other, n, group="g")
            assert drain(store) == [n]
        publish(store, "later", delay=10)
        clock.advance(11)
        assert drain(other) == ["later"]


def test_many_handles_leave_most_inotify_instances_to_other_programs(root: Path, clock: ManualClock) -> None:
    def instances() -> int:
        links = [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
        return sum(os.readlink(link) == "anon_inode:inotify" for link in links)

    before = instances()
    with ExitStack() as stack:
        handles = [stack.enter_context(closing(FileStore(root, clock=clock))) for _ in range(40)]
        for number, handle in enumerate(handles):
            assert take(handle) == []
            publish(handles[0], number)
            assert [lease.message.body for lease in take(handle)] == [number]
        assert 0 < instances() - before <= 16
        handles[0].close()
        with closing(FileStore(root, clock=clock)) as next_one:
            assert take(next_one) == [] and next_one.facts()["woken by"] == "inotify"
    assert instances() == before


@pytest.mark.timeout(20)
def test_a_forked_child_keeps_no_lock_for_a_parent_that_died(store: FileStore, root: Path, clock: ManualClock) -> None:
    publish(store, 1)
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        with FileStore(root, clock=clock)._root.make(QUEUE):
            if os.fork() == 0:
                os.close(write)
                os.read(read, 1)  # lives on until the test is over, and never uses the store
            os._exit(0)
    os.waitpid(parent, 0)
    try:
        with closing(FileStore(root, clock=clock)) as other:
            within_seconds(lambda: other.publish([draft(2, group="g")]), "the lock is held by a child")
            assert drain(other) == [1, 2]
    finally:
        os.close(read)
        os.close(write)


def test_a_closed_store_touches_no_descriptor_of_others(root: Path, tmp_path: Path, clock: ManualClock) -> None:
    for _ in range(10):
        store = FileStore(root, clock=clock)
        publish(store, 1, group="g")

        def work(store: FileStore = store) -> None:
            with pytest.raises((StoreClosed, Uncertain)):
                while True:
                    publish(store, 2, group="g")

        def close(store: FileStore = store) -> None:
            time.sleep(0.01)
            store.close()
            mine = [os.open(tmp_path / f"{n}", os.O_RDWR | os.O_CREAT) for n in range(8)]
            with pytest.raises(StoreClosed):
                take(store)
            time.sleep(0.01)
            assert not any(os.pread(fd, 1, 0) for fd in mine)
            for fd in mine:
                os.close(fd)

        in_threads(work, work, close)


# Interrupts


class Interrupt(BaseException):
    """What a signal handler may raise in the middle of a call."""


_STRUCK = ("stores/files/", "pabal/durable.py", "pabal/filesystem.py")


def interrupt_at(step: int, work: Callable[[], object]) -> bool:
    """Do the work and raise where the interpreter lets signals in: as a function begins, or after a call of the system.

    Return False if the work was done before that step.
    """
    left, struck = step, False

    def strike(frame: FrameType, event: str, _: object) -> None:
        nonlocal left, struck
        ours = frame.f_code.co_name != "<genexpr>" and any(part in frame.f_code.co_filename for part in _STRUCK)
        if ours and not struck and event in ("call", "c_return"):
            left -= 1
            if left == 0:
                struck = True
                raise Interrupt

    before = sys.getprofile()
    sys.setprofile(strike)
    try:
        work()
    except Interrupt:
        pass
    finally:
        sys.setprofile(before)
    return struck


def within_seconds(work: Callable[[], object], what: str) -> None:
    """Do it in another thread, which would wait for ever if a lock were still held."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive(), what


def broken_off(store: FileStore, call: str, step: int) -> bool:
    then = draft("y", group="g", id=f"n-{step}")
    if call == "publish":
        return interrupt_at(step, lambda: store.publish([then]))
    if call == "lease":
        return interrupt_at(step, lambda: take(store, 5, 1.0))
    lease = take_one(store, 1.0)
    return interrupt_at(step, lambda: ack(store, lease, *[then] * (call == "follow-up")))


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of files left open
@pytest.mark.parametrize("call", ["publish", "lease", "ack", "follow-up"])
def test_a_call_may_be_broken_off_at_any_step(root: Path, clock: ManualClock, call: str) -> None:
    with closing(FileStore(root, clock=clock)) as store, closing(FileStore(root, clock=clock)) as other:
        step, struck, before = 1, True, 0
        while struck:
            publish(store, "x", group="g", id=f"m-{step}")
            struck = broken_off(store, call, step)
            within_seconds(lambda: other.next_due(QUEUE), f"the lock is held after an interrupt at step {step}")
            clock.advance(2)
            for lapsed in store.expired(QUEUE, 10):
                retry(store, lapsed)
            within_seconds(lambda: drain(store), f"the handle is stuck after an interrupt at step {step}")
            assert names(root / QUEUE / "ready") == names(root / QUEUE / "inflight") == [], step
            assert any(f"-m-{step}~" in name for name in os.listdir(root / QUEUE / "done")), step
            store.purge(QUEUE, State.DONE)
            step += 1
            if step == 2:
                before = len(os.listdir("/proc/self/fd"))
            assert len(os.listdir("/proc/self/fd")) <= before, f"a descriptor is lost at step {step}"
        assert step > 20


# Cost

# Cost


def test_no_directory_is_listed_for_a_message(store: FileStore, listed: list[str]) -> None:
    store.publish([draft(n) for n in range(60)])
    ack(store, take_one(store))
    listed.clear()
    for _ in range(20):
        publish(store, "more")
        ack(store, take_one(store))
    assert listed == []


def test_a_purge_lists_only_when_something_may_be_due(
    root: Path, store: FileStore, clock: ManualClock, listed: list[str]
) -> None:
    store.publish([draft(n) for n in range(5)])
    for lease in take(store, 5):
        ack(store, lease)
        clock.advance(10)
    with closing(FileStore(root, clock=clock)) as other:
        listed.clear()
        for _ in range(5):
            assert store.purge(QUEUE, State.DONE, age=600) == other.purge(QUEUE, State.DONE, age=600) == 0
        assert len(listed) == 1
        clock.advance(565)
        assert store.purge(QUEUE, State.DONE, age=600) == 2
        assert other.purge(QUEUE, State.DONE, age=600) == 0
        assert len(listed) == 1
        clock.advance(100)
        assert other.purge(QUEUE, State.DONE, age=600) == 3
    assert count(store, State.DONE) == 0


def test_a_purge_goes_on_after_the_clock_was_ahead(root: Path, store: FileStore, clock: ManualClock) -> None:
    store.configure(QUEUE, {})
    clock.step_wall(1_000_000)
    assert store.purge(QUEUE, State.DEAD) == 0
    clock.step_wall(-1_000_000)
    publish(store, 1, 2)
    bury(store, take_one(store))
    clock.advance(5)
    assert store.purge(QUEUE, State.DEAD) == 1
    bury(store, take_one(store))
    clock.advance(5)
    with closing(FileStore(root, clock=clock)) as other:
        assert other.purge(QUEUE, State.DEAD) == 1


# Faults


def failing(code: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_g9_an_io_error_poisons_the_handle(
    store: FileStore, root: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store, "before")
    with monkeypatch.context() as patch:
        patch.setattr(durable, "sync", failing(errno.EIO))
        with pytest.raises(StoreFailed):
            publish(store, "never")
    with pytest.raises(StoreFailed, match="reopen"):
        take(store)
    with closing(FileStore(root, clock=clock)) as again:
        assert drain(again) == ["before"] and names(root / QUEUE / "tmp") == []


def test_a_fault_after_the_rename_is_uncertain_and_can_be_repeated(
    store: FileStore, root: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.configure(QUEUE, {})
    unsure = draft("once")
    with monkeypatch.context() as patch:
        patch.setattr(durable, "sync_dir", failing(errno.EIO))
        with pytest.raises(Uncertain) as raised:
            store.publish([unsure])
    assert raised.value.ids == (unsure.message.id,)
    with closing(FileStore(root, clock=clock)) as again:
        assert again.publish([Draft(QUEUE, unsure.message)]) == [Published(unsure.message.id, duplicate=True)]
        assert drain(again) == ["once"]


def test_too_many_open_files_is_said_and_passes(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(store, 1)
    with monkeypatch.context() as patch:
        patch.setattr(durable, "write_into", failing(errno.EMFILE))
        with pytest.raises(StoreFailed, match="too many open files"):
            publish(store, 2)
    assert drain(store) == [1]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        if os.environ.get("CI") == "true":
            pytest.fail("CI must run as root, to mount a small disk")
        pytest.skip("needs root, to mount a small disk")
    image, place = tmp_path / "disk.img", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(40 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.root
def test_g9_on_a_full_disk_publish_says_so_and_the_rest_goes_on(small_disk: Path, clock: ManualClock) -> None:
    with closing(FileStore(small_disk / "spool", clock=clock)) as store:
        assert store.facts()["ballast"] == "present"
        terms = Terms(max_bytes=2 << 20)
        published = 0
        with pytest.raises(StoreFull):
            while True:
                publish(store, "x" * 100_000, terms=terms, id=f"m-{published}")
                published += 1
        assert published > 20 and names(small_disk / "spool" / QUEUE / "tmp") == []
        (small_disk / "filler").write_bytes(b"x")
        with pytest.raises(OSError), (small_disk / "filler").open("ab") as file:
            while True:
                file.write(b"x" * 4096)
                file.flush()
        got = 0
        while leases := take(store, 7):
            retried, *others = leases
            assert retry(store, retried) is Outcome.APPLIED if retried.attempt == 1 else ack(store, retried)
            for lease in others:
                then = [draft("next", queue="next")] if got < 10 else []
                assert ack(store, lease, *then) is Outcome.APPLIED
                got += 1
            got += retried.attempt > 1
        assert got == published
        (small_disk / "filler").unlink()
        store.purge(QUEUE, State.DONE)
        store.expired(QUEUE, 1)
        assert store.facts()["ballast"] == "present"


def test_a_verdict_that_is_repeated_durably_is_flushed(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(store, "a")
    settlement = Settlement(take_one(store).receipt, Done())
    assert store.settle([settlement]) == [Outcome.APPLIED]
    flushed: list[str] = []
    monkeypatch.setattr(durable, "sync_dir", lambda path: flushed.append(os.path.basename(path)))
    assert store.settle([settlement], durable=True) == [Outcome.REPEATED]
    assert "inflight" in flushed


def test_a_consumer_can_be_read_with_cat(store: FileStore, root: Path, clock: ManualClock) -> None:
    publish(store, 1)
    take_one(store, consumer="worker-7")
    [file] = (root / ".consumers").iterdir()
    document = json.loads(file.read_text())
    assert (document["consumer"], document["pid"]) == ("worker-7", os.getpid())
    assert document["since"] == iso_stamp(clock.now()) and file.stat().st_mtime == clock.now()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_removed_while_leases_are_extended_harms_no_other_lease(
    store: FileStore, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store, 1, 2, 3)
    leases = store.lease(QUEUE, 3, 30.0)
    find = read.find_leases

    def find_and_remove(*args: Any) -> Any:
        found = find(*args)
        os.unlink(queue / "inflight" / found[leases[1].receipt].name)
        return found

    monkeypatch.setattr(leasing, "find_leases", find_and_remove)
    outcomes = store.extend([lease.receipt for lease in leases], 60.0)
    assert outcomes == [Outcome.APPLIED, Outcome.LOST, Outcome.APPLIED]
