"""A queue moved from one kind of store to another is the same queue."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import pytest

from pabal.clock import SystemClock
from pabal.errors import StoreRefused
from pabal.moving import move
from pabal.store import Done, Movable, Settlement, State, Store, Transactional
from pabal.stores.postgres import PostgresStore
from pabal.testing.store_place import draft
from tests.moving import POLICY, QUEUE, done_ids, fill, order, survey
from tests.openers import OPENERS
from tests.services.postgres import PostgresServer

KINDS = ("sqlite", "files", "hybrid", "postgres")
Open = Callable[[str, str], Store]


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


@pytest.mark.parametrize("new", KINDS)
def test_moving_again_changes_nothing(opened: Open, new: str) -> None:
    source, target = opened("sqlite", "old"), opened(new, "new")
    fill(source)
    move(source, target, QUEUE)
    before = survey(target)
    again = move(source, target, QUEUE)
    assert (again.ready, again.delayed, again.dead, again.left) == (0, 0, 0, 0)
    assert survey(target) == before and target.settings(QUEUE) == POLICY


@pytest.mark.parametrize("new", KINDS)
def test_what_is_known_by_id_or_key_at_the_source_is_known_at_the_target(opened: Open, new: str) -> None:
    source, target = opened("sqlite", "old"), opened(new, "new")
    fill(source)
    move(source, target, QUEUE)
    again = [draft("x", id=id) for id in ("done-00000", "dead-00000", "tried-00000", "delayed-00000", "group-00000")]
    assert all(answer.duplicate for answer in target.publish([*again, draft("x", dedup_key="key 1")]))


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


def test_messages_published_during_the_move_come_with_the_next(opened: Open) -> None:
    source, target = opened("files", "old"), opened("postgres", "new")
    source.publish([draft(1, id="early")])
    move(source, target, QUEUE)
    source.publish([draft(2, id="late")])
    assert move(source, target, QUEUE).ready == 1
    assert set(survey(target)) == {"early", "late"}


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
