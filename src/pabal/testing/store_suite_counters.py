"""Counters: what happened in a queue, whichever handle did it."""

from pabal.message import replace
from pabal.store import DURATIONS, Counters, Dead, Done, Durations, Failure, FailureCode, Outcome, State, Store
from pabal.testing.clock import ManualClock
from pabal.testing.store_place import (
    FAILED,
    QUEUE,
    Reopen,
    StorePlace,
    ack,
    bury,
    draft,
    publish,
    retry,
    settle,
    take,
    take_one,
)


def _bucket(durations: Durations, seconds: float) -> int:
    """Return how many durations are in the bucket of this one."""
    place = next((place for place, bound in enumerate(DURATIONS) if seconds <= bound), len(DURATIONS))
    return durations.buckets[place]


class CounterTests(StorePlace):
    def test_counters_begin_at_zero(self, store: Store) -> None:
        found = store.counters("nothing")
        assert found == Counters(expired=found.expired, dead=found.dead)
        assert set(found.expired) == {"LEASE_EXPIRED", "EXPIRED"} and set(found.expired.values()) == {0}
        assert {*map(str, FailureCode), "OTHER"} == set(found.dead) and set(found.dead.values()) == {0}
        assert store.queues() == []

    def test_counters_add_up_what_every_handle_did(self, store: Store, reopen: Reopen) -> None:
        other = reopen()
        publish(store, 1, 2)
        other.publish([draft(n) for n in range(3)] + [draft(9, queue="another")])
        first, *rest = take(other, 4)
        ack(other, first)
        bury(other, rest[0])
        retry(other, rest[1])
        settle(other, rest[2], Done(failure=FAILED))
        other.close()
        found = store.counters(QUEUE)
        assert (found.published, found.delivered, found.acked, found.retried, found.dropped) == (5, 4, 1, 1, 1)
        assert {code: count for code, count in found.dead.items() if count} == {FAILED.code: 1}
        assert store.counters("another").published == 1
        assert store.counters("nothing").published == 0

    def test_counters_outlive_the_handles(self, store: Store, reopen: Reopen) -> None:
        for n in range(3):
            handle = reopen()
            publish(handle, n)
            ack(handle, take_one(handle))
            handle.close()
        found = store.counters(QUEUE)
        assert (found.published, found.delivered, found.acked) == (3, 3, 3)

    def test_counters_do_not_count_what_was_not_done(self, store: Store, reopen: Reopen) -> None:
        publish(store, 1, id="once")
        publish(store, 1, id="once")
        lease = take_one(store, token="same")
        assert take_one(store, token="same") == lease
        ack(store, lease)
        assert ack(store, lease) is Outcome.REPEATED
        assert bury(store, lease) is Outcome.LOST
        found = store.counters(QUEUE)
        assert (found.published, found.delivered, found.acked, found.stale) == (1, 1, 1, 1)
        assert set(found.dead.values()) == {0}
        other = reopen()  # has counted nothing in this queue
        assert bury(other, lease) is Outcome.LOST
        assert ack(other, replace(lease, receipt=replace(lease.receipt, queue="forged"))) is Outcome.LOST
        other.close()
        assert (store.counters(QUEUE).stale, store.counters("forged").stale) == (2, 0)

    def test_counters_count_follow_ups(self, store: Store) -> None:
        publish(store, 1)
        ack(store, take_one(store), draft(2, queue="next"))
        assert store.counters("next").published == 1

    def test_counters_count_what_ran_out(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1)
        publish(store, 2, expires_at=clock.now() + 60)
        take_one(store, seconds=5)
        clock.advance(10)
        for lease in store.expired(QUEUE, 10):
            retry(store, lease)
        assert store.counters(QUEUE).expired == {"LEASE_EXPIRED": 1, "EXPIRED": 0}
        clock.advance(100)
        [over] = store.expired(QUEUE, 10)
        settle(store, over, Dead(Failure(FailureCode.EXPIRED)))
        found = store.counters(QUEUE)
        assert found.expired == {"LEASE_EXPIRED": 1, "EXPIRED": 1}
        assert (found.dead["EXPIRED"], found.delivered, found.retried) == (1, 1, 1)

    def test_counters_name_a_foreign_code_other(self, store: Store) -> None:
        publish(store, 1)
        settle(store, take_one(store), Dead(Failure("MY_OWN")))
        assert store.counters(QUEUE).dead["OTHER"] == 1

    def test_oldest_is_the_oldest_of_all(self, store: Store, clock: ManualClock) -> None:
        assert store.oldest(QUEUE, State.READY) is None
        began = clock.now()
        publish(store, "low", priority=-5)
        publish(store, "other", target="somebody", delay=2)
        clock.advance(10)
        store.publish([draft(n, priority=9) for n in range(150)])
        found = store.oldest(QUEUE, State.READY)
        assert found is not None and abs(found - began) < 0.1
        assert store.oldest(QUEUE, State.INFLIGHT) is None
        take(store, 150)
        take_one(store)
        clock.advance(5)
        found = store.oldest(QUEUE, State.READY)
        assert found is not None and abs(found - began - 2) < 0.1

    def test_oldest_in_flight_is_as_old_as_its_lease(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1, 2)
        leased = clock.now()
        first = take_one(store)
        clock.advance(20)
        take_one(store)
        clock.advance(20)
        store.extend([first.receipt], 60)
        found = store.oldest(QUEUE, State.INFLIGHT)
        assert found is not None and abs(found - leased) < 0.1
        ack(store, first)
        found = store.oldest(QUEUE, State.INFLIGHT)
        assert found is not None and found - leased < 20.1

    def test_counters_know_how_long_it_took(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1)
        clock.advance(30)
        lease = take_one(store, seconds=600)
        clock.advance(100)
        ack(store, lease)
        found = store.counters(QUEUE)
        assert _bucket(found.in_queue, 30) == sum(found.in_queue.buckets) == 1
        assert _bucket(found.in_work, 100) == sum(found.in_work.buckets) == 1
        assert abs(found.in_queue.seconds - 30) < 1 and abs(found.in_work.seconds - 100) < 1
