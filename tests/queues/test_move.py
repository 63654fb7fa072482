"""A queue moved from one kind of store to another is the same queue."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pabal.clock import SystemClock
from pabal.errors import InvalidInput, StoreFailed, StoreRefused
from pabal.mailbox.store import MailboxStore
from pabal.message import replace
from pabal.queues.move import PAUSE_SEEN_SECONDS, move
from pabal.queues.queue import Queue
from pabal.queues.store_proxy import StoreProxy
from pabal.store import (
    Dead,
    Done,
    Entry,
    KnownSettings,
    Movable,
    Outcome,
    Retry,
    Settlement,
    State,
    Store,
    Terms,
    Transactional,
)
from pabal.stores.files import FileStore
from pabal.stores.layout import NativeLayout
from pabal.stores.postgres import PostgresStore
from pabal.testing import ManualClock
from pabal.testing.store_place import draft
from tests.mailbox.room import Room
from tests.openers import OPENERS
from tests.queues.moving import FAILED, POLICY, QUEUE, done_ids, fill, order, survey
from tests.services.postgres import PostgresServer

KINDS = ("sqlite", "files", "hybrid", "postgres")
Open = Callable[[str, str], Store]


@pytest.fixture(autouse=True)
def nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a source has no consumers, none needs time to hear that it is paused."""
    monkeypatch.setattr("pabal.queues.move.PAUSE_SEEN_SECONDS", 0.0)


@pytest.fixture
def opened(postgres: PostgresServer, tmp_path: Path) -> Iterator[Open]:
    """Open a store of a kind under a name; it is closed, or dropped, after the test."""
    with ExitStack() as stack:

        def open(kind: str, name: str) -> Store:
            if kind == "postgres":
                store: Store = PostgresStore(postgres.url, schema=stack.enter_context(postgres.schema()))
            else:
                (tmp_path / name).mkdir()
                store = OPENERS[kind].open(tmp_path / name, SystemClock())
            stack.callback(store.close)
            return store

        yield open


@pytest.mark.parametrize(("old", "new"), [pair for pair in product(KINDS, KINDS) if pair[0] != "hybrid"])
def test_a_moved_queue_is_the_same_queue(opened: Open, old: str, new: str) -> None:
    source, target = opened(old, "old"), opened(new, "new")
    fill(source)
    before, done = survey(source), done_ids(source)
    moved = move(source, target, QUEUE)
    assert survey(target) == before and survey(source) == {}
    assert (moved.ready, moved.delayed, moved.dead, moved.left) == (14, 4, 3, 0)
    assert done_ids(target) == done
    assert target.settings(QUEUE) == POLICY
    assert source.settings(QUEUE) == {**POLICY, "paused": True}


@pytest.mark.parametrize("new", KINDS)
def test_a_moved_queue_is_delivered_in_the_same_order(opened: Open, new: str) -> None:
    source, twin, target = opened("sqlite", "old"), opened("sqlite", "twin"), opened(new, "new")
    for store in (source, twin):
        store.publish([draft(n, id=f"m-{n:03d}", priority=n % 3, group=("", "g", "h")[n % 3]) for n in range(40)])
    move(source, target, QUEUE)
    assert order(target) == order(twin)


class Died(BaseException):
    """In place of a kill, after a number of renames."""


