"""Plain names are used again: what is known of a file does not count for the next one of that name."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pabal import filesystem
from pabal.message import Message, replace
from pabal.store import Dead, Done, Draft, Failure, Lease, Outcome, Retry, Settlement, State, Verdict
from pabal.stores.files import FileStore, foreign, index, read, settle
from pabal.stores.files.order import order_of
from pabal.stores.layout import NativeLayout
from pabal.testing import ManualClock

LAYOUT = NativeLayout(native=False)


@pytest.fixture(params=["inotify", "poll"])
def woken_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    def none_left() -> None:
        raise OSError(errno.EMFILE, "no inotify instance to be had")

    if request.param == "poll":
        monkeypatch.setattr(index, "Inotify", none_left)
    return str(request.param)


@pytest.fixture
def ours(tmp_path: Path, clock: ManualClock, woken_by: str) -> Iterator[FileStore]:
    """A process that knows the queue by now."""
    with closing(FileStore(tmp_path, clock=clock, layout=LAYOUT)) as store:
        store.configure("q", {})
        assert store.lease("q", 1, 60.0) == [] and store.facts()["woken by"] == woken_by
        yield store


@pytest.fixture
def others(tmp_path: Path, clock: ManualClock, ours: FileStore) -> Iterator[FileStore]:
    """Another process at the same queue."""
    with closing(FileStore(tmp_path, clock=clock, layout=LAYOUT)) as store:
        yield store


def put(place: Path, id: str, name: str = "task.json", **document: Any) -> None:
    """Move a file in, as another program does."""
    (place / "draft").write_text(json.dumps({"messageId": id, "payload": id, **document}))
    os.rename(place / "draft", place / "q" / "ready" / name)


def take(store: FileStore, consumer: str = "", limit: int = 10) -> list[str]:
    return [lease.receipt.id for lease in store.lease("q", limit, 60.0, consumer=consumer)]


def do_one(store: FileStore, consumer: str = "", *, removed: bool = False) -> Lease:
    """Lease one and acknowledge it; perhaps what is done is also purged at once."""
    (lease,) = store.lease("q", 1, 60.0, consumer=consumer)
    assert store.settle([Settlement(lease.receipt, Done())]) == [Outcome.APPLIED]
    if removed:
        assert store.purge("q", State.DONE) == 1
    return lease


@pytest.mark.parametrize("removed", [False, True])
def test_the_next_file_of_a_name_goes_to_whom_it_is_for(
    tmp_path: Path, ours: FileStore, others: FileStore, removed: bool
) -> None:
    put(tmp_path, "one", targetConsumerId="alice")
    assert ours.counts("q")[State.READY] == 1
    do_one(others, "alice", removed=removed)
    put(tmp_path, "two", targetConsumerId="bob")
    assert take(ours, "alice") == []
    assert take(ours, "bob") == ["two"]


@pytest.mark.parametrize("removed", [False, True])
def test_the_next_file_of_a_name_does_not_expire_with_the_first(
    tmp_path: Path, ours: FileStore, others: FileStore, clock: ManualClock, removed: bool
) -> None:
    put(tmp_path, "one", expiredAt=int((clock.now() + 1) * 1000))
    assert ours.counts("q")[State.READY] == 1
    do_one(others, removed=removed)
    clock.advance(2)
    put(tmp_path, "two")
    found = ours.find("q", "two")
    assert found is not None and found.state is State.READY
    assert ours.expired("q", 10) == [] and take(ours) == ["two"]


def test_the_next_file_of_a_name_has_its_own_priority(tmp_path: Path, ours: FileStore, others: FileStore) -> None:
    put(tmp_path, "one", priority=9)
    assert ours.counts("q")[State.READY] == 1
    do_one(others)
    put(tmp_path, "two", priority=1)
    put(tmp_path, "three", "other.json", priority=5)
    assert take(ours) == ["three", "two"]


def test_the_next_file_of_a_name_is_of_its_own_group(tmp_path: Path, ours: FileStore, others: FileStore) -> None:
    put(tmp_path, "first", "a.json", group="g")
    put(tmp_path, "one", group="h")
    assert ours.counts("q")[State.READY] == 2
    held = [others.lease("q", 1, 60.0)[0].receipt for _ in range(2)]
    put(tmp_path, "two", group="g")
    put(tmp_path, "three", "b.json", group="h")
    assert take(ours) == []
    others.settle([Settlement(held[0], Done())])
    assert take(ours) == ["two"]


def test_a_file_that_is_written_anew_in_its_place_is_read_anew(
    tmp_path: Path, ours: FileStore, clock: ManualClock
) -> None:
    put(tmp_path, "one", targetConsumerId="alice")
    assert ours.counts("q")[State.READY] == 1
    (tmp_path / "q/ready/task.json").write_text(json.dumps({"messageId": "two", "targetConsumerId": "bob"}))
    assert take(ours, "alice") == [] and take(ours, "bob") == ["two"]


def test_what_was_missed_when_too_much_happened_is_seen_by_the_files(
    tmp_path: Path, ours: FileStore, others: FileStore
) -> None:
    put(tmp_path, "one", targetConsumerId="alice")
    assert ours.counts("q")[State.READY] == 1
    do_one(others, "alice", removed=True)
    put(tmp_path, "two", targetConsumerId="bob")
    known = ours._root.find("q").index  # type: ignore[union-attr]  # it is there
    ours._root.feed.drain()  # type: ignore[union-attr]  # it is there
    known.pending.clear()  # type: ignore[union-attr]  # as when the system has no room for more events
    known.stale = True  # type: ignore[union-attr]
    assert take(ours, "alice") == [] and take(ours, "bob") == ["two"]


def test_two_files_of_one_name_are_both_served(tmp_path: Path, ours: FileStore, others: FileStore) -> None:
    put(tmp_path, "one")
    assert ours.counts("q")[State.READY] == 1
    (lease,) = others.lease("q", 1, 60.0)
    put(tmp_path, "two")
    assert ours.counts("q")[State.READY] == 1
    others.settle([Settlement(lease.receipt, Retry())])
    assert sorted(take(ours)) == ["one", "two"]


def lease_one(store: FileStore, place: Path, id: str) -> Lease:
    put(place, id)
    (lease,) = store.lease("q", 1, 60.0)
    return lease


def lease_two_of_a_name(store: FileStore, place: Path) -> list[Lease]:
    """Lease two files of one name, both for the first time, with one token."""
    given_back = lease_one(store, place, "one")
    store.settle([Settlement(given_back.receipt, Retry(counted=False))])
    put(place, "two")
    leases = store.lease("q", 2, 60.0)
    assert sorted(lease.receipt.id for lease in leases) == ["one", "two"]
    return leases


def test_dead_letters_of_one_name_are_both_revived(tmp_path: Path, ours: FileStore) -> None:
    for id in ("one", "two"):
        ours.settle([Settlement(lease_one(ours, tmp_path, id).receipt, Dead(Failure("NO")))])
    assert ours.revive("q", ["one", "two"]) == ["one", "two"]
    assert ours.counts("q")[State.READY] == 2 and sorted(take(ours)) == ["one", "two"]


def test_lapsed_leases_of_one_name_are_both_judged(tmp_path: Path, ours: FileStore, clock: ManualClock) -> None:
    for id in ("one", "two"):
        lease_one(ours, tmp_path, id)
    clock.advance(61)
    lapsed = ours.expired("q", 10)
    assert sorted(lease.receipt.id for lease in lapsed) == ["one", "two"]
    outcomes = ours.settle([Settlement(lease.receipt, Retry()) for lease in lapsed])
    assert outcomes == [Outcome.APPLIED] * 2 and sorted(take(ours)) == ["one", "two"]


@pytest.mark.parametrize("then", [(), (Draft("other", Message(id="then", body=1)),)])
@pytest.mark.parametrize(
    ("verdict", "state"), [(Retry(), State.READY), (Dead(Failure("NO")), State.DEAD), (Done(), State.DONE)]
)
def test_verdicts_for_two_files_of_one_name_keep_both(
    tmp_path: Path, ours: FileStore, verdict: Verdict, state: State, then: tuple[Draft, ...]
) -> None:
    leases = lease_two_of_a_name(ours, tmp_path)
    assert ours.extend([lease.receipt for lease in leases], 90.0) == [Outcome.APPLIED] * 2
    settlements = [Settlement(lease.receipt, verdict._replace(then=then)) for lease in leases]
    assert ours.settle(settlements) == [Outcome.APPLIED] * 2
    assert sorted(entry.id for entry in ours.browse("q", state)) == ["one", "two"]


def test_two_files_of_one_name_are_both_cancelled(tmp_path: Path, ours: FileStore) -> None:
    for id in ("one", "two"):
        put(tmp_path, id)
        assert ours.cancel("q", [id]) == [id]
    assert sorted(entry.id for entry in ours.browse("q", State.DONE)) == ["one", "two"]


def test_a_name_that_waits_again_is_not_taken_for_the_file_in_flight(
    tmp_path: Path, ours: FileStore, others: FileStore
) -> None:
    held = lease_one(others, tmp_path, "one")
    put(tmp_path, "two")
    assert ours.counts("q")[State.READY] == 1
    found = ours.find("q", "one")
    assert found is not None and found.state is State.INFLIGHT
    assert ours.extend([held.receipt], 90.0) == [Outcome.APPLIED]
    assert ours.cancel("q", ["two"], inflight=True) == ["two"]
    assert others.settle([Settlement(held.receipt, Done())]) == [Outcome.APPLIED]


def test_what_is_still_the_same_is_not_read_again(
    tmp_path: Path, ours: FileStore, others: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(5):
        put(tmp_path, f"m{n}", f"{n}.json")
    assert ours.counts("q")[State.READY] == 5
    opened: list[str] = []
    whole = filesystem.read_whole

    def read_whole(path: str) -> tuple[bytes, float]:
        opened.append(path)
        return whole(path)

    monkeypatch.setattr(read, "read_whole", read_whole)
    monkeypatch.setattr(foreign, "read_whole", read_whole)
    do_one(others)
    opened.clear()
    ours._root.let_go()
    assert ours.counts("q")[State.READY] == 4 and opened == []


def test_who_only_looks_keeps_little_of_what_has_gone(
    tmp_path: Path, others: FileStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "_ARRIVALS", 20)
    with closing(FileStore(tmp_path, clock=clock, layout=LAYOUT)) as looking:
        for n in range(100):
            put(tmp_path, f"m{n}", f"{n}.json")
            assert looking.counts("q")[State.READY] == 1
            do_one(others)
        known = looking._root.find("q").index  # type: ignore[union-attr]  # it is there
        assert len(known.orders) <= 25 and len(known._anyones) <= 25  # type: ignore[union-attr]


KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({}, {}),
    "groups": ({"group": "g1"}, {"group": "g2"}),
    "one group": ({"group": "g"}, {}),
    "targets": ({"priority": 1, "targetConsumerId": "alice"}, {"priority": 9, "targetConsumerId": "bob"}),
}


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path: Path, ours: FileStore) -> list[Lease]:
    """Two files of one name, leased by one handle as they come."""
    leases = []
    for id, document in zip(("one", "two"), KINDS[request.param], strict=True):
        put(tmp_path, id, **document)
        leases += take_all(ours)
    assert [lease.receipt.id for lease in leases] == ["one", "two"]
    return leases


def take_all(store: FileStore) -> list[Lease]:
    """Lease one after the other, for whomever they are."""
    asked = [store.lease("q", 1, 60.0, consumer=consumer) for consumer in ("alice", "bob") * 3]
    return [lease for leases in asked for lease in leases]


def ids(leases: list[Lease]) -> list[str]:
    return sorted(lease.receipt.id for lease in leases)


@pytest.mark.parametrize("delay", [0.0, 5.0])
def test_two_files_of_one_name_that_come_back_are_both_served(
    pair: list[Lease], ours: FileStore, clock: ManualClock, delay: float
) -> None:
    for _ in range(3):
        assert ours.settle([Settlement(lease.receipt, Retry(delay)) for lease in pair]) == [Outcome.APPLIED] * 2
        assert not delay or take_all(ours) == []
        clock.advance(delay)
        assert ids(pair := take_all(ours)) == ["one", "two"]


def test_two_files_of_one_name_come_back_one_after_the_other(pair: list[Lease], ours: FileStore) -> None:
    one, two = pair
    ours.settle([Settlement(one.receipt, Retry())])
    (again,) = take_all(ours)
    assert again.receipt.id == "one"
    ours.settle([Settlement(two.receipt, Retry())])
    ours.settle([Settlement(again.receipt, Retry())])
    assert ids(take_all(ours)) == ["one", "two"]


def test_two_revived_files_of_one_name_are_both_served(pair: list[Lease], ours: FileStore) -> None:
    ours.settle([Settlement(lease.receipt, Dead(Failure("NO"))) for lease in pair])
    assert ours.revive("q", ["one", "two"]) == ["one", "two"]
    assert ids(take_all(ours)) == ["one", "two"]


def test_of_two_files_of_one_name_one_is_cancelled(pair: list[Lease], ours: FileStore) -> None:
    ours.settle([Settlement(lease.receipt, Retry()) for lease in pair])
    assert ours.cancel("q", ["one"]) == ["one"]
    assert ids(take_all(ours)) == ["two"]


def test_of_two_files_of_one_name_one_is_taken_by_another_process(
    pair: list[Lease], ours: FileStore, others: FileStore
) -> None:
    ours.settle([Settlement(lease.receipt, Retry()) for lease in pair])
    assert ours.counts("q")[State.READY] == 2
    first, *_ = others.lease("q", 1, 60.0, consumer="alice")
    (second,) = take_all(ours)
    others.settle([Settlement(first.receipt, Retry())])
    ours.settle([Settlement(second.receipt, Retry())])
    assert ids(take_all(ours)) == ["one", "two"]


def test_two_files_of_one_name_each_expire_in_their_time(tmp_path: Path, ours: FileStore, clock: ManualClock) -> None:
    leases = []
    for id, seconds in (("one", 10), ("two", 20)):
        put(tmp_path, id, group=id, expiredAt=int((clock.now() + seconds) * 1000))
        leases += take_all(ours)
    ours.settle([Settlement(lease.receipt, Retry()) for lease in leases])
    assert ours.expired("q", 10) == []
    clock.advance(11)
    (over,) = ours.expired("q", 10)
    assert over.receipt.id == "one" and ids(take_all(ours)) == ["two"]


def test_files_of_one_name_that_come_back_are_not_read_again_to_be_placed(
    pair: list[Lease], ours: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "read_whole", None)
    monkeypatch.setattr(index, "learn", None)
    ours.settle([Settlement(lease.receipt, Retry()) for lease in pair])
    assert ids(take_all(ours)) == ["one", "two"]


@pytest.mark.parametrize("moves", [1, 2])
def test_a_file_that_got_the_inode_of_another_goes_to_whom_it_is_for(
    tmp_path: Path, ours: FileStore, others: FileStore, moves: int
) -> None:
    put(tmp_path, "one", targetConsumerId="alice")
    assert ours.counts("q")[State.READY] == 1 and take(ours, "zoe") == []
    do_one(others, "alice")
    (done,) = (tmp_path / "q/done").iterdir()
    os.link(done, tmp_path / "draft")  # a file that is written to keeps its inode, as one that gets a free inode
    assert others.purge("q", State.DONE) == 1
    put(tmp_path, "two", targetConsumerId="bobby")  # as large as the other
    for _ in range(moves):
        (lease,) = others.lease("q", 1, 60.0, consumer="bobby")
        others.settle([Settlement(lease.receipt, Retry())])
    assert take(ours, "alice") == [] and take(ours, "bobby") == ["two"]


def test_little_is_kept_of_messages_that_were_extended_or_ran_out(
    tmp_path: Path, ours: FileStore, clock: ManualClock
) -> None:
    for number in range(30):
        put(tmp_path, f"m{number}", f"{number}.json")
        (lease,) = ours.lease("q", 1, 60.0)
        assert ours.extend([lease.receipt], 90.0) == [Outcome.APPLIED]
        if number % 2:
            clock.advance(100)
            (lease,) = ours.expired("q", 1)
        assert ours.settle([Settlement(lease.receipt, Done() if number % 3 else Dead(Failure("NO")))]) == [
            Outcome.APPLIED
        ]
        ours.purge("q", State.DONE)
        ours.purge("q", State.DEAD)
    known = ours._root.find("q").index  # type: ignore[union-attr]  # it is there
    assert len(known.orders) == 0  # type: ignore[union-attr]


def test_a_file_that_came_back_is_not_read_again(
    tmp_path: Path, ours: FileStore, others: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "one", priority=3)
    (lease,) = others.lease("q", 1, 60.0)
    others.settle([Settlement(lease.receipt, Retry())])
    opened: list[str] = []

    def noted(path: str) -> tuple[bytes, float]:
        opened.append(path)
        return whole(path)

    whole = filesystem.read_whole
    for module in (read, foreign):
        monkeypatch.setattr(module, "read_whole", noted)
    assert ours.counts("q")[State.READY] == 1 and opened == []
    assert take(ours) == ["one"]


@pytest.mark.parametrize("end", ["cancelled", "purged"])
def test_the_next_of_a_group_follows_one_that_leaves_the_waiting_ones(
    tmp_path: Path, ours: FileStore, end: str
) -> None:
    put(tmp_path, "zero", "0.json", group="g")
    assert take(ours) == ["zero"]  # from here on the queue is watched for files that leave
    ours.cancel("q", ["zero"], inflight=True)
    put(tmp_path, "one", "1.json", group="g", createdAt=1000)
    put(tmp_path, "two", "2.json", group="g", createdAt=2000)
    assert ours.counts("q")[State.READY] == 2
    if end == "cancelled":
        assert ours.cancel("q", ["one"]) == ["one"]
    else:
        assert ours.purge("q", State.READY, ids=["one"]) == 1
    assert take(ours) == ["two"]


def test_a_copy_is_no_message_whoever_lists_it_first(tmp_path: Path, ours: FileStore) -> None:
    put(tmp_path, "one", "one.json")
    do_one(ours, removed=True)
    ours.publish([Draft("q", Message("first", 1, unique="k"))])
    put(tmp_path, "one", "again.json")
    (answer,) = ours.publish([Draft("q", Message("second", 1, unique="k"))])  # asks which messages are live
    assert answer.id == "first" and answer.duplicate
    assert take(ours) == ["first"]


def test_the_next_file_of_a_name_has_its_own_unique_key(tmp_path: Path, ours: FileStore, others: FileStore) -> None:
    put(tmp_path, "one", uniqueKey="k1")
    assert ours.counts("q")[State.READY] == others.counts("q")[State.READY] == 1
    do_one(others, removed=True)
    put(tmp_path, "two", uniqueKey="k2")
    assert others.counts("q")[State.READY] == 1
    answers = ours.publish([Draft("q", Message(id, 1, unique=key)) for id, key in (("three", "k2"), ("four", "k1"))])
    assert [(answer.id, answer.duplicate) for answer in answers] == [("two", True), ("four", False)]


def test_two_files_that_come_back_under_one_name_both_stay(tmp_path: Path, ours: FileStore, clock: ManualClock) -> None:
    put(tmp_path, "one")
    (lease,) = ours.lease("q", 1, 60.0)
    ours.settle([Settlement(lease.receipt, Retry(counted=False))])
    put(tmp_path, "two")
    one, two = ours.lease("q", 2, 60.0)
    ours.settle([Settlement(one.receipt, Retry(5.0))])
    clock.advance(5)
    ours.settle([Settlement(two.receipt, Retry())])  # at the instant at which the other comes due
    assert ours.counts("q")[State.READY] == 2
    assert sorted(take(ours)) == ["one", "two"]


def _forget_order(path: Path) -> None:
    os.removexattr(path, "user.pabal.order")


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("key", "back"), [("unique", "revived"), ("dedup_key", "revived"), ("dedup_key", "given back")]
)
def test_a_message_that_comes_back_is_no_duplicate_of_a_later_one_of_its_key(
    tmp_path: Path, ours: FileStore, others: FileStore, clock: ManualClock, key: str, back: str, known: bool
) -> None:
    one, two = (replace(Message(id, 1), **{key: "k"}) for id in ("one", "two"))
    ours.publish([Draft("q", one)])
    (lease,) = ours.lease("q", 1, 5 * 86400.0)
    if back == "revived":
        ours.settle([Settlement(lease.receipt, Dead(Failure("NO")))])
    clock.advance(3 * 86400)
    (answer,) = ours.publish([Draft("q", two)])
    assert not answer.duplicate
    if not known:
        (file,) = (tmp_path / "q" / ("dead" if back == "revived" else "inflight")).glob("*.json")
        _forget_order(file)
    if back == "revived":
        assert ours.revive("q", ["one"]) == ["one"]
    else:
        ours.settle([Settlement(lease.receipt, Retry(counted=False))])
    assert sorted(take(others)) == ["one", "two"]


def test_a_file_that_is_moved_to_another_queue_is_claimed_there(tmp_path: Path, ours: FileStore) -> None:
    ours.configure("r", {})
    put(tmp_path, "one", "one.json", uniqueKey="k")
    assert ours.counts("q")[State.READY] == 1
    os.rename(tmp_path / "q/ready/one.json", tmp_path / "r/ready/one.json")
    assert ours.counts("r")[State.READY] == 1
    (answer,) = ours.publish([Draft("r", Message("two", 1, unique="k"))])
    assert answer.id == "one" and answer.duplicate


def test_a_file_that_gets_another_stem_has_another_id(tmp_path: Path, ours: FileStore, others: FileStore) -> None:
    (tmp_path / "draft").write_text(json.dumps({"payload": 1}))
    os.rename(tmp_path / "draft", tmp_path / "q/ready/a.json")
    assert ours.counts("q")[State.READY] == 1
    os.rename(tmp_path / "q/ready/a.json", tmp_path / "q/ready/b.json")
    (lease,) = ours.lease("q", 1, 60.0)
    assert lease.receipt.id == "b" and others.find("q", "b") is not None
    assert others.settle([Settlement(lease.receipt, Done())]) == [Outcome.APPLIED]


def test_the_first_of_a_group_stays_first_within_a_millisecond(ours: FileStore, clock: ManualClock) -> None:
    at = clock.now()
    ours.publish([Draft("q", Message(id, 1, group="g", created_at=at)) for id in ("one", "two")])
    (lease,) = ours.lease("q", 1, 60.0)
    clock.advance(1)
    ours.settle([Settlement(lease.receipt, Retry())])
    assert take(ours) == ["one"]


def test_the_order_of_a_draft_is_that_of_its_document(ours: FileStore, clock: ManualClock) -> None:
    root, message = ours._root, Message("one", 1, group="g", created_at=int(clock.now()) + 0.6459987)
    assert order_of(root, message) == order_of(root, root.codec.decode(root.codec.encode(message, queue="q")))


def _settle_and_die(
    store: FileStore, leases: Sequence[Lease], verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settle with a follow-up each, and stop after the commit point."""

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    then = [verdict._replace(then=(Draft("other", Message(f"after-{lease.receipt.id}", 1)),)) for lease in leases]
    with monkeypatch.context() as patch:
        patch.setattr(settle, "complete", die)
        with pytest.raises(KeyboardInterrupt):
            store.settle([Settlement(lease.receipt, one) for lease, one in zip(leases, then, strict=True)])


