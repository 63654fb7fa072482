"""Layouts: the grammar of names, directories by other names, and plain names with the status in the document."""

import json
import os
import string
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pabal.codec import Codec
from pabal.codecs.json import JsonCodec
from pabal.errors import InvalidInput
from pabal.message import MAX_PRIORITY, MIN_PRIORITY, Message
from pabal.store import Dead, Done, Outcome, Published, Retry, Settlement, State
from pabal.stores.files import FileStore
from pabal.stores.files.names import LAST_DUE, Names, native_base
from pabal.stores.layout import NativeLayout, admits
from pabal.testing import ManualClock
from pabal.testing.store_place import FAILED, ack, bodies, bury, draft, drain, publish, retry, settle, take, take_one

NATIVE = Names(native=True, extension=".json")
PLAIN = Names(native=False, extension=".json")
PORTABLE = Names(native=False, extension=".json", portable=True)

_ids = st.from_regex(r"[A-Za-z0-9_](?:[A-Za-z0-9_:-]|\.(?=[A-Za-z0-9_:-])){0,127}", fullmatch=True).filter(
    lambda id: len(id) <= 128
)
_millis = st.integers(1, LAST_DUE)
_tokens = st.text("0123456789abcdefghijklmnopqrstuvwxyz", min_size=16, max_size=16)
_messages = st.builds(
    Message,
    id=_ids,
    body=st.none(),
    priority=st.integers(MIN_PRIORITY, MAX_PRIORITY),
    group=st.sampled_from(("", "g", "한글")),
    target=st.sampled_from(("", "worker-1")),
    expires_at=st.one_of(st.none(), st.floats(1, LAST_DUE / 1000)),
)


@given(_messages, _millis, st.integers(1, 16**13 - 1), st.integers(0, 2**32 - 1), st.booleans(), _tokens, st.data())
def test_a_native_name_says_all_that_was_put_into_it(
    message: Message, due: int, stamp: int, crc: int, own: bool, token: str, data: st.DataObject
) -> None:
    base = native_base(message, message.id, due, stamp=stamp, crc=crc, own=own)
    slot = NATIVE.parse(f"{base}.json")
    assert slot is not None
    assert (slot.base, slot.id, slot.priority, slot.due) == (base, message.id, message.priority, due)
    assert (slot.crc, slot.own, slot.attempt, slot.token, slot.leased) == (crc, own, 0, "", False)
    assert (slot.stamp if message.group else stamp) == stamp and bool(slot.target) == bool(message.target)
    assert (slot.expires > 0) == (message.expires_at is not None)

    attempt, deadline = data.draw(st.integers(1, 10**7 - 1)), data.draw(st.integers(0, 16**10 - 1))
    leased = NATIVE.leased(slot, attempt, f"{token}.b0000001.{deadline:x}")
    held = NATIVE.parse(leased)
    assert held is not None and held.leased
    assert (held.base, held.attempt, held.token, held.boot) == (base, attempt, token, "b0000001")
    assert held.deadline == deadline

    later = data.draw(_millis)
    back = NATIVE.parse(NATIVE.waiting(leased, later))
    assert back is not None and not back.leased
    assert (back.id, back.due, back.attempt, back.token, back.crc) == (message.id, later, attempt, token, crc)
    assert (back.group, back.stamp, back.target, back.expires) == (slot.group, slot.stamp, slot.target, slot.expires)

    settled = NATIVE.settled(leased, later)
    over = NATIVE.parse(settled)
    assert over is not None and (over.base, over.attempt, over.token, over.settled) == (base, attempt, token, later)

    again = NATIVE.parse(NATIVE.revived(over, later, stamp))
    assert again is not None and (again.id, again.due, again.attempt, again.token) == (message.id, later, 0, "")
    assert (again.group, again.target, again.expires, again.crc) == (slot.group, slot.target, 0, crc)
    for name in (leased, f"{settled}.why"):
        assert len(os.fsencode(name)) <= 255


