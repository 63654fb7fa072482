"""Redrive to another queue, on every store: nothing is lost, nothing is there twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import pabal
from pabal.connect import Connection
from pabal.errors import InvalidInput, StoreFailed
from pabal.policy.policy import DeadLetterPolicy, Policy, RetryPolicy
from pabal.queues.queue import Queue
from pabal.queues.redrive import NOT_DEAD, NOT_READY, lots, redrive, send_back
from pabal.store import Entry, Movable, State
from pabal.testing import ManualClock
from tests.services.postgres import PostgresServer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["sqlite", "file", "hybrid", "postgres"])
def mq(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Connection]:
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        with (
            server.schema() as schema,
            pabal.connect(
                f"{server.url}{'&' if '?' in server.url else '?'}schema={schema}", consumer="tester"
            ) as found,
        ):
            yield found
    else:
        with pabal.connect(f"{request.param}:{tmp_path}/store", clock=clock, consumer="tester") as connection:
            yield connection


@pytest.fixture
def jobs(mq: Connection) -> Queue:
    queue = mq.queue("jobs")
    queue.create(Policy(retry=RetryPolicy(limit=1)))
    return queue


@pytest.fixture
def slow(mq: Connection) -> Queue:
    queue = mq.queue("slow")
    queue.create()
    return queue


def let_die(queue: Queue, body: Any = 1, **options: Any) -> str:
    id = queue.publish(body, **options).id
    [delivery] = queue.lease()
    delivery.nack(reason="no")
    return id


def state_of(queue: Queue, id: str) -> State | None:
    entry = queue.find(id)
    return None if entry is None else entry.state


class KilledBetween(Queue):
    """A queue whose process ends before a dead message is removed."""

    @property
    def store(self) -> Any:
        return _NoPurge(self._own_store)

    @store.setter
    def store(self, store: Any) -> None:
        self._own_store = store


class _NoPurge:
    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def carry(self, queue: str, entries: Sequence[Entry], *, window: float = 300.0) -> list[str]:
        return list(self._store.carry(queue, entries, window=window))

    def purge(self, *args: Any, **more: Any) -> int:
        raise StoreFailed("killed")


def killed(queue: Queue, id: str, target: Queue) -> None:
    with pytest.raises(StoreFailed, match="killed"):
        redrive(KilledBetween(queue.name, queue.store), [id], target)


def test_a_dead_message_goes_on_in_another_queue_with_its_id_and_fields(jobs: Queue, slow: Queue) -> None:
    fields = {"type": "t", "priority": 5, "headers": {"h": "값"}, "thread_id": "th", "dedup_key": "d", "ttl": 600}
    id = let_die(jobs, {"text": "日本語"}, **fields)
    other = let_die(jobs)
    entry = jobs.find(id)
    assert entry is not None and entry.message is not None and entry.message.expires_at is not None
    assert redrive(jobs, [id], slow) == ([id], {})
    assert state_of(jobs, id) is None and state_of(jobs, other) is State.DEAD
    [delivery] = slow.lease()
    assert (delivery.message.id, delivery.attempt, delivery.failure) == (id, 1, None)
    assert delivery.message == pabal.message.replace(entry.message, expires_at=None)
    delivery.ack()
    assert slow.lease() == []
    assert redrive(jobs, [id, other, "unknown"], slow) == ([other], {id: NOT_DEAD, "unknown": NOT_DEAD})


def test_it_may_come_back_to_where_it_was(jobs: Queue, slow: Queue) -> None:
    slow.configure(Policy(retry=RetryPolicy(limit=1)))
    id = let_die(jobs, id="mine")
    for source, target in ((jobs, slow), (slow, jobs), (jobs, slow)):
        assert redrive(source, [id], target).ids == [id]
        assert state_of(source, id) is None
        [delivery] = target.lease()
        delivery.nack(reason="again")


def test_a_kill_between_the_two_steps_is_finished_by_the_same_redrive(jobs: Queue, slow: Queue) -> None:
    id = let_die(jobs)
    killed(jobs, id, slow)
    assert state_of(jobs, id) is State.DEAD and state_of(slow, id) is State.READY
    assert redrive(jobs, [id], slow) == ([id], {})
    assert state_of(jobs, id) is None and slow.counts()[State.READY] == 1
    again = let_die(jobs)
    killed(jobs, again, slow)
    for delivery in slow.lease(2):
        delivery.ack()
    # It was handled there: nobody gets it a second time. Only a store that keeps what was handled can tell.
    _, kept = redrive(jobs, [again], slow)
    assert slow.lease() == []
    assert state_of(jobs, again) is (State.DEAD if again in kept else None)


def test_another_message_of_the_same_id_is_not_touched(jobs: Queue, slow: Queue) -> None:
    id = let_die(jobs, "dead", id="same")
    slow.publish("another", id="same")
    ids, kept = redrive(jobs, [id], slow)
    assert ids == [] and "another message of this id" in kept[id]
    assert state_of(jobs, id) is State.DEAD and slow.lease()[0].body == "another"


def test_what_does_not_fit_the_schema_of_the_target_stays(jobs: Queue, slow: Queue) -> None:
    slow.configure(Policy(body_schema={"type": "object"}))
    fits, unfit = let_die(jobs, {"a": 1}), let_die(jobs, "text")
    ids, kept = redrive(jobs, [fits, unfit], slow)
    assert ids == [fits] and "does not fit the schema of slow" in kept[unfit] and state_of(jobs, unfit) is State.DEAD


def test_one_that_somebody_revives_meanwhile_goes_on_where_it_is(
    jobs: Queue, slow: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = let_die(jobs)
    purge = jobs.store.purge

    def late(*args: Any, **more: Any) -> int:
        jobs.revive([id])
        return purge(*args, **more)

    monkeypatch.setattr(jobs.store, "purge", late)
    assert redrive(jobs, [id], slow) == ([], {id: NOT_DEAD})
    assert state_of(jobs, id) is State.READY and slow.lease() == []


def test_two_that_redrive_the_same_leave_it_once(jobs: Queue, slow: Queue) -> None:
    ids = [let_die(jobs, number) for number in range(20)]
    threads = [threading.Thread(target=redrive, args=(jobs, ids, slow)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert jobs.counts().get(State.DEAD, 0) == 0
    assert sorted(delivery.message.id for delivery in slow.lease(100)) == sorted(ids)


def test_without_a_target_it_is_a_revival(jobs: Queue) -> None:
    id = let_die(jobs)
    assert redrive(jobs, [id, "unknown"], jobs) == ([id], {"unknown": NOT_DEAD})
    assert state_of(jobs, id) is State.READY


def test_a_consumer_that_waits_in_the_target_is_woken(jobs: Queue, slow: Queue) -> None:
    id = let_die(jobs)
    assert isinstance(jobs.store, Movable)
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.extend(slow.lease(wait=60)))
    waiting.start()
    redrive(jobs, [id], slow)
    waiting.join(60)
    assert [delivery.message.id for delivery in found] == [id]


def test_a_store_that_takes_in_nothing_says_so() -> None:
    with pabal.connect("memory:") as mq:
        mq.queue("slow").create()
        with pytest.raises(InvalidInput, match="cannot go to another queue"):
            redrive(mq.queue("jobs"), ["x"], mq.queue("slow"))


@pytest.mark.parametrize(("rate", "sizes"), [(None, [100, 100, 50]), (20.0, [2] * 125), (0.5, [1] * 250)])
def test_a_rate_is_kept_in_small_steps(rate: float | None, sizes: list[int]) -> None:
    found = list(lots([str(number) for number in range(250)], rate))
    assert [len(part) for part, _ in found] == sizes
    assert sum(seconds for _, seconds in found) == pytest.approx(250 / rate if rate else 0.0)


def test_a_schema_changed_a_moment_ago_counts(mq: Connection, jobs: Queue, slow: Queue) -> None:
    id = let_die(jobs)
    assert slow.policy.body_schema is None  # now known for a second
    Queue("slow", mq.store).configure(Policy(body_schema={"type": "string"}, on_invalid="dead-letter"))
    found = redrive(jobs, [id], slow)
    assert found.ids == [] and "does not fit the schema of slow" in found.kept[id]
    slow.publish(1, id="m1")  # this handle knows the schema now
    assert slow.counts()[State.DEAD] == 1 and slow.revive(["m1"]) == []
    Queue("slow", mq.store).configure(Policy())
    assert slow.revive(["m1"]) == ["m1"]


@pytest.fixture
def graves(mq: Connection, jobs: Queue) -> Queue:
    """The dead-letter queue to which the failed messages of `jobs` are moved."""
    jobs.configure(Policy(retry=RetryPolicy(limit=1), dead_letters=DeadLetterPolicy(queue="graves", move=True)))
    queue = mq.queue("graves")
    queue.create()
    return queue


def ids_in(queue: Queue) -> list[str]:
    return [entry.id for entry in queue.entries(State.READY)]


def test_a_moved_message_goes_back_whole_and_may_fail_and_go_back_again(jobs: Queue, graves: Queue) -> None:
    fields: dict[str, Any] = {"type": "t", "version": 3, "priority": 4, "thread_id": "th", "trace_id": "tr"}
    first = let_die(jobs, {"a": 1}, headers={"x": "y"}, attributes={"n": 1}, **fields)
    for _ in range(2):
        [id] = ids_in(graves)
        assert send_back(graves, [id, id], jobs) == ([id], {})
        assert ids_in(graves) == [] and state_of(graves, id) is State.DONE
        [delivery] = jobs.lease()
        message = delivery.message
        assert message.body == {"a": 1} and message.headers == {"x": "y", "original-id": first}
        assert delivery.attempt == 1 and message.attributes == {"n": 1}
        assert {name: getattr(message, name) for name in fields} == fields
        delivery.nack(reason="again")


def test_only_the_chosen_go_back_and_the_others_are_as_before(jobs: Queue, graves: Queue) -> None:
    graves.publish_many(["sent here"] * 3)
    for number in range(4):
        let_die(jobs, number)
    moved = {entry.message.body: entry.id for entry in graves.entries(State.READY) if entry.message}  # by number
    assert send_back(graves, [moved[1], moved[3]], jobs) == ([moved[1], moved[3]], {})
    assert {entry.message.body for entry in jobs.entries(State.READY) if entry.message} == {1, 3}
    left = graves.lease(10)
    assert len(left) == 5 and all(each.attempt == 1 for each in left)  # a lease that is not counted


def test_what_cannot_go_back_stays_and_the_reason_is_told(jobs: Queue, graves: Queue) -> None:
    let_die(jobs, 1)
    let_die(jobs, "text")
    number, text = ids_in(graves)
    jobs.update_policy(body_schema={"type": "string"})
    done, kept = send_back(graves, [number, text, "unknown"], jobs)
    assert done == [text] and "does not fit the schema of jobs" in kept[number] and kept["unknown"] == NOT_READY
    assert ids_in(graves) == [number]
    graves.pause()
    assert "paused" in send_back(graves, [number], jobs).kept[number]
    graves.resume()
    [held] = graves.lease()
    assert send_back(graves, [number], jobs) == ([], {number: NOT_READY})
    held.release(counted=False)


def test_groups_go_back_in_order(jobs: Queue, graves: Queue) -> None:
    for number in range(6):
        let_die(jobs, number, group=f"g{number % 2}")
    ids = ids_in(graves)
    assert sorted(send_back(graves, ids, jobs).ids) == sorted(ids)
    bodies = []
    while found := jobs.lease(10):
        for delivery in found:
            bodies.append(delivery.body)
            delivery.ack()
    assert [body for body in bodies if body % 2] == [1, 3, 5] and [body for body in bodies if not body % 2] == [0, 2, 4]