def test_the_next_of_a_group_waits_for_a_settlement_that_nobody_saw_begin(
    tmp_path: Path, ours: FileStore, others: FileStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish(id: str) -> None:
        ours.publish([Draft("q", Message(id, 1, group="g", created_at=clock.now()))])
        clock.advance(1)

    publish("zero")
    (zero,) = others.lease("q", 1, 60.0)  # from here on they watch for files that leave
    for id in ("one", "two"):
        publish(id)
    assert take(others) == []
    others.settle([Settlement(zero.receipt, Done())])
    (one,) = ours.lease("q", 1, 60.0)

    _settle_and_die(ours, [one], Retry(), monkeypatch)
    assert one.receipt.id == "one" and take(others, limit=1) == ["one"]


def test_a_retry_that_comes_due_is_not_read_again(
    tmp_path: Path, ours: FileStore, others: FileStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "one", priority=3)
    (lease,) = others.lease("q", 1, 60.0)
    others.settle([Settlement(lease.receipt, Retry(5.0))])
    clock.advance(6)
    assert others.counts("q")[State.READY] == 1  # it is moved to the ready ones
    for module in (read, foreign):
        monkeypatch.setattr(module, "read_whole", None)
    assert ours.counts("q")[State.READY] == 1


def test_a_file_whose_name_is_mended_is_no_duplicate_of_one_that_has_that_name(tmp_path: Path, ours: FileStore) -> None:
    for name in ("a-1.json", "a~1.json"):
        (tmp_path / "draft").write_text(json.dumps({"payload": name}))
        os.rename(tmp_path / "draft", tmp_path / "q/ready" / name)
    assert sorted(str(lease.message.body) for lease in ours.lease("q", 10, 60.0)) == ["a-1.json", "a~1.json"]


@pytest.mark.parametrize("verdict", [Done(), Retry()])
@pytest.mark.parametrize("how", ["alone", "extended", "beside another"])
def test_a_group_goes_on_after_a_settlement_that_was_seen_unfinished(
    ours: FileStore, others: FileStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, how: str, verdict: Verdict
) -> None:
    for id, group in (("g1", "g"), ("x", ""), ("g2", "g")):
        if group or how == "beside another":
            ours.publish([Draft("q", Message(id, 1, group=group, created_at=clock.now()))])
            clock.advance(1)
    leases = ours.lease("q", 2, 60.0)
    assert take(others) == []
    if how == "extended":
        ours.extend([lease.receipt for lease in leases], 90.0)
    _settle_and_die(ours, leases, verdict, monkeypatch)
    taken = [id for _ in range(4) for id in do_all(others)]  # who gets nothing finishes the settlement
    assert [id for id in taken if id != "x"] == (["g2"] if verdict == Done() else ["g1", "g2"])


def do_all(store: FileStore) -> list[str]:
    leases = store.lease("q", 10, 60.0)
    store.settle([Settlement(lease.receipt, Done()) for lease in leases])
    return [lease.receipt.id for lease in leases]


def test_a_file_whose_name_a_done_message_had_is_renamed(tmp_path: Path, ours: FileStore) -> None:
    put(tmp_path, "one")
    assert do_all(ours) == ["one"]
    put(tmp_path, "two")
    assert ours.counts("q")[State.READY] == 1
    os.rename(tmp_path / "q/ready/task.json", tmp_path / "q/ready/moved.json")
    assert take(ours) == ["two"]


def test_a_file_is_renamed_after_its_copy_was_purged(tmp_path: Path, ours: FileStore) -> None:
    put(tmp_path, "one")
    assert ours.counts("q")[State.READY] == 1
    put(tmp_path, "one", "copy.json")
    assert ours.counts("q")[State.READY] == 1 and ours.purge("q", State.DONE) == 1
    os.rename(tmp_path / "q/ready/task.json", tmp_path / "q/ready/moved.json")
    assert take(ours) == ["one"]


def test_the_next_file_of_a_name_takes_the_key_of_the_first(tmp_path: Path, ours: FileStore) -> None:
    put(tmp_path, "one", uniqueKey="k")
    assert do_all(ours) == ["one"]
    put(tmp_path, "two", uniqueKey="k")
    assert ours.counts("q")[State.READY] == 1
    (answer,) = ours.publish([Draft("q", Message("three", 1, unique="k"))])
    assert answer.id == "two" and answer.duplicate


def test_a_file_that_is_read_again_does_not_wait_for_itself(
    tmp_path: Path, ours: FileStore, others: FileStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOTSUP, "no attributes here")

    monkeypatch.setattr(os, "setxattr", refuse)
    put(tmp_path, "zero", group="z")
    assert do_all(ours) == ["zero"]
    put(tmp_path, "one")
    assert ours.counts("q")[State.READY] == 1
    assert do_all(others) == ["one"]
    ahead = datetime.fromtimestamp(clock.now() + 0.001, UTC).isoformat()
    put(tmp_path, "two", group="g", timestamp=ahead)
    assert ours.counts("q")[State.READY] == 1
    clock.advance(0.001)  # now the entry that the first file of the name had is met, and the file is read again
    put(tmp_path, "three", "other.json", group="g", timestamp=ahead)
    assert sorted(id for _ in range(3) for id in do_all(ours)) == ["three", "two"]


def test_of_a_message_and_its_copy_that_are_judged_together_one_stays(tmp_path: Path, ours: FileStore) -> None:
    ours.publish([Draft("q", Message("one", 1, unique="k"))])
    ready = tmp_path / "q/ready"
    (ready / "copy.json").write_bytes((ready / "one.json").read_bytes())
    os.rename(ready / "one.json", ready / "moved.json")
    assert ours.counts("q")[State.READY] == 1 and take(ours) == ["one"]


@pytest.mark.parametrize("native", [True, False])
def test_of_files_with_one_used_key_that_are_judged_together_one_stays(tmp_path: Path, native: bool) -> None:
    with closing(FileStore(tmp_path, clock=ManualClock(), layout=NativeLayout(native=native))) as store:
        store.publish([Draft("q", Message("zero", 1, unique="k"))])
        assert do_all(store) == ["zero"]
        for id in ("one", "two", "three"):
            put(tmp_path, id, f"{id}.json", uniqueKey="k")
        assert store.counts("q")[State.READY] == 1 and len(take(store)) == 1


def test_a_renamed_file_is_judged_together_with_the_next_of_its_name(tmp_path: Path, ours: FileStore) -> None:
    put(tmp_path, "zero", "zero.json", uniqueKey="k")
    assert do_all(ours) == ["zero"]
    put(tmp_path, "one")
    assert ours.counts("q")[State.READY] == 1
    os.rename(tmp_path / "q/ready/task.json", tmp_path / "q/ready/z.json")
    put(tmp_path, "two", uniqueKey="k")  # a key that was used is judged, as a name that was
    assert sorted(take(ours)) == ["one", "two"]
