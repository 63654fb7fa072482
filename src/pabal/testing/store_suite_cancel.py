"""Cancel: waiting messages are done at once, those in flight only if asked (G13)."""

from pabal.store import FailureCode, Outcome, Published, State, Store
from pabal.testing.clock import ManualClock
from pabal.testing.store_place import (
    QUEUE,
    Reopen,
    StorePlace,
    ack,
    bodies,
    bury,
    count,
    draft,
    drain,
    publish,
    retry,
    state_of,
    take,
    take_one,
)


class CancelTests(StorePlace):
    def test_g13_what_waits_is_cancelled_and_what_is_held_only_if_asked(
        self, store: Store, reopen: Reopen, clock: ManualClock
    ) -> None:
        publish(store, "held", id="held", priority=3)
        publish(store, "failed", id="failed", priority=2)
        publish(store, "dead", id="dead", priority=1)
        held, failed, dead = take(store, 3)
        retry(store, failed)
        bury(store, dead)
        publish(store, "ready", id="ready", dedup_key="k")
        publish(store, "later", id="later", delay=60)
        publish(store, "stays")
        other = reopen()
        everything = ["later", "nobody", "held", "dead", "ready", "ready", "failed"]
        assert other.cancel(QUEUE, everything) == ["later", "ready", "failed"]
        assert store.cancel(QUEUE, everything) == [] and store.cancel("nothing", ["ready"]) == []
        assert [state_of(store, id) for id in ("later", "ready", "failed", "held", "dead")] == [
            *[State.DONE] * 3,
            State.INFLIGHT,
            State.DEAD,
        ]
        entry = store.find(QUEUE, "ready")
        assert entry is not None and entry.failure is not None and entry.failure.code == FailureCode.CANCELLED
        assert retry(store, failed) is Outcome.LOST
        # As after an ack: id and key are remembered.
        again = [draft("again", id="ready"), draft("again", dedup_key="k")]
        assert other.publish(again) == [Published("ready", True)] * 2
        assert other.cancel(QUEUE, ["held"], inflight=True) == ["held"]
        assert store.extend([held.receipt], 10.0) == [Outcome.LOST]
        assert ack(store, held, draft("never", queue="next")) is Outcome.LOST and ack(other, held) is Outcome.LOST
        clock.advance(3600)
        assert store.expired(QUEUE, 10) == [] and drain(other) == ["stays"] and drain(store, "next") == []
        assert count(store, State.DONE) == 5 and store.purge(QUEUE, State.DONE) == 5
        other.close()

    def test_g13_the_next_of_a_group_follows_a_cancelled_one(self, store: Store) -> None:
        for n in range(4):
            publish(store, n, id=f"m-{n}", group="g")
        assert store.cancel(QUEUE, ["m-0", "m-2"]) == ["m-0", "m-2"]
        held = take_one(store)
        assert held.message.body == 1 and take(store) == []
        assert store.cancel(QUEUE, ["m-1"], inflight=True) == ["m-1"]
        assert bodies(take(store)) == [3] and ack(store, held) is Outcome.LOST