@given(st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1), _tokens, _millis)
def test_a_plain_stem_stays_through_every_state(text: str, token: str, due: int) -> None:
    for grammar in (PLAIN, PORTABLE):
        _stays(grammar, text, token, due)


def _stays(grammar: Names, text: str, token: str, due: int) -> None:
    stem = grammar.stem(text.removesuffix(".json") or "x")
    assert stem.isprintable() and (
        not grammar.portable or set(stem) <= set(f"{string.ascii_letters}{string.digits}_.-")
    )
    slot = grammar.parse(f"{stem}.json")
    assert slot is not None and (slot.base, slot.id, slot.attempt) == (stem, stem, 0)
    leased = grammar.leased(slot, 1, f"{token}.b0000001.ff")
    names = [leased, grammar.waiting(leased, due), grammar.settled(leased, due), grammar.revived(slot, due, 0)]
    for name in names:
        found = grammar.parse(name)
        assert found is not None and found.base == stem
        assert len(os.fsencode(f"{name}.why")) <= 255


@given(_tokens, _millis)
def test_a_plain_name_that_was_revived_says_so_through_every_state(token: str, due: int) -> None:
    slot = PLAIN.parse("order-1~a3~d5~s9.b.json")
    assert slot is not None and not slot.revived
    name = PLAIN.revived(slot, due, 0)
    for _ in range(2):
        slot = PLAIN.parse(name)
        assert slot is not None and (slot.base, slot.due, slot.revived) == ("order-1", due, True)
        held = PLAIN.parse(leased := PLAIN.leased(slot, 1, f"{token}.b0000001.ff"))
        over = PLAIN.parse(PLAIN.settled(leased, due))
        assert held is not None and (held.due, held.revived, held.leased) == (due, True, True)
        assert over is not None and (over.token, over.revived) == (token, True)
        name = PLAIN.waiting(leased, due)


@given(st.text(min_size=1))
def test_any_other_name_is_foreign(name: str) -> None:
    assert NATIVE.parse(name) is None


def test_native_directories_may_be_called_otherwise(tmp_path: Path, clock: ManualClock) -> None:
    layout = NativeLayout(ready="inbox", inflight="processing", done="archive", dead="dlq")
    store = FileStore(tmp_path, clock=clock, layout=layout)
    publish(store, 1, 2)
    first, second = take(store, 2)
    assert len(os.listdir(tmp_path / "jobs" / "processing")) == 2
    ack(store, first), bury(store, second)
    assert len(os.listdir(tmp_path / "jobs" / "archive")) == 1
    assert len(os.listdir(tmp_path / "jobs" / "dlq")) == 2  # the message and its reason
    assert store.queues() == ["jobs"]
    store.close()


