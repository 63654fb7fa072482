"""Leases: one holder, tokens, take-over, clocks (G2, G3, G5, G8, G11)."""

import pytest

from pabal.message import replace
from pabal.store import Done, Outcome, Receipt, Settlement, State, Store
from pabal.testing.clock import ManualClock
from pabal.testing.store_place import (
    FAILED,
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

HOUR, YEAR = 3600.0, 365 * 86_400.0


class LeaseTests(StorePlace):
    def test_a_lease_says_what_it_holds(self, store: Store, clock: ManualClock) -> None:
        (id,) = publish(store, "a")
        lease = take_one(store)
        assert (lease.receipt.queue, lease.receipt.id, lease.attempt, lease.failure) == (QUEUE, id, 1, None)
        assert lease.due_at == pytest.approx(clock.now(), abs=0.01)
        assert Receipt.parse(str(lease.receipt)) == lease.receipt
        assert state_of(store, id) is State.INFLIGHT

    def test_an_empty_or_unknown_queue_gives_nothing(self, store: Store) -> None:
        assert take(store) == [] and store.expired(QUEUE, 10) == []
        ids = publish(store, 1)
        ack(store, take_one(store))
        assert take(store) == [] and state_of(store, ids[0]) is State.DONE

    def test_a_lease_takes_no_more_than_its_limit(self, store: Store) -> None:
        store.publish([draft(n) for n in range(10)])
        assert [len(take(store, limit)) for limit in (3, 3, 3, 3, 3)] == [3, 3, 3, 1, 0]

    def test_all_of_one_lease_share_a_token_and_each_call_has_its_own(self, store: Store) -> None:
        store.publish([draft(n) for n in range(4)])
        first, second = take(store, 2), take(store, 2)
        tokens = [{lease.receipt.token for lease in leases} for leases in (first, second)]
        assert [len(each) for each in tokens] == [1, 1] and tokens[0] != tokens[1]

    def test_g2_a_leased_message_is_nobody_elses(self, store: Store, reopen: Reopen) -> None:
        publish(store, 1)
        other = reopen()
        take_one(store)
        assert take(store, 10) == [] and take(other, 10) == []
        other.close()

    def test_g2_two_handles_share_out_what_is_ready(self, store: Store, reopen: Reopen) -> None:
        store.publish([draft(n, id=f"m-{n}") for n in range(10)])
        other = reopen()
        got = [take_one(handle).message.body for _ in range(5) for handle in (store, other)]
        assert got == list(range(10))
        other.close()

    def test_g2_a_lease_survives_closing_and_reopening(self, store: Store, reopen: Reopen) -> None:
        publish(store, 1)
        lease = take_one(store)
        store.close()
        other = reopen()
        assert take(other) == []
        assert ack(other, lease) is Outcome.APPLIED
        other.close()

    def test_a_token_that_holds_messages_gives_those_again(self, store: Store, reopen: Reopen) -> None:
        store.publish([draft(n, id=f"m-{n}") for n in range(5)])
        first = take(store, 2, token="t0000000000000001")
        assert bodies(first) == [0, 1]
        assert {lease.receipt.token for lease in first} == {"t0000000000000001"}
        other = reopen()
        for handle in (store, other):
            again = take(handle, 4, token="t0000000000000001")
            assert sorted(again, key=lambda lease: lease.receipt.id) == first
        other.close()
        assert count(store, State.READY) == 3

    def test_a_token_that_holds_a_part_gives_that_part(self, store: Store) -> None:
        store.publish([draft(n, id=f"m-{n}") for n in range(5)])
        first = take(store, 2, token="t0000000000000001")
        ack(store, first[0])
        assert take(store, 2, token="t0000000000000001") == first[1:]
        ack(store, first[1])
        assert bodies(take(store, 2, token="t0000000000000001")) == [2, 3]

    def test_a_token_holds_in_its_queue_only(self, store: Store) -> None:
        publish(store, "a")
        publish(store, "b", queue="other")
        take_one(store, token="t0000000000000001")
        assert bodies(take(store, queue="other", token="t0000000000000001")) == ["b"]

    def test_g3_an_expired_lease_is_ready_again(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1)
        take_one(store, seconds=10)
        clock.advance(9.9)
        assert store.expired(QUEUE, 10) == []
        clock.advance(0.2)
        (over,) = store.expired(QUEUE, 10)
        assert (over.message.body, over.attempt) == (1, 1)
        assert retry(store, over) is Outcome.APPLIED
        again = take_one(store)
        assert (again.attempt, again.failure) == (2, FAILED)

    def test_g3_a_lease_that_ran_out_waits_for_a_judge(self, store: Store, clock: ManualClock) -> None:
        (id,) = publish(store, 1)
        take_one(store, seconds=10)
        clock.advance(1000)
        assert take(store, 10) == []
        assert state_of(store, id) is State.INFLIGHT

    def test_g3_expired_takes_no_more_than_its_limit(self, store: Store, clock: ManualClock) -> None:
        store.publish([draft(n) for n in range(5)])
        take(store, 5, seconds=10)
        clock.advance(11)
        assert [len(store.expired(QUEUE, 2)) for _ in range(4)] == [2, 2, 1, 0]

    def test_g3_a_judge_that_dies_is_itself_taken_over(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1)
        take_one(store, seconds=10)
        clock.advance(11)
        (first,) = store.expired(QUEUE, 10)
        assert store.expired(QUEUE, 10) == []
        clock.advance(HOUR)
        (second,) = store.expired(QUEUE, 10)
        assert (second.attempt, second.receipt.id) == (1, first.receipt.id)
        assert ack(store, first) is Outcome.LOST and ack(store, second) is Outcome.APPLIED

    def test_g3_only_what_ran_out_is_taken_over(self, store: Store, clock: ManualClock) -> None:
        publish(store, "short", "long")
        take_one(store, seconds=10)
        kept = take_one(store, seconds=100)
        clock.advance(11)
        assert bodies(store.expired(QUEUE, 10)) == ["short"]
        assert ack(store, kept) is Outcome.APPLIED

    def test_g3_the_take_over_seen_by_another_handle(self, store: Store, reopen: Reopen, clock: ManualClock) -> None:
        publish(store, 1)
        lease = take_one(store, seconds=10)
        clock.advance(11)
        other = reopen()
        (over,) = other.expired(QUEUE, 10)
        assert ack(store, lease) is Outcome.LOST
        assert ack(store, over) is Outcome.APPLIED
        other.close()

    def test_a_waiting_message_past_its_time_is_taken_over(self, store: Store, clock: ManualClock) -> None:
        publish(store, "ready", expires_at=clock.now() + 10)
        publish(store, "delayed", expires_at=clock.now() + 20, delay=1000)
        publish(store, "stays")
        assert store.expired(QUEUE, 10) == []
        clock.advance(11)
        (first,) = store.expired(QUEUE, 10)
        assert (first.message.body, first.attempt) == ("ready", 0)
        assert bury(store, first) is Outcome.APPLIED
        clock.advance(10)
        (second,) = store.expired(QUEUE, 10)
        assert second.message.body == "delayed" and bury(store, second) is Outcome.APPLIED
        assert drain(store) == ["stays"]

    def test_an_expired_message_behind_a_head_is_taken_over_too(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1, group="g")
        publish(store, 2, group="g", expires_at=clock.now() + 10)
        publish(store, 3, group="g")
        head = take_one(store, seconds=100)
        clock.advance(11)
        (over,) = store.expired(QUEUE, 10)
        assert over.message.body == 2 and bury(store, over) is Outcome.APPLIED
        ack(store, head)
        assert drain(store) == [3]

    def test_a_message_past_its_ttl_is_not_leased_even_before_it_is_judged(
        self, store: Store, clock: ManualClock
    ) -> None:
        publish(store, "short", "short", expires_at=clock.now() + 10)
        publish(store, "first", "second", group="g", expires_at=clock.now() + 10)
        publish(store, "long", expires_at=clock.now() + 1000)
        clock.advance(10)
        assert bodies(take(store, 5)) == ["long"]
        clock.step_wall(-60)  # the clock was ahead
        assert sorted(bodies(take(store, 5))) == ["first", "short", "short"]

    def test_an_inflight_message_does_not_expire_by_its_ttl(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1, expires_at=clock.now() + 10)
        lease = take_one(store, seconds=100)
        clock.advance(50)
        assert store.expired(QUEUE, 10) == []
        assert ack(store, lease) is Outcome.APPLIED

    def test_g5_a_late_ack_before_the_take_over_counts(self, store: Store, clock: ManualClock) -> None:
        (id,) = publish(store, 1)
        lease = take_one(store, seconds=10)
        clock.advance(1000)
        assert ack(store, lease) is Outcome.APPLIED
        assert store.expired(QUEUE, 10) == [] and state_of(store, id) is State.DONE

    def test_g5_every_late_verdict_after_the_take_over_is_lost(self, store: Store, clock: ManualClock) -> None:
        (id,) = publish(store, 1)
        lease = take_one(store, seconds=10)
        clock.advance(11)
        (over,) = store.expired(QUEUE, 10)
        verdicts = [ack(store, lease), retry(store, lease), bury(store, lease)]
        assert [*verdicts, *store.extend([lease.receipt], 60)] == [Outcome.LOST] * 4
        assert state_of(store, id) is State.INFLIGHT
        assert retry(store, over) is Outcome.APPLIED

    def test_g5_the_holder_before_the_holder_is_lost(self, store: Store) -> None:
        (id,) = publish(store, 1)
        old = take_one(store)
        retry(store, old)
        new = take_one(store)
        assert new.receipt.token != old.receipt.token
        verdicts = [ack(store, old), retry(store, old), bury(store, old)]
        assert [*verdicts, *store.extend([old.receipt], 60)] == [Outcome.LOST] * 4
        assert state_of(store, id) is State.INFLIGHT and ack(store, new) is Outcome.APPLIED

    def test_g5_a_forged_receipt_is_lost(self, store: Store) -> None:
        (id,) = publish(store, 1)
        lease = take_one(store)
        forged = [
            replace(lease.receipt, token="t0000000000000001"),
            replace(lease.receipt, id="unknown"),
            replace(lease.receipt, queue="other"),
        ]
        assert store.settle([Settlement(receipt, Done()) for receipt in forged]) == [Outcome.LOST] * 3
        assert store.extend(forged, 60) == [Outcome.LOST] * 3
        assert state_of(store, id) is State.INFLIGHT and ack(store, lease) is Outcome.APPLIED

    def test_g5_a_ready_message_cannot_be_settled(self, store: Store) -> None:
        (id,) = publish(store, 1)
        assert store.settle([Settlement(Receipt(QUEUE, id, "t0000000000000001"), Done())]) == [Outcome.LOST]
        assert state_of(store, id) is State.READY

    def test_extend_lets_the_lease_end_later_and_keeps_the_token(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1)
        lease = take_one(store, seconds=10)
        clock.advance(9)
        assert store.extend([lease.receipt], 30) == [Outcome.APPLIED]
        clock.advance(29)
        assert store.expired(QUEUE, 10) == []
        assert store.extend([lease.receipt], 10) == [Outcome.APPLIED]
        clock.advance(9)
        assert store.expired(QUEUE, 10) == []
        assert ack(store, lease) is Outcome.APPLIED
        assert store.extend([lease.receipt], 10) == [Outcome.LOST]

    def test_extend_can_end_a_lease_sooner(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1)
        lease = take_one(store, seconds=1000)
        assert store.extend([lease.receipt], 5) == [Outcome.APPLIED]
        clock.advance(6)
        assert len(store.expired(QUEUE, 10)) == 1

    def test_extend_brings_back_a_lease_nobody_has_taken_over(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1)
        lease = take_one(store, seconds=10)
        clock.advance(20)
        assert store.extend([lease.receipt], 10) == [Outcome.APPLIED]
        assert store.expired(QUEUE, 10) == []

    def test_extend_answers_for_each_receipt(self, store: Store, clock: ManualClock) -> None:
        store.publish([draft(n) for n in range(3)])
        leases = take(store, 3, seconds=10)
        ack(store, leases[1])
        receipts = [lease.receipt for lease in leases]
        assert store.extend(receipts, 100) == [Outcome.APPLIED, Outcome.LOST, Outcome.APPLIED]
        clock.advance(50)
        assert store.expired(QUEUE, 10) == [] and store.extend([], 10) == []

    def test_g8_attempts_rise_with_every_lease(self, store: Store, clock: ManualClock, reopen: Reopen) -> None:
        publish(store, 1)
        for attempt in range(1, 6):
            lease = take_one(store, seconds=10)
            assert lease.attempt == attempt
            if attempt % 2:
                retry(store, lease, delay=5)
            else:
                clock.advance(11)
                (over,) = store.expired(QUEUE, 1)
                assert over.attempt == attempt
                retry(store, over)
            clock.advance(6)
        other = reopen()
        assert take_one(other).attempt == 6
        other.close()

    @pytest.mark.parametrize("step", [HOUR, -HOUR, YEAR, -YEAR])
    def test_g11_a_step_of_the_wall_clock_ends_no_lease_early_or_late(
        self, store: Store, reopen: Reopen, clock: ManualClock, step: float
    ) -> None:
        publish(store, 1)
        take_one(store, seconds=60)
        clock.step_wall(step)
        other = reopen()
        clock.advance(59)
        assert store.expired(QUEUE, 10) == [] and other.expired(QUEUE, 10) == []
        clock.advance(2)
        assert len(other.expired(QUEUE, 10)) == 1
        other.close()

    @pytest.mark.parametrize("step", [HOUR, -HOUR, YEAR, -YEAR])
    def test_g11_a_lease_made_or_extended_after_a_step_is_as_long(
        self, store: Store, clock: ManualClock, step: float
    ) -> None:
        publish(store, 1, 2)
        clock.step_wall(step)
        first, _ = take_one(store, seconds=60), take_one(store, seconds=60)
        clock.step_wall(-step)
        store.extend([first.receipt], 120)
        clock.advance(59)
        assert store.expired(QUEUE, 10) == []
        clock.advance(2)
        (other,) = store.expired(QUEUE, 10)
        ack(store, other)
        clock.advance(60)
        assert bodies(store.expired(QUEUE, 10)) == [first.message.body]

    @pytest.mark.parametrize("step", [HOUR, -HOUR, YEAR, -YEAR])
    def test_g11_what_was_ready_stays_ready_when_the_wall_clock_steps(
        self, store: Store, reopen: Reopen, clock: ManualClock, step: float
    ) -> None:
        publish(store, "before")
        clock.step_wall(step)
        publish(store, "after")
        other = reopen()
        assert sorted(drain(other)) == ["after", "before"]
        other.close()

    def test_g11_a_lease_of_another_boot_has_run_out(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1)
        take_one(store, seconds=YEAR)
        clock.reboot()
        (over,) = store.expired(QUEUE, 10)
        assert ack(store, over) is Outcome.APPLIED

    def test_g11_the_holder_of_another_boot_is_fenced_by_its_token_only(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1)
        lease = take_one(store, seconds=YEAR)
        clock.reboot()
        assert ack(store, lease) is Outcome.APPLIED
