"""The work of the file store grows with the number of messages and queues, not with its square: steps are counted."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from types import FrameType

import pytest

from pabal import durable
from pabal.ids import IdMaker
from pabal.message import Message
from pabal.queues.move import move_all
from pabal.queues.queue import Queue
from pabal.queues.redrive import redrive
from pabal.store import Dead, Done, Draft, Entry, Failure, Outcome, Receipt, Retry, Settlement, State, Verdict
from pabal.stores.files import FileStore, publish
from pabal.stores.files.names import Slot
from pabal.stores.files.publish import EncodedDraft, StagedFile
from pabal.stores.layout import NativeLayout
from pabal.testing import ManualClock
from pabal.testing.store_place import QUEUE, draft, take


@pytest.fixture(autouse=True)
def _no_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "sync", lambda fd: None)  # time, but no step


def steps(work: Callable[[], object]) -> int:
    """Count calls of functions and of the system, and the entries of directories that are listed."""
    counted = 0

    def note(frame: FrameType, event: str, function: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    whole = os.listdir

    def listdir(path: str) -> list[str]:
        nonlocal counted
        names = whole(path)
        counted += len(names)
        return names

    before = sys.getprofile()
    os.listdir = listdir  # type: ignore[assignment]
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
        os.listdir = whole
    return counted


Work = Callable[[FileStore, int], object]


def growth(tmp_path: Path, prepare: Work, work: Work, few: int = 150) -> float:
    """Return how many more steps four times as many messages take."""
    found = []
    for number in (few, few * 4):
        root, clock = tmp_path / str(number), ManualClock()
        with closing(FileStore(root, clock=clock)) as store:
            prepare(store, number)
        with closing(FileStore(root, clock=clock)) as store:
            found.append(steps(lambda store=store, number=number: work(store, number)))  # type: ignore[misc]
    return found[1] / found[0]


def bury_many(store: FileStore, number: int) -> None:
    store.publish([draft(n) for n in range(number)])
    leases = take(store, number)
    store.settle([Settlement(lease.receipt, Dead(Failure("NO"))) for lease in leases])


def lease_many(store: FileStore, number: int) -> None:
    store.publish([draft(n, id=f"m{n}") for n in range(number)])
    assert len(store.lease(QUEUE, number, 60.0, token="t")) == number


def receipts_of(number: int) -> list[Receipt]:
    """Return the receipts of what `lease_many` leased."""
    return [Receipt(QUEUE, f"m{n}", "t") for n in range(number)]


def make_queues(store: FileStore, number: int) -> None:
    for n in range(number):
        store.configure(f"queue-{n}", {})


def nothing(store: FileStore, number: int) -> None:
    pass


def in_batches(store: FileStore, number: int) -> None:
    queue = Queue(QUEUE, store)
    ids = [entry.id for entry in queue.entries(State.DEAD)]
    assert len(ids) == number
    for start in range(0, number, 10):
        assert len(queue.revive(ids[start : start + 10])) == 10


def pages(state: State) -> Callable[[FileStore, int], None]:
    def work(store: FileStore, number: int) -> None:
        after = ""
        for seen in count(1):
            page = store.browse(QUEUE, state, after=after, limit=10)
            if not page:
                assert seen == number // 10 + 1
                break
            after = page[-1].cursor

    return work


def purge_slices(store: FileStore, number: int) -> None:
    total = 0
    while removed := store.purge(QUEUE, State.READY, limit=10):
        total += removed
    assert total == number


def test_counts_of_all_queues(tmp_path: Path) -> None:
    assert growth(tmp_path, make_queues, lambda store, _: [store.counts(name) for name in store.queues()], 30) < 5


def test_making_queues(tmp_path: Path) -> None:
    assert growth(tmp_path, nothing, make_queues, 30) < 5


def fill(state: State) -> Work:
    def prepare(store: FileStore, number: int) -> None:
        if state is State.DEAD:
            bury_many(store, number)
        elif state is State.INFLIGHT:
            lease_many(store, number)
        else:
            store.publish([draft(n, delay=60.0 if state is State.DELAYED else 0.0) for n in range(number)])

    return prepare


@pytest.mark.parametrize("state", [State.DEAD, State.READY, State.DELAYED, State.INFLIGHT])
def test_browsing_page_by_page(tmp_path: Path, state: State) -> None:
    assert growth(tmp_path, fill(state), pages(state)) < 5


def test_a_page_has_the_leases_that_were_extended_since_the_page_before(tmp_path: Path) -> None:
    with closing(FileStore(tmp_path / "spool", clock=ManualClock())) as store:
        lease_many(store, 30)
        whole = [entry.id for entry in store.browse(QUEUE, State.INFLIGHT)]
        page = store.browse(QUEUE, State.INFLIGHT, limit=10)
        with closing(FileStore(tmp_path / "spool", clock=ManualClock())) as other:
            other.extend(receipts_of(30), 700.0)
        rest = store.browse(QUEUE, State.INFLIGHT, after=page[-1].cursor)
        assert [entry.id for entry in [*page, *rest]] == whole


@pytest.mark.parametrize("state", [State.DEAD, State.READY, State.DELAYED])
def test_purging_by_id_in_batches(tmp_path: Path, state: State) -> None:
    def work(store: FileStore, number: int) -> None:
        ids = [entry.id for entry in store.browse(QUEUE, state, limit=number)]
        for start in range(0, number, 10):
            assert store.purge(QUEUE, state, ids=ids[start : start + 10]) == 10

    assert growth(tmp_path, fill(state), work) < 5


def test_a_purge_by_id_removes_no_delayed_message_that_has_become_ready(tmp_path: Path) -> None:
    clock = ManualClock()
    with closing(FileStore(tmp_path / "spool", clock=clock)) as store:
        first, second = (each.id for each in store.publish([draft(n, delay=60.0) for n in range(2)]))
        assert store.purge(QUEUE, State.DELAYED, ids=[first]) == 1
        clock.advance(61.0)
        assert store.purge(QUEUE, State.DELAYED, ids=[second]) == 0
        assert store.purge(QUEUE, State.READY, ids=[second]) == 1


def test_reviving_all(tmp_path: Path) -> None:
    assert growth(tmp_path, bury_many, in_batches) < 5


def test_redriving_all_to_another_queue(tmp_path: Path) -> None:
    def work(store: FileStore, number: int) -> None:
        source, target = Queue(QUEUE, store), Queue("other", store)
        ids = [entry.id for entry in source.entries(State.DEAD)]
        for start in range(0, number, 10):
            assert not redrive(source, ids[start : start + 10], target).kept

    assert growth(tmp_path, bury_many, work) < 5


@pytest.mark.parametrize("group", ["", "g"])
def test_purging_what_waits(tmp_path: Path, group: str) -> None:
    def prepare(store: FileStore, number: int) -> None:
        store.publish([draft(n, group=group, priority=n % 10) for n in range(number)])

    assert growth(tmp_path, prepare, purge_slices) < 5


@pytest.mark.parametrize("verdict", [Done(), Dead(Failure("NO")), Retry(0.0)])
def test_settling_what_another_handle_leased_and_repeating_it(tmp_path: Path, verdict: Verdict) -> None:
    def work(store: FileStore, number: int) -> None:
        settlements = [Settlement(receipt, verdict) for receipt in receipts_of(number)]
        assert store.settle(settlements) == [Outcome.APPLIED] * number
        assert store.settle(settlements) == [Outcome.REPEATED] * number

    assert growth(tmp_path, lease_many, work) < 5


def in_slices(number: int) -> list[range]:
    return [range(number)[start : start + 100] for start in range(0, number, 100)]


def test_publishing_messages_of_another_store_with_their_ids(tmp_path: Path) -> None:
    def work(store: FileStore, number: int) -> None:
        ids = IdMaker(ManualClock()).many(number)
        for some in in_slices(number):
            answers = store.publish([Draft(QUEUE, Message(id=ids[n], body=n)) for n in some])
            assert not any(answer.duplicate for answer in answers)

    assert growth(tmp_path, lambda store, number: None, work, few=400) < 5


def unique_drafts(number: int) -> list[Draft]:
    return [draft(n, unique=f"key {n}") for n in range(number)]


PLAIN = NativeLayout(native=False)


def listings(work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """Count the directories that are listed."""
    counted, whole = [], os.listdir

    def listdir(path: str) -> list[str]:
        counted.append(path)
        return whole(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", listdir)
        work()
    return len(counted)


@pytest.mark.parametrize("layout", [NativeLayout(), PLAIN], ids=["native", "plain"])
def test_unique_keys_are_looked_up_at_once_beside_a_settlement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: NativeLayout
) -> None:
    with closing(FileStore(tmp_path, clock=ManualClock(), layout=layout)) as store:
        store.publish(unique_drafts(40))
        (tmp_path / ".settling" / "abandoned").mkdir()

        def work() -> None:
            assert all(answer.duplicate for answer in store.publish(unique_drafts(40)))

        assert listings(work, monkeypatch) < 20


@pytest.mark.parametrize("layout", [NativeLayout(), PLAIN], ids=["native", "plain"])
def test_files_whose_keys_were_used_before_are_judged_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: NativeLayout
) -> None:
    with closing(FileStore(tmp_path, clock=ManualClock(), layout=layout)) as store:
        store.publish(unique_drafts(40))
        store.settle([Settlement(lease.receipt, Done()) for lease in take(store, 40)])
        for number in range(40):
            document = {"messageId": f"new-{number}", "payload": number, "uniqueKey": f"key {number}"}
            (tmp_path / "draft").write_text(json.dumps(document))
            os.rename(tmp_path / "draft", tmp_path / QUEUE / "ready" / f"{number}.json")

        def work() -> None:
            assert len(take(store, 40)) == 40

        assert listings(work, monkeypatch) < 40


def test_a_late_ack_parses_no_name_of_another_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(FileStore(tmp_path, clock=ManualClock(), layout=PLAIN)) as store:
        store.publish([draft(n) for n in range(40)])
        store.settle([Settlement(lease.receipt, Done()) for lease in take(store, 40)])
        parsed: list[str] = []
        parse = store._root.names.parse

        def noted(name: str) -> Slot | None:
            parsed.append(name)
            return parse(name)

        monkeypatch.setattr(store._root.names, "parse", noted)
        late = Receipt(QUEUE, "m", "another token")
        assert store.settle([Settlement(late, Done())]) == [Outcome.LOST] and parsed == []


def test_publishing_duplicates_by_unique_key(tmp_path: Path) -> None:
    def work(store: FileStore, number: int) -> None:
        assert all(answer.duplicate for answer in store.publish(unique_drafts(number)))

    assert growth(tmp_path, lambda store, number: store.publish(unique_drafts(number)), work) < 5


def test_publishing_again_what_is_done_by_unique_key(tmp_path: Path) -> None:
    def prepare(store: FileStore, number: int) -> None:
        store.publish([*unique_drafts(number), *(draft(n) for n in range(number))])
        store.settle([Settlement(lease.receipt, Done()) for lease in take(store, number)])

    def work(store: FileStore, number: int) -> None:
        assert not any(answer.duplicate for answer in store.publish(unique_drafts(number)))

    assert growth(tmp_path, prepare, work) < 5


def test_g12_a_key_that_another_takes_meanwhile_is_seen_with_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        closing(FileStore(tmp_path / "spool", clock=ManualClock())) as store,
        closing(FileStore(tmp_path / "spool", clock=ManualClock())) as other,
    ):
        store.publish(unique_drafts(4))
        store.settle([Settlement(lease.receipt, Done()) for lease in take(store, 3)])
        stage, first = publish.stage, list[str]()

        def stage_late(files: Sequence[EncodedDraft | StagedFile]) -> None:
            stage(files)
            monkeypatch.undo()
            first.extend(answer.id for answer in other.publish(unique_drafts(2)))

        monkeypatch.setattr(publish, "stage", stage_late)
        answers = store.publish(unique_drafts(4))
        assert [answer.id for answer in answers[:2]] == first
        assert [answer.duplicate for answer in answers] == [True, True, False, True]


def test_settling_with_messages_that_keep_their_ids(tmp_path: Path) -> None:
    def work(store: FileStore, number: int) -> None:
        ids, receipts = IdMaker(ManualClock()).many(number), receipts_of(number)
        moved = [Done(then=(Draft("other", Message(id=ids[n], body=n)),)) for n in range(number)]
        for some in in_slices(number):
            outcomes = store.settle([Settlement(receipts[n], moved[n]) for n in some])
            assert outcomes == [Outcome.APPLIED] * len(some)

    assert growth(tmp_path, lease_many, work) < 5


def test_extending_what_another_handle_leased(tmp_path: Path) -> None:
    def work(store: FileStore, number: int) -> None:
        assert store.extend(receipts_of(number), 600.0) == [Outcome.APPLIED] * number

    assert growth(tmp_path, lease_many, work) < 5


def test_settling_what_another_handle_has_extended(tmp_path: Path) -> None:
    def work(store: FileStore, number: int) -> None:
        receipts = receipts_of(number)
        store.extend(receipts, 600.0)
        with closing(FileStore(tmp_path / str(number), clock=ManualClock())) as other:
            other.extend(receipts, 700.0)
        assert store.settle([Settlement(receipt, Done()) for receipt in receipts]) == [Outcome.APPLIED] * number

    assert growth(tmp_path, lease_many, work) < 5


def move_to_files(tmp_path: Path) -> Work:
    """Return the work of moving all queues to a file store."""

    def work(store: FileStore, number: int) -> None:
        clock = ManualClock()
        with closing(FileStore(tmp_path / f"target {number}", clock=clock)) as target:
            moved = list(move_all(store, target, store.queues(), clock=clock, sleep=clock.advance))
            assert sum(each.ready for each in moved) == number

    return work


def test_moving_many_queues(tmp_path: Path) -> None:
    def prepare(store: FileStore, number: int) -> None:
        store.publish([draft(n, queue=f"queue-{n}") for n in range(number)])

    assert growth(tmp_path, prepare, move_to_files(tmp_path), few=30) < 5


@pytest.mark.parametrize("group", ["", "g"])
def test_moving_one_queue(tmp_path: Path, group: str) -> None:
    def prepare(store: FileStore, number: int) -> None:
        store.publish([draft(n, group=group) for n in range(number)])

    assert growth(tmp_path, prepare, move_to_files(tmp_path)) < 5


def waiting(ids: Sequence[str]) -> list[Entry]:
    return [Entry(QUEUE, id, State.READY, message=Message(id=id, body=None)) for id in ids]


def test_carrying_in_batches(tmp_path: Path) -> None:
    def work(store: FileStore, number: int) -> None:
        ids = IdMaker(ManualClock()).many(number)
        for start in range(0, number, 10):
            assert store.carry(QUEUE, waiting(ids[start : start + 10])) == ids[start : start + 10]

    assert growth(tmp_path, nothing, work) < 5


@pytest.mark.parametrize("ours", [True, False])
def test_a_handle_that_carries_in_batches_sees_what_happens_between_them(tmp_path: Path, ours: bool) -> None:
    ids = IdMaker(ManualClock()).many(5) if ours else [f"m-{n}" for n in range(5)]
    with (
        closing(FileStore(tmp_path / "spool", clock=ManualClock())) as store,
        closing(FileStore(tmp_path / "spool", clock=ManualClock())) as other,
    ):
        assert store.carry(QUEUE, waiting(ids[:2])) == ids[:2]
        assert other.carry(QUEUE, waiting(ids[1:3])) == ids[2:3]  # carried by another
        assert store.carry(QUEUE, waiting(ids[:3])) == []
        other.publish([draft("published", id=ids[3])])
        assert store.carry(QUEUE, waiting(ids[3:])) == ids[4:]
        assert other.purge(QUEUE, State.READY, ids=ids[:1]) == 1
        assert store.carry(QUEUE, waiting(ids)) == ids[:1]
        assert other.delete(QUEUE, force=True) == 5
        assert store.carry(QUEUE, waiting(ids)) == ids


def test_a_page_that_goes_on_skips_what_is_gone(tmp_path: Path) -> None:
    with closing(FileStore(tmp_path / "spool", clock=ManualClock())) as store:
        bury_many(store, 30)
        first, *rest = [entry.id for entry in store.browse(QUEUE, State.DEAD)]
        (page,) = store.browse(QUEUE, State.DEAD, limit=1)
        assert store.revive(QUEUE, rest[:5]) == rest[:5]
        seen, after = [], page.cursor
        while found := store.browse(QUEUE, State.DEAD, after=after, limit=10):
            after = found[-1].cursor
            seen += [entry.id for entry in found]
        assert page.id == first and seen == rest[5:]


def test_a_page_after_the_last_shows_what_came_since(tmp_path: Path) -> None:
    with closing(FileStore(tmp_path / "spool", clock=ManualClock())) as store:
        store.publish([draft(n, id=f"m{n}") for n in range(5)])
        page = store.browse(QUEUE, State.READY, limit=3)
        store.publish([draft(5, id="m5")])
        page += store.browse(QUEUE, State.READY, limit=3, after=page[-1].cursor)
        assert [entry.id for entry in page] == [f"m{n}" for n in range(6)]


def bury_by_receipt(store: FileStore, number: int) -> None:
    queue = Queue(QUEUE, store)
    for delivery in queue.lease(number // 2):
        queue.bury(str(delivery.receipt), "no")


def nack_by_receipt(store: FileStore, number: int) -> None:
    queue = Queue(QUEUE, store)
    for delivery in queue.lease(number // 2):
        queue.nack(str(delivery.receipt), delay=60.0, reason="later")


def test_what_this_process_leased_is_found_without_a_listing(tmp_path: Path, listed: list[str]) -> None:
    with closing(FileStore(tmp_path)) as store, closing(FileStore(tmp_path)) as other:
        store.publish([draft(n) for n in range(3)])
        first, second, third = take(store, 3)
        other.extend([second.receipt], 90.0)
        store.settle([Settlement(third.receipt, Dead(Failure("NO")))])
        listed.clear()
        entry = store.find(QUEUE, first.receipt.id)
        assert entry is not None and entry.state is State.INFLIGHT and entry.token
        assert not [path for path in listed if QUEUE in path]
        entry = store.find(QUEUE, second.receipt.id)
        assert entry is not None and entry.state is State.INFLIGHT, "it was extended elsewhere, and has another name"
        entry = store.find(QUEUE, third.receipt.id)
        assert entry is not None and entry.state is State.DEAD


@pytest.mark.parametrize("work", [bury_by_receipt, nack_by_receipt])
def test_failing_by_receipt(tmp_path: Path, work: Work) -> None:
    def publish(store: FileStore, number: int) -> None:
        store.publish([draft(n) for n in range(number)])

    assert growth(tmp_path, publish, work) < 5.5