@pytest.mark.parametrize(("old", "new"), [("files", "files"), ("sqlite", "files"), ("files", "sqlite")])
def test_a_move_that_dies_at_any_rename_keeps_the_order_of_a_group(
    old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, died, left, rename = [f"m-{n}" for n in range(5)], 1, 0, os.rename

    def renamed(source: str, target: str) -> None:
        nonlocal left
        if left == 0:
            raise Died
        left -= 1
        rename(source, target)

    while died:
        place = tmp_path / str(died)
        with closing(OPENERS[old].open(made(place / "old"), SystemClock())) as source:
            source.publish([draft(n, id=id, group="g") for n, id in enumerate(ids)])
        with monkeypatch.context() as patch, ExitStack() as stack:
            source = stack.enter_context(closing(OPENERS[old].open(place / "old", SystemClock())))
            target = stack.enter_context(closing(OPENERS[new].open(made(place / "new"), SystemClock())))
            left = died
            patch.setattr(os, "rename", renamed)
            try:
                move(source, target, QUEUE)
            except Died:
                died += 1
            else:
                died = 0
        with (
            closing(OPENERS[old].open(place / "old", SystemClock())) as source,
            closing(OPENERS[new].open(place / "new", SystemClock())) as target,
        ):
            there = sorted(survey(target))
            assert there == ids[: len(there)]
            move(source, target, QUEUE)
            assert order(target) == ids and survey(source) == {}


def made(place: Path) -> Path:
    place.mkdir(parents=True)
    return place


@pytest.mark.parametrize(("old", "new"), [*product(("sqlite", "files"), ("sqlite", "files")), ("sqlite", "postgres")])
def test_members_of_a_group_that_come_back_come_before_those_that_followed(opened: Open, old: str, new: str) -> None:
    here, there = opened(old, "old"), opened(new, "new")
    for n in range(3):
        there.publish([draft(n, id=f"m-{n}", group="g")])
    move(there, here, QUEUE)
    here.publish([draft(3, id="m-3", group="g")])
    carried = Carried(there)
    move(here, carried, QUEUE)
    assert carried.ids == [f"m-{n}" for n in range(4)] == order(there)


class Carried(StoreProxy):
    """Notes the ids of the waiting messages that a store takes in, in order."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.ids: list[str] = []

    def carry(self, queue: str, entries: Sequence[Entry], *, window: float = 300.0) -> list[str]:
        assert isinstance(self._store, Movable)
        taken = self._store.carry(queue, entries, window=window)
        self.ids += [entry.id for entry in entries if entry.id in taken and entry.state is State.READY]
        return taken


@pytest.mark.parametrize("new", KINDS)
def test_moving_again_changes_nothing(opened: Open, new: str) -> None:
    source, target = opened("sqlite", "old"), opened(new, "new")
    fill(source)
    move(source, target, QUEUE)
    before = survey(target)
    again = move(source, target, QUEUE)
    assert (again.ready, again.delayed, again.dead, again.left) == (0, 0, 0, 0)
    assert survey(target) == before and target.settings(QUEUE) == POLICY


@pytest.mark.parametrize(("old", "new"), [("sqlite", "files"), ("files", "postgres"), ("hybrid", "sqlite")])
def test_a_queue_that_is_moved_back_and_away_again_is_the_same_queue(opened: Open, old: str, new: str) -> None:
    here, there = opened(old, "old"), opened(new, "new")
    fill(here)
    before = survey(here)
    for source, target in ((here, there), (there, here), (here, there)):
        move(source, target, QUEUE)
        assert survey(target) == before and survey(source) == {}


@pytest.mark.parametrize("kind", ["sqlite", "files", "hybrid"])
def test_a_queue_moved_onto_itself_under_another_name_stays_as_it_is(opened: Open, tmp_path: Path, kind: str) -> None:
    class Untouched(StoreProxy):
        def configure(self, queue: str, settings: Mapping[str, Any], *, known: KnownSettings = ...) -> bool:
            raise AssertionError("whoever is killed after this leaves other settings")

    source = opened(kind, "old")
    (tmp_path / "alias").symlink_to(tmp_path / "old")
    fill(source)
    before, done = survey(source), done_ids(source)
    with closing(OPENERS[kind].open(tmp_path / "alias", SystemClock())) as same:
        with pytest.raises(InvalidInput, match="the same store"):
            move(Untouched(source), same, QUEUE)
    assert survey(source) == before and done_ids(source) == done and source.settings(QUEUE) == POLICY


def test_a_queue_in_a_database_moved_onto_itself_stays_as_it_is(postgres: PostgresServer) -> None:
    with (
        postgres.schema() as schema,
        closing(PostgresStore(postgres.url, schema=schema)) as source,
        closing(PostgresStore(postgres.url, schema=schema)) as same,
    ):
        fill(source)
        before, done = survey(source), done_ids(source)
        with pytest.raises(InvalidInput, match="the same store"):
            move(source, same, QUEUE)
        assert survey(source) == before and done_ids(source) == done and source.settings(QUEUE) == POLICY


def test_a_queue_moved_from_a_mailbox_to_the_store_behind_it_stays_as_it_is(opened: Open, tmp_path: Path) -> None:
    store = opened("sqlite", "old")
    fill(store)
    before = survey(store)
    room = Room(tmp_path / "ipc", OPENERS["sqlite"].open(tmp_path / "old", SystemClock())).serve()
    with closing(room), closing(MailboxStore(room.client(timeout=10.0))) as source:
        with pytest.raises(InvalidInput, match="the same store"):
            move(source, store, QUEUE)
    assert survey(store) == before


@pytest.mark.parametrize("new", KINDS)
def test_messages_that_shared_a_dedup_key_after_its_window_are_all_moved(opened: Open, new: str) -> None:
    source, target = opened("sqlite", "old"), opened(new, "new")
    for n in range(3):
        source.publish([draft(n, id=f"m-{n}", dedup_key="daily", terms=Terms(dedup_window=0.0))])
    target.publish([draft("own", id="own", dedup_key="daily")])
    assert move(source, target, QUEUE).ready == 3
    assert set(survey(target)) == {"m-0", "m-1", "m-2", "own"}


@pytest.mark.parametrize("new", KINDS)
def test_a_moved_message_is_leased_with_the_failure_it_had(opened: Open, new: str) -> None:
    source, target = opened("sqlite", "old"), opened(new, "new")
    fill(source)
    move(source, target, QUEUE)
    found = {lease.receipt.id: lease.failure for lease in target.lease(QUEUE, 100, 60.0)}
    assert found["tried-00001"] == FAILED and found["group-00000"] is None


@pytest.mark.parametrize("new", KINDS)
def test_what_is_known_by_id_or_key_at_the_source_is_known_at_the_target(opened: Open, new: str) -> None:
    source, target = opened("sqlite", "old"), opened(new, "new")
    fill(source)
    move(source, target, QUEUE)
    again = [draft("x", id=id) for id in ("done-00000", "dead-00000", "tried-00000", "delayed-00000", "group-00000")]
    assert all(answer.duplicate for answer in target.publish([*again, draft("x", dedup_key="key 1")]))


@pytest.mark.parametrize(("old", "new"), [("sqlite", new) for new in KINDS] + [(old, "sqlite") for old in KINDS[1:]])
def test_a_revived_message_is_moved_with_no_time_to_live(opened: Open, old: str, new: str) -> None:
    source, target = opened(old, "old"), opened(new, "new")
    revive_all(source)
    before = survey(source)
    assert [message.expires_at for _, _, message, *_ in before.values()] == [None] * 3
    move(source, target, QUEUE)
    assert Queue(QUEUE, target).sweep() == 0 and survey(target) == before


def test_a_revived_message_is_moved_out_of_plain_files_with_no_time_to_live(opened: Open, tmp_path: Path) -> None:
    target = opened("sqlite", "new")
    with closing(FileStore(tmp_path / "old", layout=NativeLayout(native=False))) as source:
        revive_all(source)
        before = survey(source)
        move(source, target, QUEUE)
    assert [message.expires_at for _, _, message, *_ in survey(target).values()] == [None] * 3
    assert Queue(QUEUE, target).sweep() == 0 and survey(target) == before


def revive_all(store: Store) -> None:
    """Leave three messages that expired and were revived: one ready, one delayed, one dead again."""
    store.publish([draft(n, id=f"m-{n}", created_at=n + 1.0, expires_at=time.time() - 1.0) for n in range(3)])
    expired = store.expired(QUEUE, 10)
    store.settle([Settlement(lease.receipt, Dead(FAILED)) for lease in expired])
    assert len(store.revive(QUEUE, [lease.receipt.id for lease in expired])) == 3
    first, second = store.lease(QUEUE, 2, 60.0)
    store.settle([Settlement(first.receipt, Retry(3600.0, FAILED)), Settlement(second.receipt, Dead(FAILED))])


def test_what_a_consumer_holds_is_left_and_moved_when_it_comes_back(opened: Open) -> None:
    source, target = opened("sqlite", "old"), opened("postgres", "new")
    source.publish([draft(n, id=f"m-{n}") for n in range(3)])
    held = source.lease(QUEUE, 2, 60.0)
    assert move(source, target, QUEUE).left == 2
    source.settle([Settlement(held[0].receipt, Done())])
    source.extend([held[1].receipt], 0.05)
    moved = move(source, target, QUEUE, wait=20)
    assert (moved.ready, moved.delayed, moved.left) == (1, 0, 0) or (moved.ready, moved.delayed) == (0, 1)
    assert {id: kept[1] for id, kept in survey(target).items()} == {"m-1": 1, "m-2": 0}


def test_a_consumer_that_has_not_heard_of_the_pause_takes_nothing_of_a_group_that_is_on_its_way(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pabal.queues.move.PAUSE_SEEN_SECONDS", PAUSE_SEEN_SECONDS)
    source, target = opened("sqlite", "old"), opened("sqlite", "new")
    source.publish([draft(n, id=f"m-{n}", group="g") for n in range(100)])
    busy = Queue(QUEUE, source)
    assert not busy.paused  # and it believes so for a second
    with ThreadPoolExecutor(1) as pool:
        moved = pool.submit(move, source, target, QUEUE)
        while not moved.done():
            begun = target.counts(QUEUE).get(State.READY, 0) > 0
            for delivery in busy.lease():
                assert not begun, "the target has those before it"
                delivery.ack()
            time.sleep(0.001)
    moved.result()


def test_messages_published_during_the_move_come_with_the_next(opened: Open) -> None:
    source, target = opened("files", "old"), opened("postgres", "new")
    source.publish([draft(1, id="early")])
    move(source, target, QUEUE)
    source.publish([draft(2, id="late")])
    assert move(source, target, QUEUE).ready == 1
    assert set(survey(target)) == {"early", "late"}


def test_what_a_move_that_was_killed_holds_is_for_its_own_target_only(opened: Open) -> None:
    class Killed(StoreProxy):
        def settle(self, settlements: Sequence[Settlement], *, durable: bool = False) -> list[Outcome]:
            raise KeyboardInterrupt

    source, target, other = opened("sqlite", "old"), opened("sqlite", "new"), opened("sqlite", "other")
    source.publish([draft(n, id=f"m-{n}") for n in range(3)])
    with pytest.raises(KeyboardInterrupt):
        move(Killed(source), target, QUEUE)
    source.publish([draft(3, id="m-3")])
    assert move(source, other, QUEUE).left == 3 and set(survey(other)) == {"m-3"}
    assert move(source, target, QUEUE).left == 0 and set(survey(target)) == {"m-0", "m-1", "m-2"}


@pytest.mark.parametrize("new", ["sqlite", "files"])
def test_a_delayed_message_that_was_damaged_stays_where_it_is(opened: Open, tmp_path: Path, new: str) -> None:
    source, target = opened("files", "old"), opened(new, "new")
    source.publish([draft(1, id="damaged", delay=3600.0)])
    [path] = tmp_path.glob("old/spool/jobs/delayed/*")
    path.write_bytes(b"torn")
    assert move(source, target, QUEUE).left == 1
    assert source.browse(QUEUE, State.DELAYED)[0].data == b"torn" and survey(target) == {}


@pytest.mark.parametrize("new", ["sqlite", "files"])
def test_a_group_behind_a_delayed_message_is_moved_with_it_in_its_order(opened: Open, tmp_path: Path, new: str) -> None:
    source, clock = opened("sqlite", "old"), ManualClock()
    ids = [f"m-{n}" for n in range(6)]
    source.publish([draft(n, id=id, group="g", delay=0.0 if n % 2 else 3600.0) for n, id in enumerate(ids)])
    (tmp_path / "new").mkdir()
    with closing(OPENERS[new].open(tmp_path / "new", clock)) as target:
        moved = move(source, target, QUEUE)
        assert (moved.ready, moved.delayed, moved.left) == (3, 3, 0)
        assert target.lease(QUEUE, 10, 60.0) == []  # they still wait for the first
        clock.advance(3700)
        assert order(target) == ids


def test_a_group_whose_messages_do_not_tell_their_order_is_moved_all_the_same(opened: Open) -> None:
    source, target = opened("sqlite", "old"), opened("sqlite", "new")
    source.publish([draft(n, id=f"m-{9 - n}", group="g", delay=0.0 if n % 2 else 3600.0) for n in range(6)])
    assert move(source, target, QUEUE).left == 0 and len(survey(target)) == 6


def test_what_follows_in_its_group_on_what_a_consumer_holds_stays_with_it(opened: Open) -> None:
    source, target = opened("sqlite", "old"), opened("sqlite", "new")
    source.publish([draft(n, id=f"m-{n}", group="g", delay=n * 3600.0) for n in range(3)])
    [held] = source.lease(QUEUE, 10, 60.0)
    assert move(source, target, QUEUE).left == 3 and survey(target) == {}
    source.settle([Settlement(held.receipt, Done())])
    assert move(source, target, QUEUE).left == 0 and set(survey(target)) == {"m-1", "m-2"}


def test_messages_that_several_carry_at_once_are_there_once(opened: Open, tmp_path: Path) -> None:
    source, first = opened("sqlite", "old"), opened("files", "new")
    source.publish([draft(n) for n in range(100)])
    entries = source.browse(QUEUE, State.READY)
    with ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        others = [OPENERS["files"].open(tmp_path / "new", SystemClock()) for _ in range(3)]
        stores = [first, *(stack.enter_context(closing(other)) for other in others)]
        taken = [*pool.map(lambda store: store.carry(QUEUE, entries), stores)]
    assert sorted(sum(taken, [])) == sorted(entry.id for entry in entries)
    assert len(survey(first)) == 100


@pytest.mark.parametrize("kind", ["sqlite", "hybrid", "files", "postgres"])
def test_of_two_entries_of_one_id_the_first_is_taken_in(opened: Open, kind: str) -> None:
    source, target = opened("sqlite", "old"), opened(kind, "new")
    assert isinstance(target, Movable)
    source.publish([draft("first", id="m-1"), draft("second", id="m-2")])
    first, second = source.browse(QUEUE, State.READY)
    assert second.message is not None
    same = second._replace(id="m-1", message=replace(second.message, id="m-1"))
    assert target.carry(QUEUE, [first, same]) == ["m-1"]
    [found] = target.browse(QUEUE, State.READY)
    assert found.message is not None and found.message.body == "first"


def test_a_message_whose_dedup_key_is_the_id_of_another_lets_nobody_forget_that_one(opened: Open) -> None:
    source, target = opened("sqlite", "old"), opened("files", "new")
    assert isinstance(target, Movable)
    for known in (draft(1, id="m-1", dedup_key="m-2"), draft(2, id="m-2")):
        target.publish([known])
        target.settle([Settlement(lease.receipt, Done()) for lease in target.lease(QUEUE, 1, 60.0)])
        target.purge(QUEUE, State.DONE)
    source.publish([draft(1, id="m-1", dedup_key="m-2")])
    assert target.carry(QUEUE, source.browse(QUEUE, State.READY)) == ["m-1"]
    assert target.publish([draft("again", id="m-2")])[0].duplicate


def test_the_targets_own_settings_stay(opened: Open) -> None:
    source, target = opened("sqlite", "old"), opened("postgres", "new")
    fill(source)
    target.configure(QUEUE, {"visibilityTimeoutSec": 99.0})
    move(source, target, QUEUE)
    assert target.settings(QUEUE) == {"visibilityTimeoutSec": 99.0}


def test_a_store_that_cannot_take_messages_in_says_so(opened: Open) -> None:
    class Plain:
        pass

    source = opened("sqlite", "old")
    source.publish([draft(1)])
    with pytest.raises(StoreRefused, match="takes in no messages"):
        move(source, Plain(), QUEUE)  # type: ignore[arg-type]  # on purpose
    assert source.counts(QUEUE)[State.READY] == 1 and not isinstance(source, Transactional)


def test_a_reason_that_a_crash_left_without_its_message_is_no_message(opened: Open, tmp_path: Path) -> None:
    source, target = opened("sqlite", "old"), opened("files", "new")
    fill(source)
    dead = source.browse(QUEUE, State.DEAD)
    assert isinstance(target, Movable)
    target.carry(QUEUE, dead)
    lost = [path for path in tmp_path.glob("new/spool/jobs/dead/*") if path.suffix == ".json"]
    assert len(lost) == 3
    for path in lost:
        path.unlink()
    assert target.carry(QUEUE, dead) == [entry.id for entry in dead]
    assert target.carry(QUEUE, dead) == []
    assert {entry.id: entry.failure for entry in target.browse(QUEUE, State.DEAD)} == {
        entry.id: entry.failure for entry in dead
    }


@pytest.mark.parametrize("group", ["", "g"])
@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_a_message_comes_back_also_after_a_step_back_of_the_clock(tmp_path: Path, kind: str, group: str) -> None:
    clock = ManualClock()
    with ExitStack() as stack:
        here, there = (stack.enter_context(closing(_opened(kind, tmp_path / name, clock))) for name in ("a", "b"))
        here.publish([draft("m", id="m", group=group)])
        move(here, there, QUEUE, clock=clock, sleep=clock.advance)
        clock.advance(5)
        clock.step_wall(-3600)
        moved = move(there, here, QUEUE, clock=clock, sleep=clock.advance)
        assert (moved.ready, here.counts(QUEUE)[State.READY], there.counts(QUEUE).get(State.READY, 0)) == (1, 1, 0)


def test_what_the_target_does_not_take_in_stays_in_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    with (
        closing(_opened("files", tmp_path / "a", clock)) as here,
        closing(_opened("files", tmp_path / "b", clock)) as there,
    ):
        here.publish([draft("m", id="m")])
        move(here, there, QUEUE, clock=clock, sleep=clock.advance)
        monkeypatch.setattr(FileStore, "purge", lambda *args, **options: 0)
        with pytest.raises(StoreFailed, match="did not take in m"):
            move(there, here, QUEUE, clock=clock, sleep=clock.advance)
        monkeypatch.undo()
        assert [entry.id for entry in there.browse(QUEUE, State.INFLIGHT)] == ["m"]
        assert (
            move(there, here, QUEUE, clock=clock, sleep=clock.advance).ready == 1
            and len(here.lease(QUEUE, 2, 30.0)) == 1
        )


def _opened(kind: str, place: Path, clock: ManualClock) -> Store:
    place.mkdir(exist_ok=True)
    return OPENERS[kind].open(place, clock)