@pytest.mark.parametrize("names", [{"ready": "done"}, {"dead": "tmp"}, {"ready": "../x"}, {"done": ""}])
def test_directories_that_clash_are_refused(names: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        NativeLayout(**names)  # type: ignore[arg-type]  # names of directories only


# An application's own layout: its stems, its directories, its status in the document.

_WORDS = {
    "ready": "pending",
    "delayed": "pending",
    "inflight": "in_progress",
    "done": "completed",
    "dead": "failed",
}


class TaskCodec(JsonCodec):
    """The envelope with a `status`."""

    def restate(self, data: bytes, state: str, *, at: float, reason: str = "") -> bytes:
        document = json.loads(data)
        if document.get("status") == _WORDS[state]:
            return data
        return json.dumps({**document, "status": _WORDS[state]}).encode()


@dataclass(frozen=True)
class TaskLayout:
    """`queue/<queue>/pending/task-1.json`; what is delayed waits in the same directory, what is ours lies apart."""

    codec: Codec = TaskCodec()
    native: bool = False
    mirror: bool = True
    removal_acks: bool = False
    portable: bool = False

    def directory(self, queue: str, state: State) -> str:
        places = {"ready": "pending", "delayed": "pending", "inflight": "in_progress", "done": "completed"}
        return f"queue/{queue}/{places.get(state, state)}"

    def private(self, queue: str) -> str:
        return f".pabal/{queue}"

    def queues(self, root: Path) -> list[str]:
        return [path.parent.name for path in root.glob("queue/*/pending")]

    def stem(self, message: Message) -> str:
        return message.id

    def admits(self, name: str) -> bool:
        return admits(name) and name.endswith(".json")


@pytest.fixture
def tasks(tmp_path: Path, clock: ManualClock) -> FileStore:
    return FileStore(tmp_path, clock=clock, layout=TaskLayout())


def statuses(root: Path) -> dict[str, str]:
    """Return which file lies in which directory and what its document says."""
    found = {}
    for path in root.glob("queue/jobs/*/*.json"):
        found[f"{path.parent.name}/{path.name.partition('~')[0].removesuffix('.json')}"] = json.loads(path.read_bytes())
    return {name: document.get("status", "") for name, document in found.items()}


def test_a_plain_layout_carries_a_message_through_its_life(
    tasks: FileStore, tmp_path: Path, clock: ManualClock
) -> None:
    publish(tasks, {"n": 1}, id="task-1")
    assert (tmp_path / "queue/jobs/pending/task-1.json").exists()
    assert statuses(tmp_path) == {"pending/task-1": "pending"}

    lease = take_one(tasks)
    assert (lease.receipt.id, lease.attempt, lease.message.body) == ("task-1", 1, {"n": 1})
    assert statuses(tmp_path) == {"in_progress/task-1": "in_progress"}
    assert tasks.find("jobs", "task-1").state is State.INFLIGHT  # type: ignore[union-attr]  # it is there

    assert retry(tasks, lease, delay=10) is Outcome.APPLIED
    assert statuses(tmp_path) == {"pending/task-1": "pending"}
    assert take(tasks) == [] and tasks.counts("jobs")[State.DELAYED] == 1
    assert tasks.next_due("jobs") == pytest.approx(10, abs=0.01)
    clock.advance(11)
    lease = take_one(tasks)
    assert (lease.attempt, lease.failure) == (2, FAILED)

    assert ack(tasks, lease) is Outcome.APPLIED and ack(tasks, lease) is Outcome.REPEATED
    assert statuses(tmp_path) == {"completed/task-1": "completed"}
    assert tasks.publish([draft("again", id="task-1")]) == [Published("task-1", duplicate=True)]


def test_a_plain_layout_takes_in_foreign_files_by_their_documents(
    tasks: FileStore, tmp_path: Path, clock: ManualClock
) -> None:
    publish(tasks, "ours", id="task-0")
    pending = tmp_path / "queue/jobs/pending"
    (pending / "task-b.json").write_text('{"payload": "b", "priority": 9}')
    (pending / "task-c.json").write_text('{"payload": "c", "target": "me", "priority": "high"}')
    (pending / "task~odd.json").write_text('{"payload": "odd", "messageId": "named"}')
    (pending / "notes.txt").write_text("not for us")
    (pending / "archive").mkdir()
    got = take(tasks, 10, consumer="me")
    assert [(lease.receipt.id, lease.message.body) for lease in got[:2]] == [("task-b", "b"), ("task-c", "c")]
    assert sorted(map(str, bodies(got))) == ["b", "c", "odd", "ours"]
    assert [ack(tasks, lease) for lease in got] == [Outcome.APPLIED] * 4
    assert sorted(os.listdir(pending)) == ["archive", "notes.txt"]
    assert "completed/task-odd" in statuses(tmp_path) and tasks.counts("jobs")[State.DONE] == 4


def test_a_duplicate_in_a_plain_layout_is_done_with_its_reason(tasks: FileStore, tmp_path: Path) -> None:
    publish(tasks, "first", id="task-1")
    (tmp_path / "queue/jobs/pending/copy.json").write_text('{"messageId": "task-1", "payload": "second"}')
    assert drain(tasks) == ["first"]
    reasons = [entry.failure.reason for entry in tasks.browse("jobs", State.DONE) if entry.failure]
    assert reasons == ["task-1 was first"]


def test_groups_and_restarts_in_a_plain_layout(tasks: FileStore, tmp_path: Path, clock: ManualClock) -> None:
    for n in range(3):
        publish(tasks, n, id=f"task-{n}", group="g", created_at=clock.now() + n / 100, priority=n)
    other = FileStore(tmp_path, clock=clock, layout=TaskLayout())
    first = take_one(other)
    assert first.message.body == 0 and take(tasks) == [] and take(other) == []
    tasks.close()
    again = FileStore(tmp_path, clock=clock, layout=TaskLayout())
    assert take(again) == []
    assert ack(again, first) is Outcome.APPLIED
    assert drain(again) == [1, 2]
    other.close()
    again.close()


def test_follow_ups_and_death_in_a_plain_layout(tasks: FileStore, tmp_path: Path) -> None:
    publish(tasks, "in", id="task-1")
    publish(tasks, "poor", id="task-2")
    first, second = take(tasks, 2)
    assert ack(tasks, first, draft("out", id="task-3"), draft("out", id="task-2")) is Outcome.APPLIED
    assert settle(tasks, second, Dead(FAILED)) is Outcome.APPLIED
    assert statuses(tmp_path) == {
        "completed/task-1": "completed",
        "dead/task-2": "failed",
        "pending/task-3": "pending",
    }
    entry = tasks.find("jobs", "task-2")
    assert entry and (entry.state, entry.failure) == (State.DEAD, FAILED)
    assert tasks.revive("jobs", ["task-2"]) == ["task-2"]
    assert statuses(tmp_path)["pending/task-2"] == "pending"
    assert sorted(drain(tasks)) == ["out", "poor"]


def test_check_mends_the_word_by_the_directory(tasks: FileStore, tmp_path: Path) -> None:
    publish(tasks, 1, id="task-1")
    path = tmp_path / "queue/jobs/pending/task-1.json"
    path.write_bytes(TaskCodec().restate(path.read_bytes(), "done", at=0))
    (finding,) = tasks.check(repair=False)
    assert "another state" in finding.problem and not finding.repaired
    assert statuses(tmp_path) == {"pending/task-1": "completed"}
    (finding,) = tasks.check(repair=True)
    assert finding.repaired and statuses(tmp_path) == {"pending/task-1": "pending"}
    assert tasks.check(repair=True) == []


def test_a_lease_that_is_gone_does_not_touch_the_document(tasks: FileStore, tmp_path: Path, clock: ManualClock) -> None:
    publish(tasks, 1, id="task-1")
    late = take_one(tasks, seconds=10)
    clock.advance(11)
    (over,) = tasks.expired("jobs", 10)
    assert settle(tasks, late, Done()) is Outcome.LOST
    assert statuses(tmp_path) == {"in_progress/task-1": "in_progress"}
    assert settle(tasks, over, Retry()) is Outcome.APPLIED


class InterruptedCodec(TaskCodec):
    """Lets something happen while a document is being edited."""

    def __init__(self) -> None:
        self.meanwhile: list[Callable[[], object]] = []

    def restate(self, data: bytes, state: str, *, at: float, reason: str = "") -> bytes:
        if self.meanwhile:
            self.meanwhile.pop()()
        return super().restate(data, state, at=at, reason=reason)


def test_a_lease_that_goes_while_its_document_is_edited_leaves_one_file(tmp_path: Path, clock: ManualClock) -> None:
    codec = InterruptedCodec()
    slow = FileStore(tmp_path, clock=clock, layout=TaskLayout(codec=codec))
    other = FileStore(tmp_path, clock=clock, layout=TaskLayout())
    publish(slow, 1, id="task-1")
    late = take_one(slow, seconds=10)
    clock.advance(11)
    codec.meanwhile.append(lambda: settle(other, other.expired("jobs", 1)[0], Retry()))
    assert ack(slow, late) is Outcome.LOST
    assert statuses(tmp_path) == {"pending/task-1": "pending"}
    assert os.listdir(tmp_path / ".pabal/jobs/tmp") == []
    slow.close()
    other.close()


def test_a_file_of_the_same_name_moved_in_during_a_lease_replaces_nothing(tmp_path: Path, clock: ManualClock) -> None:
    codec = InterruptedCodec()
    store = FileStore(tmp_path, clock=clock, layout=TaskLayout(codec=codec))
    pending = tmp_path / "queue/jobs/pending"
    pending.mkdir(parents=True)
    (pending / "next.json").write_text('{"payload": 1, "messageId": "task-1"}')

    def again() -> None:
        (tmp_path / "draft").write_text('{"payload": 2, "messageId": "task-2"}')
        os.rename(tmp_path / "draft", pending / "next.json")

    codec.meanwhile.append(again)
    leases = take(store, 2)
    assert sorted(map(str, bodies(leases))) == ["1", "2"]
    assert [ack(store, lease) for lease in leases] == [Outcome.APPLIED] * 2
    store.close()


@dataclass(frozen=True)
class MailLayout(TaskLayout):
    """The queue's own directory is the ready one, and taking a file out of `processed/` means that it is done."""

    codec: Codec = JsonCodec()
    mirror: bool = False
    removal_acks: bool = True

    def directory(self, queue: str, state: State) -> str:
        places = {"ready": "", "delayed": "", "inflight": "/processed"}
        return f"queue/{queue}{places.get(state, f'/.{state}')}"

    def queues(self, root: Path) -> list[str]:
        return [path.name for path in root.glob("queue/*") if path.is_dir()]


def test_a_file_that_its_reader_removes_is_done(tmp_path: Path, clock: ManualClock) -> None:
    store = FileStore(tmp_path, clock=clock, layout=MailLayout())
    publish(store, "a", id="mail-1")
    publish(store, "b", id="mail-2")
    first, second = take(store, 2, seconds=10)
    (found,) = (tmp_path / "queue/jobs/processed").glob("mail-1*")
    found.unlink()
    clock.advance(11)
    assert [lease.receipt.id for lease in store.expired("jobs", 10)] == ["mail-2"]
    settlement = Settlement(first.receipt, Done(then=(draft("next", id="mail-3"),)))
    assert store.settle([settlement]) == [Outcome.APPLIED]
    assert ack(store, second) is Outcome.LOST
    assert drain(store) == ["next"]
    store.close()


# In a process of its own: threads that other tests left behind also open files.
_FEW_OPEN_FILES = """\
import os, resource, sys
from pathlib import Path
from pabal.store import Dead, Outcome, Settlement
from pabal.stores.files import FileStore
from pabal.testing import ManualClock
from pabal.testing.store_place import FAILED, draft, take
from tests.stores.test_layout import TaskLayout
tasks = FileStore(Path(sys.argv[1]), clock=ManualClock(), layout=TaskLayout())
tasks.publish([draft(number) for number in range(250)])
leases = take(tasks, 250)
most = len(os.listdir("/proc/self/fd")) + 220
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
outcomes = tasks.settle([Settlement(lease.receipt, Dead(FAILED)) for lease in leases])
revived = tasks.revive("jobs", [lease.receipt.id for lease in leases])
assert outcomes == [Outcome.APPLIED] * 250 and len(revived) == 250
"""


def test_many_documents_are_settled_and_revived_with_few_open_files(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _FEW_OPEN_FILES, str(tmp_path)], check=True, timeout=60)
