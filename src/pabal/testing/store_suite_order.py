"""The order of delivery: priority, due time, id; groups; targets (G4)."""

from pabal.store import Dead, Done, Outcome, Retry, Settlement, State, Store
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
    publish,
    retry,
    settle,
    take,
    take_one,
)


class OrderTests(StorePlace):
    def test_g4_the_larger_priority_comes_first(self, store: Store) -> None:
        for priority in (0, -100, 9, 100, -6, 6):
            publish(store, priority, priority=priority)
        assert drain(store) == [100, 9, 6, 0, -6, -100]

    def test_g4_at_one_priority_what_was_due_first_comes_first(self, store: Store, clock: ManualClock) -> None:
        publish(store, "second", delay=5)
        publish(store, "first")
        clock.advance(10)
        publish(store, "third")
        assert drain(store) == ["first", "second", "third"]

    def test_g4_at_one_moment_the_smaller_id_comes_first(self, store: Store) -> None:
        store.publish([draft(id, id=id) for id in ("c", "a", "B", "b-1", "b")])
        assert drain(store) == ["B", "a", "b", "b-1", "c"]

    def test_g4_a_batch_is_leased_in_the_same_order(self, store: Store) -> None:
        store.publish([draft(n, id=f"m-{n:03d}", priority=n % 3) for n in range(30)])
        expected = sorted(range(30), key=lambda n: (-(n % 3), n))
        assert bodies(take(store, 10)) == expected[:10]
        assert bodies(take(store, 100)) == expected[10:]

    def test_g4_a_retried_message_queues_up_by_its_new_due_time(self, store: Store, clock: ManualClock) -> None:
        publish(store, "a", "b")
        lease = take_one(store)
        clock.advance(1)
        retry(store, lease)
        clock.advance(1)
        publish(store, "c")
        assert drain(store) == ["b", "a", "c"]

    def test_g4_another_handle_sees_the_same_order(self, store: Store, reopen: Reopen, clock: ManualClock) -> None:
        for n in range(10):
            publish(store, n, priority=n % 2)
            clock.advance(1)
        other = reopen()
        assert drain(other) == [1, 3, 5, 7, 9, 0, 2, 4, 6, 8]
        other.close()

    def test_g4_a_group_is_delivered_in_publish_order_whatever_the_priority(
        self, store: Store, clock: ManualClock
    ) -> None:
        for n in range(5):
            publish(store, n, group="g", priority=n * 10)
            clock.advance(1)
        assert drain(store) == [0, 1, 2, 3, 4]

    def test_g4_a_group_is_in_publish_order_whatever_the_id(self, store: Store) -> None:
        store.publish([draft(id, id=id, group="g") for id in ("c", "a", "d", "b")])
        publish(store, "0", id="0", group="g")
        assert drain(store) == ["c", "a", "d", "b", "0"]

    def test_g4_a_group_gives_one_message_at_a_time(self, store: Store) -> None:
        publish(store, 1, 2, 3, group="g")
        assert bodies(held := take(store, 10)) == [1]
        assert take(store, 10) == []
        ack(store, held[0])
        assert bodies(take(store, 10)) == [2]

    def test_g4_two_handles_share_the_order_of_a_group(self, store: Store, reopen: Reopen) -> None:
        other = reopen()
        publish(store, 1, group="g")
        publish(other, 2, group="g")
        first = take_one(other)
        assert first.message.body == 1 and take(store) == []
        ack(other, first)
        assert bodies(take(store)) == [2]
        other.close()

    def test_g4_a_lease_of_successive_messages_takes_a_group_after_the_other(
        self, store: Store, clock: ManualClock
    ) -> None:
        for body, group in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("alone", ""), ("a3", "a"), ("b2", "b")):
            publish(store, body, group=group, priority=5 if body == "b2" else 0)
            clock.advance(1)
        assert bodies(take(store, 10, successive=True)) == ["a1", "a2", "a3", "b1", "b2", "alone"]
        assert take(store, 10, successive=True) == []

    def test_g4_a_lease_of_successive_messages_keeps_to_its_limit(self, store: Store) -> None:
        publish(store, 1, 2, 3, 4, group="a")
        publish(store, 5, 6, group="b")
        first = take(store, 3, successive=True)
        assert bodies(first) == [1, 2, 3]
        second = take(store, 10, successive=True)
        assert bodies(second) == [5, 6]
        store.settle([Settlement(lease.receipt, Done()) for lease in first])
        assert bodies(take(store, 10, successive=True)) == [4]

    def test_g4_a_group_stays_locked_until_all_of_a_lease_are_settled(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1, 2, 3, 4, group="g")
        one, two, three = take(store, 3, successive=True)
        ack(store, two)
        assert take(store, 10, successive=True) == []
        retry(store, one)
        assert take(store, 10, successive=True) == []
        publish(store, 5, group="g")
        assert take(store) == []
        ack(store, three)
        assert bodies(take(store, 10, successive=True)) == [1, 4, 5]

    def test_g4_one_of_a_lease_that_comes_back_with_a_delay_blocks_its_group(
        self, store: Store, clock: ManualClock
    ) -> None:
        publish(store, 1, 2, 3, group="g")
        one, two = take(store, 2, seconds=60, successive=True)
        retry(store, one, delay=10)
        clock.advance(11)
        assert take(store, 10, successive=True) == []  # the second is still in flight
        retry(store, two, delay=10)
        assert bodies(held := take(store, 10, successive=True)) == [1]  # the third may not overtake the second
        clock.advance(11)
        ack(store, held[0])
        assert bodies(take(store, 10, successive=True)) == [2, 3]

    def test_g4_all_of_a_lease_come_back_in_order_whatever_the_order_of_verdicts(
        self, store: Store, reopen: Reopen
    ) -> None:
        publish(store, 1, 2, 3, 4, group="g")
        for lease in reversed(take(store, 3, successive=True)):
            assert take(store, 10) == []
            retry(store, lease)
        other = reopen()
        assert bodies(take(other, 10, successive=True)) == [1, 2, 3, 4]
        other.close()

    def test_g4_verdicts_on_a_group_in_one_call_let_the_first_that_is_left_come(self, store: Store) -> None:
        publish(store, 1, 2, 3, 4, group="g")
        one, two, three = take(store, 3, successive=True)
        store.settle(
            [
                Settlement(three.receipt, Retry(0.0, FAILED)),
                Settlement(one.receipt, Dead(FAILED)),
                Settlement(two.receipt, Retry(0.0, None, counted=False)),
            ]
        )
        assert bodies(take(store, 10)) == [2]

    def test_g4_a_lease_of_several_of_a_group_that_runs_out_comes_back_in_order(
        self, store: Store, clock: ManualClock
    ) -> None:
        publish(store, 1, 2, 3, group="g")
        one, two = take(store, 2, seconds=10, successive=True)
        store.extend([one.receipt], 60)
        clock.advance(11)
        (over,) = store.expired(QUEUE, 10)
        assert over.message.body == 2 and take(store, 10, successive=True) == []
        retry(store, over)
        assert take(store, 10, successive=True) == []
        clock.advance(50)
        (over,) = store.expired(QUEUE, 10)
        retry(store, over)
        assert bodies(take(store, 10, successive=True)) == [1, 2, 3]

    def test_g4_a_lease_of_successive_messages_stops_at_a_delayed_one(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1, group="g")
        publish(store, 2, group="g", delay=10)
        publish(store, 3, group="g")
        assert bodies(held := take(store, 10, successive=True)) == [1]
        clock.advance(11)
        assert take(store, 10, successive=True) == []
        ack(store, held[0])
        assert bodies(take(store, 10, successive=True)) == [2, 3]

    def test_g4_a_lease_of_successive_messages_stops_at_one_for_another_consumer(self, store: Store) -> None:
        publish(store, 1, group="g")
        publish(store, 2, group="g", target="me")
        publish(store, 3, group="g", target="you")
        publish(store, 4, group="g")
        assert bodies(held := take(store, 10, successive=True, consumer="me")) == [1, 2]
        for lease in held:
            ack(store, lease)
        assert take(store, 10, successive=True, consumer="me") == []
        assert bodies(take(store, 10, successive=True, consumer="you")) == [3, 4]

    def test_g4_a_repeated_token_gives_a_group_in_order_again(self, store: Store, reopen: Reopen) -> None:
        store.publish([draft(id, id=id, group="g", priority=int(id, 16)) for id in "b1f"])
        store.publish([draft("0", id="0")])
        first = take(store, 10, token="t" * 16, successive=True)
        other = reopen()
        again = take(other, 10, token="t" * 16, successive=True)
        assert bodies(first) == bodies(again) == ["b", "1", "f", "0"]
        other.close()

    def test_g4_a_cancelled_one_of_a_lease_leaves_the_group_to_the_others(self, store: Store) -> None:
        publish(store, 1, 2, 3, group="g")
        one, two = take(store, 2, successive=True)
        store.cancel(QUEUE, [one.receipt.id], inflight=True)
        assert take(store) == []
        store.cancel(QUEUE, [two.receipt.id], inflight=True)
        assert bodies(take(store)) == [3]

    def test_g4_groups_do_not_wait_for_each_other(self, store: Store) -> None:
        groups = [f"g-{n}" for n in range(50)]
        store.publish([draft([group, n], group=group) for n in range(3) for group in groups])
        publish(store, "alone")
        first = take(store, 1000)
        assert sorted(map(str, bodies(first))) == sorted(map(str, [[group, 0] for group in groups] + ["alone"]))
        store.settle([Settlement(lease.receipt, Done()) for lease in first])
        second = take(store, 1000)
        assert [body[1] for body in bodies(second)] == [1] * 50

    def test_g4_the_same_group_in_two_queues_is_two_groups(self, store: Store) -> None:
        publish(store, 1, group="g")
        publish(store, 2, group="g", queue="other")
        take_one(store)
        assert bodies(take(store, queue="other")) == [2]

    def test_g4_a_delayed_head_blocks_its_group(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1, group="g", delay=10)
        publish(store, 2, group="g", priority=9)
        publish(store, "free")
        assert bodies(take(store, 10)) == ["free"]
        clock.advance(11)
        assert drain(store) == [1, 2]

    def test_g4_a_retrying_head_blocks_its_group(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1, 2, group="g")
        retry(store, take_one(store), delay=10)
        assert take(store) == []
        clock.advance(11)
        assert drain(store) == [1, 2]

    def test_g4_a_head_retried_at_once_is_again_the_head(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1, 2, group="g")
        lease = take_one(store)
        clock.advance(5)
        retry(store, lease)
        assert drain(store) == [1, 2]

    def test_g4_a_head_whose_lease_ran_out_blocks_until_judged(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1, 2, group="g")
        take_one(store, seconds=10)
        clock.advance(11)
        assert take(store) == []
        (over,) = store.expired(QUEUE, 10)
        assert take(store) == []
        retry(store, over)
        assert drain(store) == [1, 2]

    def test_g4_a_dead_head_lets_the_next_come(self, store: Store) -> None:
        publish(store, 1, 2, group="g")
        bury(store, take_one(store))
        assert drain(store) == [2]

    def test_g4_a_purged_head_lets_the_next_come(self, store: Store) -> None:
        publish(store, 1, group="g", delay=60)
        publish(store, 2, group="g")
        assert store.purge(QUEUE, State.DELAYED) == 1
        assert drain(store) == [2]

    def test_g4_a_revived_message_joins_the_end_of_its_group(self, store: Store) -> None:
        publish(store, 1, 2, 3, group="g")
        bury(store, lease := take_one(store))
        assert store.revive(QUEUE, [lease.receipt.id]) == [lease.receipt.id]
        assert drain(store) == [2, 3, 1]

    def test_g4_a_follow_up_joins_the_end_of_its_group(self, store: Store) -> None:
        publish(store, 1, 2, group="g")
        ack(store, take_one(store), draft(3, group="g"))
        assert drain(store) == [2, 3]

    def test_g4_a_group_waits_across_reopening(self, store: Store, reopen: Reopen) -> None:
        publish(store, 1, 2, group="g")
        lease = take_one(store)
        other = reopen()
        assert take(other) == []
        ack(other, lease)
        assert drain(other) == [2]
        other.close()

    def test_g4_any_text_can_be_a_group(self, store: Store) -> None:
        groups = ["../x", "a/b", "A", "a", "한글", "g" * 1024, " ", "~", "a b", "."]
        store.publish([draft(group, group=group) for group in groups])
        assert sorted(bodies(take(store, 100))) == sorted(groups)

    def test_a_message_with_a_target_is_leased_by_its_target_only(self, store: Store) -> None:
        publish(store, "for a", target="a")
        publish(store, "for all")
        publish(store, "for b", target="b")
        assert bodies(take(store, 10, consumer="b")) == ["for all", "for b"]
        assert take(store, 10, consumer="c") == [] and take(store, 10) == []
        assert bodies(take(store, 10, consumer="a")) == ["for a"]

    def test_a_backlog_for_others_does_not_hide_what_is_mine(self, store: Store) -> None:
        store.publish([draft(n, target="away", priority=9) for n in range(300)])
        publish(store, "mine", target="me")
        publish(store, "anyone's", priority=-5)
        assert drain(store, consumer="me") == ["mine", "anyone's"]

    def test_a_target_that_is_away_blocks_its_group(self, store: Store) -> None:
        publish(store, 1, group="g", target="away")
        publish(store, 2, group="g")
        assert take(store, consumer="here") == []
        assert bodies(take(store, consumer="away")) == [1]

    def test_a_retried_message_keeps_its_target(self, store: Store) -> None:
        publish(store, 1, target="a")
        retry(store, take_one(store, consumer="a"))
        assert take(store, consumer="b") == []
        assert take_one(store, consumer="a").attempt == 2

    def test_g4_acks_in_one_call_let_the_next_of_each_group_come(self, store: Store) -> None:
        store.publish([draft(f"{group}{n}", group=group) for n in range(2) for group in "xyz"])
        leases = take(store, 10)
        assert sorted(bodies(leases)) == ["x0", "y0", "z0"]
        assert store.settle([Settlement(lease.receipt, Done()) for lease in leases]) == [Outcome.APPLIED] * 3
        assert sorted(bodies(take(store, 10))) == ["x1", "y1", "z1"]

    def test_a_dropped_or_dead_message_of_many_groups_frees_only_its_own(self, store: Store) -> None:
        store.publish([draft(f"{group}{n}", group=group) for n in range(2) for group in "xyz"])
        x, y, _ = sorted(take(store, 10), key=lambda lease: str(lease.message.body))
        assert settle(store, x, Done(failure=FAILED)) is Outcome.APPLIED
        assert settle(store, y, Dead(FAILED)) is Outcome.APPLIED
        assert sorted(bodies(take(store, 10))) == ["x1", "y1"]
