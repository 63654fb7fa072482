"""Unique keys: one message at a time waits or is in flight under each (G12)."""

from functools import partial
from typing import Any

from pabal.store import Dead, Done, Outcome, Published, Retry, Settlement, State, Store, Terms
from pabal.testing.clock import ManualClock
from pabal.testing.store_place import (
    FAILED,
    QUEUE,
    Reopen,
    StorePlace,
    ack,
    bodies,
    bury,
    draft,
    drain,
    in_threads,
    publish,
    retry,
    settle,
    take,
    take_one,
)

FIRST = Published("first", True)


class UniqueTests(StorePlace):
    def test_g12_a_unique_key_is_taken_until_its_message_is_done_or_dead(
        self, store: Store, reopen: Reopen, clock: ManualClock
    ) -> None:
        other = reopen()

        def again(store: Store, **more: Any) -> Published:
            return store.publish([draft("again", unique="k", **more)])[0]

        assert store.publish([draft(1, id="first", unique="k")]) == [Published("first")]
        assert store.publish([draft(1, queue="elsewhere", unique="k")])[0].duplicate is False
        assert again(other) == FIRST and again(store, id="another") == FIRST
        clock.advance(100_000)  # whatever the dedup window
        assert again(other, dedup_key="d") == FIRST
        lease = take_one(other)
        assert lease.message.unique == "k" and again(store) == FIRST
        retry(other, lease, 50)
        assert again(store) == FIRST
        clock.advance(60)
        assert again(other) == FIRST and ack(store, take_one(store)) is Outcome.APPLIED
        second = store.publish(
            [draft(2, id="second", unique="k", priority=1), draft(3, unique="k"), draft(4, unique="l")]
        )
        assert [found.duplicate for found in second] == [False, True, False] and second[1].id == "second"
        assert again(other).id == "second"
        bury(store, take_one(store))
        assert again(other, id="third") == Published("third")
        assert store.cancel(QUEUE, ["third"]) == ["third"]
        assert again(other, id="fourth") == Published("fourth") and again(store).id == "fourth"
        assert store.purge(QUEUE, State.READY, ids=["fourth"]) == 1
        assert again(other, id="fifth") == Published("fifth") and drain(store) == [4, "again"]
        other.close()

    def test_g12_a_follow_up_takes_the_key_that_its_message_leaves(self, store: Store, clock: ManualClock) -> None:
        publish(store, 0, id="m-0", unique="chain")
        for n in range(1, 4):
            held = take_one(store)
            then = draft(n, id=f"m-{n}", unique="chain"), draft("twice", unique="chain")
            assert ack(store, held, *then) is Outcome.APPLIED
            assert store.publish([draft("late", unique="chain")]) == [Published(f"m-{n}", True)]
        held = take_one(store)
        assert bodies([held]) == [3]
        # Its own message comes back: the follow-up is a duplicate.
        assert settle(store, held, Retry(0.0, FAILED, then=(draft("never", unique="chain"),))) is Outcome.APPLIED
        last = take_one(store)
        dead = Dead(FAILED, then=(draft("last", unique="chain", terms=Terms()),))
        assert bodies([last]) == [3] and store.settle([Settlement(last.receipt, dead)]) == [Outcome.APPLIED]
        assert drain(store) == ["last"] and take(store) == []

    def _publish_unique(self, store: Store, answers: list[Published]) -> None:
        answers += store.publish([draft(unique="k")])

    def test_g12_of_publishers_at_the_same_time_one_stores(self, store: Store, reopen: Reopen) -> None:
        handles = [store, *(reopen() for _ in range(3))]
        answers: list[Published] = []
        for _ in range(3):
            in_threads(*(partial(self._publish_unique, handle, answers) for handle in handles))
            [lease] = take(store, 10)
            assert store.settle([Settlement(lease.receipt, Done())]) == [Outcome.APPLIED]
        assert sum(not answer.duplicate for answer in answers) == 3
        for handle in handles[1:]:
            handle.close()
