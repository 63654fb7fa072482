"""Revive: a dead message becomes like a new one, except that it never expires."""

import pytest

from pabal.store import Outcome, State, Store
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
    publish,
    retry,
    state_of,
    take,
    take_one,
)


def ends(store: Store, state: State) -> list[float | None]:
    """Say when the messages of a state expire, as browse and find show it, which must be the same."""
    entries = store.browse(QUEUE, state)
    found = [store.find(QUEUE, entry.id) for entry in entries]
    shown = [entry.message.expires_at for entry in entries if entry.message]
    assert shown == [entry.message.expires_at for entry in found if entry and entry.message]
    return shown


def revive_expired(store: Store, clock: ManualClock) -> None:
    """Publish a message that expires, bury it, and make it ready again."""
    publish(store, 1, id="m", expires_at=clock.now() + 10)
    clock.advance(11)
    (over,) = store.expired(QUEUE, 10)
    assert over.message.expires_at is not None and bury(store, over) is Outcome.APPLIED
    assert store.revive(QUEUE, ["m"]) == ["m"]


class ReviveTests(StorePlace):
    def test_revive_makes_dead_messages_ready_with_no_attempts(self, store: Store, reopen: Reopen) -> None:
        store.publish([draft(n, id=f"m-{n}") for n in range(3)])
        for lease in take(store, 2):
            bury(store, lease)
        assert store.revive(QUEUE, ["m-1", "nobody", "m-2", "m-0", "m-0"]) == ["m-1", "m-0"]
        assert count(store, State.DEAD) == 0
        other = reopen()
        assert sorted((lease.receipt.id, lease.attempt) for lease in take(other, 10)) == [
            ("m-0", 1),
            ("m-1", 1),
            ("m-2", 1),
        ]
        other.close()

    def test_a_revived_message_does_not_expire_again(self, store: Store, reopen: Reopen, clock: ManualClock) -> None:
        revive_expired(store, clock)
        other = reopen()
        for handle in (store, other):
            assert handle.expired(QUEUE, 10) == [] and handle.next_due(QUEUE) is None
        assert bodies(take(other)) == [1]
        other.close()

    def test_g5_a_receipt_from_before_reviving_is_lost(self, store: Store) -> None:
        publish(store, 1, id="m")
        lease = take_one(store)
        bury(store, lease)
        store.revive(QUEUE, ["m"])
        assert ack(store, lease) is Outcome.LOST and state_of(store, "m") is State.READY
        again = take_one(store)
        assert bury(store, lease) is Outcome.LOST and ack(store, again) is Outcome.APPLIED

    def test_a_revived_message_is_given_with_no_time_to_live(
        self, store: Store, reopen: Reopen, clock: ManualClock
    ) -> None:
        revive_expired(store, clock)
        other = reopen()
        for handle in (store, other):
            assert ends(handle, State.READY) == [None]
        lease = take_one(other, seconds=10, token="again")
        (same,) = take(store, token="again")
        assert lease.message.expires_at is None and same.message == lease.message
        for handle in (store, other):
            assert ends(handle, State.INFLIGHT) == [None]
        other.close()

    def test_a_revived_message_whose_lease_ran_out_is_taken_over_with_no_time_to_live(
        self, store: Store, reopen: Reopen, clock: ManualClock
    ) -> None:
        revive_expired(store, clock)
        assert store.extend([take_one(store, seconds=10).receipt], 20) == [Outcome.APPLIED]
        clock.advance(21)
        other = reopen()
        (over,) = other.expired(QUEUE, 10)
        assert (over.attempt, over.message.expires_at) == (1, None)
        assert retry(other, over) is Outcome.APPLIED
        assert take_one(store).message.expires_at is None
        other.close()

    @pytest.mark.parametrize("delay", [0.0, 5.0])
    def test_a_revived_message_that_is_retried_has_no_time_to_live(
        self, store: Store, reopen: Reopen, clock: ManualClock, delay: float
    ) -> None:
        revive_expired(store, clock)
        assert retry(store, take_one(store), delay=delay) is Outcome.APPLIED
        other = reopen()
        for handle in (store, other):
            assert ends(handle, State.DELAYED if delay else State.READY) == [None]
        clock.advance(1000)
        for handle in (other, store):
            assert handle.expired(QUEUE, 10) == []
        again = take_one(other)
        assert (again.attempt, again.message.expires_at) == (2, None)
        assert bury(other, again) is Outcome.APPLIED and ends(store, State.DEAD) == [None]
        other.close()

    def test_a_message_revived_before_its_time_was_over_outlives_it(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1, id="m", expires_at=clock.now() + 100)
        bury(store, take_one(store))
        store.revive(QUEUE, ["m"])
        lease = take_one(store)
        assert lease.message.expires_at is None and retry(store, lease) is Outcome.APPLIED
        clock.advance(1000)
        assert store.expired(QUEUE, 10) == [] and take_one(store).attempt == 2

    def test_a_message_that_was_never_revived_keeps_its_time_to_live(self, store: Store, clock: ManualClock) -> None:
        end = clock.now() + 1000
        publish(store, 1, id="m", expires_at=end)
        assert ends(store, State.READY) == [end]
        lease = take_one(store)
        assert lease.message.expires_at == end and ends(store, State.INFLIGHT) == [end]
        retry(store, lease, delay=60)
        assert ends(store, State.DELAYED) == [end]
        clock.advance(61)
        bury(store, take_one(store))
        assert ends(store, State.DEAD) == [end]
