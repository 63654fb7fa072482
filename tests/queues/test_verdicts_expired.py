"""What the queue makes of leases and messages that ran out, over every store and both kinds of file names."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from pabal.clock import Clock
from pabal.errors import InvalidHeader
from pabal.policy.policy import DeadLetterPolicy, Policy, RetryPolicy
from pabal.queues.queue import Queue
from pabal.queues.store_proxy import StoreProxy
from pabal.runtime.logs import event_of
from pabal.store import Entry, FailureCode, Outcome, Settlement, State, Store
from pabal.stores.files import FileStore
from pabal.stores.layout import NativeLayout
from pabal.testing import ManualClock
from tests.openers import OPENERS


def open_plain(place: Path, clock: Clock) -> Store:
    return FileStore(place / "plain", clock=clock, layout=NativeLayout(native=False))


OPEN = {"plain": open_plain, **{kind: opener.open for kind, opener in OPENERS.items()}}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=OPEN)
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with closing(OPEN[request.param](tmp_path, clock)) as store:
        yield store


@pytest.fixture
def jobs(store: Store, clock: ManualClock) -> Queue:
    return Queue("jobs", store, clock=clock)


def revived(queue: Queue, clock: ManualClock) -> str:
    """Return the id of a message that expired and was made ready again."""
    id = queue.publish("x", ttl=10).id
    clock.advance(11)
    queue.sweep()
    assert fate(found(queue, id)) == (State.DEAD, FailureCode.EXPIRED) and queue.revive([id]) == [id]
    return id


def found(queue: Queue, id: str) -> Entry:
    entry = queue.find(id)
    assert entry is not None
    return entry


def fate(entry: Entry) -> tuple[State, str]:
    return entry.state, entry.failure.code if entry.failure else ""


def test_a_revived_message_whose_lease_ran_out_is_tried_again(jobs: Queue, clock: ManualClock) -> None:
    id = revived(jobs, clock)
    for attempt in range(1, jobs.policy.retry.limit + 1):
        [delivery] = jobs.lease(visibility=5)
        assert delivery.attempt == attempt
        clock.advance(6)
        assert jobs.sweep() == 1
        if attempt < jobs.policy.retry.limit:
            assert fate(found(jobs, id)) == (State.DELAYED, FailureCode.LEASE_EXPIRED)
        clock.advance(3600)
    assert fate(found(jobs, id)) == (State.DEAD, FailureCode.RETRY_LIMIT)


@pytest.mark.parametrize("delay", [0.0, 30.0])
def test_a_revived_message_that_is_nacked_is_tried_again(jobs: Queue, clock: ManualClock, delay: float) -> None:
    id = revived(jobs, clock)
    [delivery] = jobs.lease()
    delivery.nack(delay)
    clock.advance(3600)
    assert jobs.sweep() == 0
    [again] = jobs.lease()
    assert (again.message.id, again.attempt) == (id, 2)
    assert fate(found(jobs, id)) == (State.INFLIGHT, FailureCode.NACKED)


def test_a_message_that_was_never_revived_expires_with_its_lease(jobs: Queue, clock: ManualClock) -> None:
    id = jobs.publish("x", ttl=10).id
    jobs.lease(visibility=5)
    clock.advance(11)
    assert jobs.sweep() == 1 and fate(found(jobs, id)) == (State.DEAD, FailureCode.EXPIRED)


def test_one_dead_letter_that_is_refused_costs_the_others_nothing(store: Store, clock: ManualClock) -> None:
    class Picky(StoreProxy):
        """Refuses the letter of one message, as a codec does that cannot write it."""

        def settle(self, settlements: Sequence[Settlement], *, durable: bool = False) -> list[Outcome]:
            for _, verdict in settlements:
                if any(draft.message.id.startswith("job-2.") for draft in verdict.then):
                    raise InvalidHeader("not for this codec")
            return super().settle(settlements, durable=durable)

    jobs, letters = Queue("jobs", Picky(store), clock=clock), Queue("letters", store, clock=clock)
    jobs.configure(Policy(dead_letters=DeadLetterPolicy(queue="letters")))
    for n in range(5):
        jobs.publish(n, ttl=10, id=f"job-{n}")
    clock.advance(11)
    assert jobs.sweep() == 5 and jobs.counts()[State.DEAD] == 5
    copies = [delivery.message.id.partition(".")[0] for delivery in letters.lease(10)]
    assert sorted(copies) == ["job-0", "job-1", "job-3", "job-4"]


def test_the_copy_of_a_dead_message_is_kept_as_long_as_the_policy_says(jobs: Queue, clock: ManualClock) -> None:
    jobs.configure(Policy(dead_letters=DeadLetterPolicy(queue="letters", retention_days=2)))
    jobs.publish(1)
    jobs.lease()[0].bury("no")
    letters = Queue("letters", jobs.store, clock=clock)
    clock.advance(2 * 86400 - 60)
    letters.sweep()
    assert letters.counts()[State.READY] == 1
    clock.advance(120)
    letters.sweep()
    counts = letters.counts()
    assert counts[State.READY] == counts[State.DEAD] == 0
    assert letters.store.counters("letters").dropped == 1


def test_deaths_and_drops_are_warnings_that_name_the_message_and_have_fixed_events(
    jobs: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    [first, second] = jobs.publish_many([1, 2])
    with caplog.at_level(logging.WARNING, "pabal"):
        jobs.lease()[0].bury("no\nluck")
        jobs.configure(Policy(dead_letters=DeadLetterPolicy(enabled=False)))
        jobs.lease()[0].bury("no")
    dead, dropped = caplog.records
    assert dead.getMessage() == f"message dead: jobs/{first.id}: NACKED 'no\\nluck'"
    assert dropped.getMessage() == f"message dropped: jobs/{second.id}: NACKED 'no'"
    assert [event_of(dead), event_of(dropped)] == ["message dead", "message dropped"]
    about = {"queue": "jobs", "id": first.id, "outcome": "dead", "code": "NACKED", "reason": "no\nluck"}
    assert dead.args == about


@pytest.mark.parametrize("kind", OPENERS)
def test_a_corrupt_message_is_a_warning(
    kind: str, tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(OPENERS[kind].open(tmp_path, clock)) as store, caplog.at_level(logging.WARNING, "pabal"):
        jobs = Queue("jobs", store, clock=clock)
        jobs.publish("x" * 100, id="bad")
        OPENERS[kind].damage(tmp_path, "jobs", "bad")
        assert jobs.lease() == []
    [record] = caplog.records
    assert event_of(record) == "message corrupt"
    assert "jobs" in record.getMessage() and "bad" in record.getMessage()
    assert isinstance(record.args, dict) and record.args["reason"] in record.getMessage()


@pytest.mark.parametrize("kind", OPENERS)
def test_the_failure_of_an_expired_lease_names_the_consumer_that_died(
    kind: str, tmp_path: Path, clock: ManualClock
) -> None:
    with closing(OPENERS[kind].open(tmp_path, clock)) as store:
        finder = Queue("jobs", store, clock=clock, consumer="finder")
        finder.configure(Policy(retry=RetryPolicy(limit=1), dead_letters=DeadLetterPolicy(queue="letters")))
        leased, late = finder.publish(1).id, finder.publish(2, ttl=1, target="nobody").id
        Queue("jobs", store, clock=clock, consumer="worker-7").lease(visibility=1)
        clock.advance(2)
        finder.sweep()
        found = {id: entry.failure for id in (leased, late) if (entry := finder.find(id)) is not None}
        assert {(each.code, each.consumer) for each in found.values() if each} == {
            (FailureCode.RETRY_LIMIT, "worker-7"),
            (FailureCode.EXPIRED, ""),
        }
        letters = [entry.message.body for entry in Queue("letters", store).browse(State.READY) if entry.message]
        assert sorted(each["failure"]["consumerId"] for each in letters if isinstance(each, dict)) == ["", "worker-7"]
