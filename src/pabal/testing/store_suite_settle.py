"""Verdicts and their follow-ups: one step, repeatable, all or nothing (G5, G7)."""

import pytest

from pabal.errors import TooLarge
from pabal.message import replace
from pabal.store import (
    KEPT_FAILURES,
    Dead,
    Done,
    Failure,
    Outcome,
    Receipt,
    Retry,
    Settlement,
    State,
    Store,
    Terms,
    Verdict,
)
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
    settle,
    state_of,
    take,
    take_one,
    waiting,
)


class SettleTests(StorePlace):
    def test_done_is_never_delivered_again(self, store: Store, reopen: Reopen, clock: ManualClock) -> None:
        (id,) = publish(store, 1)
        assert ack(store, take_one(store)) is Outcome.APPLIED
        clock.advance(1000)
        other = reopen()
        for handle in (store, other):
            assert take(handle) == [] and handle.expired(QUEUE, 10) == []
            assert state_of(handle, id) is State.DONE
        other.close()

    def test_done_with_keep_keeps_the_message(self, store: Store, reopen: Reopen) -> None:
        publish(store, {"kept": True}, id="m")
        assert settle(store, lease := take_one(store), Done(keep=True)) is Outcome.APPLIED
        other = reopen()
        for entry in (store.find(QUEUE, "m"), other.find(QUEUE, "m"), store.browse(QUEUE, State.DONE)[0]):
            assert entry and (entry.state, entry.message) == (State.DONE, lease.message)
        other.close()

    def test_done_with_a_failure_is_done(self, store: Store) -> None:
        publish(store, 1, id="m")
        assert settle(store, take_one(store), Done(failure=FAILED)) is Outcome.APPLIED
        assert state_of(store, "m") is State.DONE and count(store, State.DEAD) == 0

    def test_retry_brings_it_back_after_its_delay_with_its_failure(self, store: Store, clock: ManualClock) -> None:
        (id,) = publish(store, 1)
        assert retry(store, take_one(store), delay=10) is Outcome.APPLIED
        assert state_of(store, id) is State.DELAYED
        clock.advance(9)
        assert take(store) == []
        clock.advance(2)
        lease = take_one(store)
        assert (lease.attempt, lease.failure) == (2, FAILED)

    def test_a_failure_may_say_anything(self, store: Store) -> None:
        publish(store, 1)
        earlier = tuple(Failure("NACKED", f"no {n} 한글", at=n, attempt=n, consumer="c") for n in range(KEPT_FAILURES))
        text = "line one\nline two ~ / 한글 \x00 " + "x" * 3000
        failure = Failure("HANDLER_ERROR", text, at=1.5, attempt=7, before=earlier)
        settle(store, take_one(store), Retry(0.0, failure))
        assert (lease := take_one(store)).failure == failure
        settle(store, lease, Retry())
        assert (again := take_one(store)).attempt == 3
        settle(store, again, Dead(failure))
        [entry] = store.browse(QUEUE, State.DEAD)
        assert entry.failure == failure

    def test_dead_is_set_aside_with_its_failure(self, store: Store, reopen: Reopen, clock: ManualClock) -> None:
        publish(store, {"a": 1}, id="m", priority=5)
        lease = take_one(store)
        assert bury(store, lease) is Outcome.APPLIED
        clock.advance(10_000)
        other = reopen()
        for handle in (store, other):
            entry = handle.find(QUEUE, "m")
            assert entry and (entry.state, entry.attempt) == (State.DEAD, 1)
            assert (entry.message, entry.failure) == (lease.message, FAILED)
            assert take(handle) == [] and handle.expired(QUEUE, 10) == []
        other.close()

    def test_g5_repeating_a_verdict_is_harmless(self, store: Store, reopen: Reopen) -> None:
        verdicts: dict[str, Verdict] = {"done": Done(), "again": Retry(60.0, FAILED), "dead": Dead(FAILED)}
        for id, verdict in verdicts.items():
            publish(store, id, id=id)
            lease = take_one(store)
            assert settle(store, lease, verdict) is Outcome.APPLIED
            before = store.counts(QUEUE)
            other = reopen()
            assert settle(store, lease, verdict) is Outcome.REPEATED
            assert settle(other, lease, verdict) is Outcome.REPEATED
            assert store.counts(QUEUE) == before
            other.close()

    def test_g5_a_repeated_retry_counts_while_it_is_not_leased_again(self, store: Store) -> None:
        publish(store, 1)
        lease = take_one(store)
        assert [retry(store, lease), retry(store, lease)] == [Outcome.APPLIED, Outcome.REPEATED]
        assert take_one(store).attempt == 2
        assert retry(store, lease) is Outcome.LOST

    def test_g5_another_verdict_with_the_same_receipt_is_lost(self, store: Store) -> None:
        verdicts: dict[str, Verdict] = {"done": Done(), "again": Retry(60.0, FAILED), "dead": Dead(FAILED)}
        for id, verdict in verdicts.items():
            publish(store, id, id=id)
            lease = take_one(store)
            settle(store, lease, verdict)
            before = store.counts(QUEUE)
            others = [other for other in verdicts.values() if other is not verdict]
            assert [settle(store, lease, other) for other in others] == [Outcome.LOST] * 2
            assert store.counts(QUEUE) == before

    def test_g5_a_receipt_twice_in_one_call_is_applied_once(self, store: Store) -> None:
        publish(store, 1)
        settlement = Settlement(take_one(store).receipt, Done(then=(draft("next", queue="next"),)))
        assert store.settle([settlement, settlement]) == [Outcome.APPLIED, Outcome.REPEATED]
        assert drain(store, "next") == ["next"]

    def test_many_are_settled_in_one_call_each_with_its_outcome(self, store: Store) -> None:
        store.publish([draft(n, id=f"m-{n}") for n in range(6)])
        leases = take(store, 6)
        ack(store, leases[4])
        retry(store, leases[5])
        verdicts: list[Verdict] = [Done(), Retry(60.0, FAILED), Dead(FAILED), Done(keep=True), Done(), Done()]
        settlements = [Settlement(lease.receipt, verdict) for lease, verdict in zip(leases, verdicts, strict=True)]
        applied, repeated, lost = Outcome.APPLIED, Outcome.REPEATED, Outcome.LOST
        assert store.settle(settlements) == [applied, applied, applied, applied, repeated, lost]
        found = [state_of(store, f"m-{n}") for n in range(6)]
        assert found == [State.DONE, State.DELAYED, State.DEAD, State.DONE, State.DONE, State.READY]

    def test_many_acks_in_one_call_each_have_their_outcome(self, store: Store, clock: ManualClock) -> None:
        store.publish([draft(n, id=f"m-{n}") for n in range(5)])
        stale = take(store, 1, seconds=10)[0]
        clock.advance(11)
        retry(store, store.expired(QUEUE, 1)[0])
        a, b, *rest = [lease.receipt for lease in take(store, 5)]
        assert store.settle([Settlement(a, Done())]) == [Outcome.APPLIED]
        receipts = [stale.receipt, a, b, b, *rest, Receipt("nowhere", "m-1", b.token)]
        found = store.settle([Settlement(receipt, Done()) for receipt in receipts])
        applied, repeated, lost = Outcome.APPLIED, Outcome.REPEATED, Outcome.LOST
        assert found == [lost, repeated, applied, repeated, applied, applied, applied, lost]
        assert count(store, State.DONE) == 5

    @pytest.mark.parametrize("grouped", [False, True])
    def test_many_acks_of_one_lease_each_have_their_outcome(self, store: Store, grouped: bool) -> None:
        store.publish([draft(n, id=f"m-{n}") for n in range(4)])
        store.publish([draft(n, id=f"n-{n}", group="g" if grouped else "") for n in range(2)])
        first, done, again, *rest = [lease.receipt for lease in take(store, 5)]
        assert store.settle([Settlement(done, Done())]) == [Outcome.APPLIED]
        assert store.settle([Settlement(again, Retry())]) == [Outcome.APPLIED]
        receipts = [*reversed(rest), replace(first, id="unknown"), again, done, first]
        applied, repeated, lost = Outcome.APPLIED, Outcome.REPEATED, Outcome.LOST
        found = store.settle([Settlement(receipt, Done()) for receipt in receipts])
        assert found == [applied, applied, lost, lost, repeated, applied]
        assert {lease.receipt.id for lease in take(store, 5)} == {again.id, "n-1"}

    def test_settling_over_several_queues_in_one_call(self, store: Store) -> None:
        for queue in ("a", "b", "c"):
            publish(store, queue, queue=queue)
        leases = [take_one(store, queue=queue) for queue in ("a", "b", "c")]
        settlements = [Settlement(lease.receipt, Done()) for lease in leases]
        assert store.settle(settlements, durable=True) == [Outcome.APPLIED] * 3
        assert [waiting(store, queue) for queue in ("a", "b", "c")] == [0, 0, 0]
        assert store.settle([]) == []

    def test_follow_ups_go_to_their_queues_with_the_verdict(self, store: Store, clock: ManualClock) -> None:
        publish(store, "in")
        then = (draft("now", queue="a"), draft("later", queue="a", delay=60), draft("here"), draft(b"b", queue="b"))
        assert ack(store, take_one(store), *then) is Outcome.APPLIED
        assert (drain(store, "a"), drain(store, "b"), drain(store)) == (["now"], [b"b"], ["here"])
        clock.advance(61)
        assert drain(store, "a") == ["later"]

    @pytest.mark.parametrize("kind", ["done", "retry", "dead"])
    def test_every_verdict_can_have_follow_ups(self, store: Store, kind: str) -> None:
        publish(store, "in", id="m")
        then = (draft("out", queue="out", id="m.dlq"),)
        verdicts: dict[str, Verdict] = {
            "done": Done(then),
            "retry": Retry(60.0, FAILED, then),
            "dead": Dead(FAILED, then),
        }
        states = {"done": State.DONE, "retry": State.DELAYED, "dead": State.DEAD}
        lease = take_one(store)
        assert settle(store, lease, verdicts[kind]) is Outcome.APPLIED
        assert state_of(store, "m") is states[kind]
        assert settle(store, lease, verdicts[kind]) is Outcome.REPEATED
        assert drain(store, "out") == ["out"]

    def test_g5_a_lost_verdict_drops_its_own_follow_ups_and_no_others(self, store: Store) -> None:
        publish(store, "old", "good")
        old, good = take(store, 2)
        retry(store, old)
        settlements = [
            Settlement(old.receipt, Done(then=(draft("from old", queue="out"),))),
            Settlement(good.receipt, Done(then=(draft("from good", queue="out"),))),
        ]
        assert store.settle(settlements) == [Outcome.LOST, Outcome.APPLIED]
        assert drain(store, "out") == ["from good"]

    def test_g5_a_late_ack_with_follow_ups_publishes_nothing(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1)
        lease = take_one(store, seconds=10)
        clock.advance(11)
        (over,) = store.expired(QUEUE, 1)
        assert ack(store, lease, draft("x", queue="out")) is Outcome.LOST
        assert waiting(store, "out") == 0
        assert ack(store, over, draft("y", queue="out")) is Outcome.APPLIED
        assert drain(store, "out") == ["y"]

    def test_g6_follow_ups_obey_dedup_keys_and_given_ids(self, store: Store) -> None:
        publish(store, "first", queue="out", dedup_key="k")
        publish(store, "given", queue="out", id="g")
        publish(store, "in")
        then = (
            draft("again", queue="out", dedup_key="k"),
            draft("again", queue="out", id="g"),
            draft("new", queue="out", dedup_key="k2"),
        )
        assert ack(store, take_one(store), *then) is Outcome.APPLIED
        assert store.publish([draft("x", queue="out", dedup_key="k2")])[0].duplicate
        assert sorted(drain(store, "out")) == ["first", "given", "new"]

    def test_follow_ups_are_never_kept_out_by_max_waiting(self, store: Store) -> None:
        terms = Terms(max_waiting=1)
        publish(store, 1, queue="out", terms=terms)
        publish(store, "in")
        assert ack(store, take_one(store), draft(2, queue="out", terms=terms)) is Outcome.APPLIED
        assert drain(store, "out") == [1, 2]

    def test_a_follow_up_too_large_keeps_the_verdict_out_too(self, store: Store) -> None:
        (id,) = publish(store, "in")
        lease = take_one(store)
        with pytest.raises(TooLarge):
            ack(store, lease, draft("x" * 1000, queue="out", terms=Terms(max_bytes=500)))
        assert state_of(store, id) is State.INFLIGHT and waiting(store, "out") == 0
        assert ack(store, lease) is Outcome.APPLIED

    def test_g1_a_settled_batch_is_settled_after_reopening(self, store: Store, reopen: Reopen) -> None:
        store.publish([draft(n) for n in range(4)])
        for lease in take(store, 4):
            settle(store, lease, Done(then=(draft("next", queue="next"),)), durable=True)
        store.close()
        other = reopen()
        assert (waiting(other), count(other, State.DONE), count(other, State.READY, "next")) == (0, 4, 4)
        other.close()

    def test_g7_a_message_is_in_one_state_through_its_whole_life(self, store: Store, clock: ManualClock) -> None:
        def states() -> list[State]:
            found = [state for state in State if any(entry.id == "m" for entry in store.browse(QUEUE, state))]
            assert store.counts(QUEUE) == {**dict.fromkeys(store.counts(QUEUE), 0), found[0]: 1}
            assert state_of(store, "m") is found[0]
            return found

        publish(store, 1, id="m", delay=10)
        assert states() == [State.DELAYED]
        clock.advance(11)
        lease = take_one(store)
        assert states() == [State.INFLIGHT]
        retry(store, lease)
        assert states() == [State.READY]
        bury(store, take_one(store))
        assert states() == [State.DEAD]
        store.revive(QUEUE, ["m"])
        assert states() == [State.READY]
        ack(store, take_one(store))
        assert states() == [State.DONE]

    def test_a_long_chain_of_follow_ups_stays_whole(self, store: Store) -> None:
        publish(store, 0, queue="q0")
        for n in range(20):
            lease = take_one(store, queue=f"q{n}")
            assert bodies([lease]) == [n]
            ack(store, lease, draft(n + 1, queue=f"q{n + 1}"))
        assert drain(store, "q20") == [20]

    def test_g8_a_lease_that_is_given_back_uncounted_is_no_attempt(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1, id="m", group="g")
        publish(store, 2, id="n", group="g")
        for _ in range(3):
            lease = take_one(store)
            assert (lease.receipt.id, lease.attempt) == ("m", 1)
            assert settle(store, lease, Retry(0.0, counted=False)) is Outcome.APPLIED
            assert settle(store, lease, Retry(0.0, counted=False)) is Outcome.REPEATED
        retry(store, take_one(store))
        second = take_one(store)
        assert second.attempt == 2 and second.failure == FAILED
        assert settle(store, second, Retry(0.0, second.failure, counted=False)) is Outcome.APPLIED
        entry = store.find(QUEUE, "m")
        assert entry is not None and (entry.attempt, entry.state) == (1, State.READY)
        clock.advance(1)
        third = take_one(store)
        assert (third.attempt, third.failure, third.message.body) == (2, FAILED, 1)
