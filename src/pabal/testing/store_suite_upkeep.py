"""Browse and maintain: counts, browse, find, purge, queues, settings, damage (G10), close."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pabal.errors import QueueNotEmpty, StoreClosed
from pabal.policy.retention import LOOK_SECONDS
from pabal.store import (
    Checkable,
    Dead,
    Done,
    Entry,
    Outcome,
    Published,
    Retry,
    Settlement,
    State,
    Store,
    Verdict,
    Waitable,
)
from pabal.testing.clock import ManualClock
from pabal.testing.store_place import (
    FAILED,
    QUEUE,
    Damage,
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

DAY = 86400.0


def pages(store: Store, state: State, size: int, queue: str = QUEUE) -> list[Entry]:
    """Browse to the end in pages."""
    found: list[Entry] = []
    while page := store.browse(queue, state, after=found[-1].cursor if found else "", limit=size):
        assert len(page) <= size
        found.extend(page)
    return found


class UpkeepTests(StorePlace):
    def test_counts_says_how_many_are_in_each_state(self, store: Store, reopen: Reopen) -> None:
        assert sum(store.counts(QUEUE).values()) == 0
        store.publish([draft(n, id=f"m-{n}") for n in range(10)])
        publish(store, "later", "later", delay=60)
        leases = take(store, 6)
        bury(store, leases[0])
        for lease in leases[1:4]:
            ack(store, lease)
        other = reopen()
        expected = {State.READY: 4, State.DELAYED: 2, State.INFLIGHT: 2, State.DEAD: 1, State.DONE: 3}
        for handle in (store, other):
            assert {state: many for state, many in handle.counts(QUEUE).items() if many} == expected
        assert sum(store.counts("other").values()) == 0
        other.close()

    def test_browse_shows_each_message_once_whatever_the_page(self, store: Store) -> None:
        store.publish([draft(n, id=f"m-{n:02d}", priority=n % 3) for n in range(25)])
        store.publish([draft(n, id=f"d-{n:02d}", delay=60 + n % 3) for n in range(25)])
        leases = take(store, 20)
        store.settle([Settlement(lease.receipt, Dead(FAILED)) for lease in leases[:7]])
        store.settle([Settlement(lease.receipt, Done()) for lease in leases[7:14]])
        for state in (State.READY, State.DELAYED, State.INFLIGHT, State.DEAD, State.DONE):
            whole = [entry.id for entry in store.browse(QUEUE, state)]
            assert len(set(whole)) == len(whole) == count(store, state)
            for size in (1, 2, 3, 7):
                assert [entry.id for entry in pages(store, state, size)] == whole, (state, size)

    def test_browse_shows_messages_that_came_within_a_millisecond_once(self, store: Store, clock: ManualClock) -> None:
        ids = [f"m-{(n * 37) % 101:03d}" for n in range(60)]  # not in the order of their times
        for id in ids:
            publish(store, 1, id=id)
            clock.advance(0.00003)
        for size in (7, 20, 100):
            shown = [entry.id for entry in pages(store, State.READY, size)]
            assert sorted(shown) == sorted(ids), size

    def test_browse_shows_ready_messages_in_lease_order(self, store: Store, clock: ManualClock) -> None:
        for n in range(12):
            publish(store, n, priority=(0, 5, -5)[n % 3], delay=(0, 0, 0, 2)[n % 4])
            clock.advance(1)
        clock.advance(10)
        leased = bodies(take(store, 1))  # messages that were due are ready from here on
        shown = [entry.message.body for entry in pages(store, State.READY, 5) if entry.message]
        assert leased + shown == leased + drain(store)

    def test_browse_and_find_change_nothing(self, store: Store, clock: ManualClock) -> None:
        (id,) = publish(store, {"a": 1})
        for _ in range(3):
            store.browse(QUEUE, State.READY)
            store.find(QUEUE, id)
        lease = take_one(store, seconds=10)
        entry = store.find(QUEUE, id)
        assert entry and (entry.state, entry.attempt, entry.message) == (State.INFLIGHT, 1, lease.message)
        assert lease.attempt == 1 and store.browse(QUEUE, State.READY) == []

    def test_an_entry_says_what_is_known(self, store: Store, clock: ManualClock) -> None:
        publish(store, "x", id="m", delay=30)
        entry = store.find(QUEUE, "m")
        assert entry and (entry.queue, entry.id, entry.state, entry.attempt) == (QUEUE, "m", State.DELAYED, 0)
        assert entry.due_at == pytest.approx(clock.now() + 30, abs=0.01)
        assert entry.message and entry.message.body == "x"
        clock.advance(31)
        retry(store, take_one(store), delay=60)
        entry = store.find(QUEUE, "m")
        assert entry and (entry.attempt, entry.failure) == (1, FAILED)

    def test_find_knows_only_what_is_there(self, store: Store) -> None:
        publish(store, 1, id="m")
        assert store.find(QUEUE, "other") is None and store.find("other", "m") is None
        assert store.find(QUEUE, "m-") is None and store.find(QUEUE, "M") is None
        assert store.browse("other", State.READY) == []

    @pytest.mark.parametrize("state", [State.READY, State.DELAYED, State.DEAD, State.DONE])
    def test_purge_removes_one_state_only(self, store: Store, state: State) -> None:
        self.fill(store)
        before = store.counts(QUEUE)
        assert store.purge(QUEUE, state) == before[state] == 2
        expected = {other: many for other, many in before.items() if many and other is not state}
        assert {other: many for other, many in store.counts(QUEUE).items() if many} == expected
        assert store.browse(QUEUE, state) == [] and store.purge(QUEUE, state) == 0
        assert store.purge("other", state) == 0

    @pytest.mark.parametrize("state", [State.READY, State.DELAYED, State.DEAD, State.DONE])
    def test_purge_removes_only_the_ids_it_is_given(self, store: Store, state: State) -> None:
        self.fill(store)
        first, second = store.browse(QUEUE, state)
        other = next(entry for entry in store.browse(QUEUE, State.INFLIGHT))
        assert store.purge(QUEUE, state, ids=[]) == 0
        assert store.purge(QUEUE, state, ids=[other.id, "nobody", second.id, second.id]) == 1
        assert [entry.id for entry in store.browse(QUEUE, state)] == [first.id]
        assert store.find(QUEUE, second.id) is None and state_of(store, other.id) is State.INFLIGHT
        assert store.purge(QUEUE, state, ids=[first.id], age=1000) == 0
        assert store.purge(QUEUE, state, ids=[first.id]) == 1

    def test_an_entry_in_flight_says_under_which_token(self, store: Store) -> None:
        publish(store, 1, id="m")
        assert [entry.token for entry in store.browse(QUEUE, State.READY)] == [""]
        retry(store, take_one(store))
        lease = take_one(store)
        entry = store.find(QUEUE, "m")
        assert entry and entry.token == lease.receipt.token
        assert [entry.token for entry in store.browse(QUEUE, State.INFLIGHT)] == [lease.receipt.token]
        ack(store, lease)
        entry = store.find(QUEUE, "m")
        assert entry is None or entry.token == ""

    def test_purge_never_takes_what_is_inflight(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1)
        lease = take_one(store, seconds=10)
        clock.advance(1000)
        assert store.purge(QUEUE, State.INFLIGHT) == 0
        assert ack(store, lease) is Outcome.APPLIED

    def test_purge_removes_no_more_than_its_limit(self, store: Store) -> None:
        store.publish([draft(n) for n in range(7)])
        store.settle([Settlement(lease.receipt, Done()) for lease in take(store, 7)])
        assert [store.purge(QUEUE, State.DONE, limit=3) for _ in range(4)] == [3, 3, 1, 0]

    @pytest.mark.parametrize("state", [State.READY, State.DEAD, State.DONE])
    def test_purge_spares_what_is_younger_than_age(self, store: Store, clock: ManualClock, state: State) -> None:
        verdicts: dict[State, Verdict] = {State.DEAD: Dead(FAILED), State.DONE: Done(), State.READY: Retry(0.0, FAILED)}
        publish(store, "old", "young", group="g" if state is not State.READY else "")
        clock.advance(1000)
        leases = take(store, 2)
        settle(store, leases[0], verdicts[state])
        clock.advance(100)
        settle(store, leases[-1] if len(leases) == 2 else take_one(store), verdicts[state])
        clock.advance(50)
        assert store.purge(QUEUE, state, age=151) == 0
        assert store.purge(QUEUE, state, age=149) == 1
        assert store.purge(QUEUE, state, age=51) == 0
        assert store.purge(QUEUE, state, age=49) == 1

    @pytest.mark.parametrize("state", [State.READY, State.DELAYED, State.DEAD, State.DONE])
    def test_purge_without_an_age_removes_also_what_the_clock_shows_as_later(
        self, store: Store, clock: ManualClock, state: State
    ) -> None:
        self.fill(store)
        clock.step_wall(-3600)
        first, second = store.browse(QUEUE, state)
        assert store.purge(QUEUE, state, ids=[first.id]) == 1
        assert [entry.id for entry in store.browse(QUEUE, state)] == [second.id]
        assert store.purge(QUEUE, state) == 1 and store.browse(QUEUE, state) == []

    @pytest.mark.parametrize("state", [State.DEAD, State.DONE])
    def test_trim_removes_what_is_too_old_after_a_while(
        self, store: Store, reopen: Reopen, clock: ManualClock, state: State
    ) -> None:
        self.settle_two(store, clock, state)  # one 100 seconds after the other
        clock.advance(DAY - 150)
        assert store.trim(QUEUE, state, age=DAY) == 0  # the first look
        clock.advance(LOOK_SECONDS - 1)
        assert store.trim(QUEUE, state, age=DAY) == 0 and count(store, state) == 2
        store.close()
        store = reopen()  # another process has the second look
        clock.advance(1)
        assert store.trim(QUEUE, state, age=DAY) == 1  # the second one was not too old at the first look
        clock.advance(LOOK_SECONDS)
        assert store.trim(QUEUE, state, age=DAY) == 1 and count(store, state) == 0
        assert store.trim(QUEUE, state, age=DAY) == 0 and store.trim("other", state, age=DAY) == 0
        store.close()

    @pytest.mark.parametrize("state", [State.DEAD, State.DONE])
    def test_trim_removes_nothing_for_a_clock_that_jumped(self, store: Store, clock: ManualClock, state: State) -> None:
        self.settle_two(store, clock, state)
        for _ in range(4):
            clock.step_wall(20 * DAY)
            for _ in range(3):
                assert store.trim(QUEUE, state, age=DAY) == 0
                clock.advance(60)
            clock.step_wall(-20 * DAY)
            assert store.trim(QUEUE, state, age=DAY) == 0
            clock.advance(LOOK_SECONDS)
        assert count(store, state) == 2

    def test_trim_counts_the_time_since_a_reboot(self, store: Store, clock: ManualClock) -> None:
        self.settle_two(store, clock, State.DEAD)
        clock.advance(2 * DAY)
        removed = 0
        for _ in range(2 + int(LOOK_SECONDS)):  # a machine that is never up for long: one second at each look
            removed += store.trim(QUEUE, State.DEAD, age=DAY)
            clock.reboot()
        assert removed == 2

    def test_trim_removes_no_more_than_its_limit(self, store: Store, clock: ManualClock) -> None:
        store.publish([draft(n) for n in range(7)])
        store.settle([Settlement(lease.receipt, Dead(FAILED)) for lease in take(store, 7)])
        clock.advance(DAY)
        assert store.trim(QUEUE, State.DEAD, age=DAY, limit=3) == 0
        clock.advance(LOOK_SECONDS)
        assert [store.trim(QUEUE, State.DEAD, age=DAY, limit=3) for _ in range(4)] == [3, 3, 1, 0]

    def settle_two(self, store: Store, clock: ManualClock, state: State) -> None:
        verdict: Verdict = Dead(FAILED) if state is State.DEAD else Done(keep=True)
        for body in ("old", "young"):
            publish(store, body)
            settle(store, take_one(store), verdict)
            clock.advance(100)

    def test_purging_a_tombstone_forgets_the_message(self, store: Store) -> None:
        publish(store, 1, id="m")
        lease = take_one(store)
        ack(store, lease)
        assert store.purge(QUEUE, State.DONE) == 1
        assert store.find(QUEUE, "m") is None
        assert ack(store, lease) is Outcome.LOST

    def test_queues_are_named_in_order(self, store: Store, reopen: Reopen) -> None:
        assert store.queues() == []
        for queue in ("b", "a.x", "c-1"):
            publish(store, 1, queue=queue)
        store.configure("a", {"paused": True})
        ack(store, take_one(store, queue="b"), draft(2, queue="new"))
        other = reopen()
        assert store.queues() == other.queues() == ["a", "a.x", "b", "c-1", "new"]
        other.close()

    def test_looking_at_a_queue_does_not_make_it(self, store: Store) -> None:
        take(store)
        store.counts(QUEUE), store.browse(QUEUE, State.READY), store.find(QUEUE, "m"), store.settings(QUEUE)
        store.expired(QUEUE, 1), store.next_due(QUEUE), store.purge(QUEUE, State.DONE), store.revive(QUEUE, ["m"])
        store.cancel(QUEUE, ["m"], inflight=True)
        assert store.queues() == []

    def test_settings_are_kept_as_given(self, store: Store, reopen: Reopen) -> None:
        assert store.settings(QUEUE) is None
        document = {"visibilityTimeoutSec": 30.5, "retry": {"limit": 3}, "schema": {"한": [1, None, "x"]}, "e": {}}
        store.configure(QUEUE, document)
        other = reopen()
        assert store.settings(QUEUE) == other.settings(QUEUE) == document
        other.configure(QUEUE, {"paused": True})
        assert store.settings(QUEUE) == {"paused": True}
        assert store.settings("other") is None
        assert not store.configure(QUEUE, {"n": 1}, known=document) and not store.configure(QUEUE, {"n": 1}, known=None)
        assert store.configure(QUEUE, document, known={"paused": True}) and store.settings(QUEUE) == document
        assert store.configure("other", {}, known=None) and not other.configure("other", {"n": 1}, known=None)
        assert other.settings("other") == {}
        other.close()

    def test_only_one_of_many_replaces_the_settings_they_know(self, store: Store, reopen: Reopen) -> None:
        stores = [store, reopen(), reopen()]
        store.configure(QUEUE, {"n": 0})

        def count(own: Store) -> None:
            done = 0
            while done < 10:
                known = own.settings(QUEUE)
                assert known is not None
                done += own.configure(QUEUE, {"n": known["n"] + 1}, known=known)

        with ThreadPoolExecutor() as pool:
            list(pool.map(count, stores))
        assert store.settings(QUEUE) == {"n": 30}
        for other in stores[1:]:
            other.close()

    def test_next_due_is_the_earliest_thing_time_will_do(self, store: Store, clock: ManualClock) -> None:
        assert store.next_due(QUEUE) is None
        publish(store, "ready")
        assert store.next_due(QUEUE) is None
        publish(store, "ttl", expires_at=clock.now() + 500)
        assert store.next_due(QUEUE) == pytest.approx(500, abs=0.01)
        publish(store, "delayed", delay=100)
        assert store.next_due(QUEUE) == pytest.approx(100, abs=0.01)
        take_one(store, seconds=30)
        assert store.next_due(QUEUE) == pytest.approx(30, abs=0.01)
        clock.advance(10)
        assert store.next_due(QUEUE) == pytest.approx(20, abs=0.01)
        clock.advance(20.5)
        due = store.next_due(QUEUE)
        assert due is not None and due <= 0

    def test_next_due_forgets_what_is_settled(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1)
        lease = take_one(store, seconds=30)
        clock.reboot()
        due = store.next_due(QUEUE)
        assert due is not None and due <= 0
        ack(store, lease)
        assert store.next_due(QUEUE) is None

    def test_g10_a_damaged_message_is_set_aside_and_all_else_is_served(
        self, store: Store, damage: Damage, reopen: Reopen, clock: ManualClock
    ) -> None:
        publish(store, {"text": "good " * 20}, id="bad")
        publish(store, 1, 2)
        store.close()
        damage(QUEUE, "bad")
        other = reopen()
        assert drain(other) == [1, 2]
        clock.advance(10)  # a store may give the writer of a file some seconds
        assert drain(other) == []
        (entry,) = other.browse(QUEUE, State.CORRUPT)
        assert entry.message is None and len(entry.data) > 50
        assert entry.failure and entry.failure.code and entry.failure.reason
        assert count(other, State.CORRUPT) == 1 and waiting(other) == 0
        found = other.find(QUEUE, entry.id)
        assert found and found.state is State.CORRUPT
        assert other.purge(QUEUE, State.CORRUPT) == 1 and other.browse(QUEUE, State.CORRUPT) == []
        other.close()

    def test_g10_a_damaged_head_does_not_block_its_group(
        self, store: Store, damage: Damage, reopen: Reopen, clock: ManualClock
    ) -> None:
        publish(store, {"text": "good " * 20}, id="bad", group="g")
        publish(store, 2, group="g")
        store.close()
        damage(QUEUE, "bad")
        other = reopen()
        got = drain(other)
        clock.advance(10)
        assert got + drain(other) == [2]
        assert count(other, State.CORRUPT) == 1
        other.close()

    def test_g10_damage_found_in_flight_is_set_aside(
        self, store: Store, damage: Damage, reopen: Reopen, clock: ManualClock
    ) -> None:
        publish(store, {"text": "good " * 20}, id="bad")
        take_one(store, seconds=10)
        store.close()
        damage(QUEUE, "bad")
        clock.advance(11)
        other = reopen()
        for _ in range(3):
            for over in other.expired(QUEUE, 10):
                retry(other, over)
            assert take(other) == []
            clock.advance(10)
        assert count(other, State.CORRUPT) == 1 and waiting(other) == 0
        other.close()

    def test_check_finds_nothing_wrong_with_a_sound_store(self, store: Store) -> None:
        if not isinstance(store, Checkable):
            pytest.skip("this store has no check")
        self.fill(store)
        assert store.check(repair=False) == [] and store.check(repair=True) == []

    def test_a_schema_that_no_body_can_be_checked_with_is_found_and_set_aside(self, store: Store) -> None:
        if not isinstance(store, Checkable):
            pytest.skip("this store has no check")
        store.configure(QUEUE, {"schema": {"type": "objecT"}})
        assert [finding.repaired for finding in store.check(repair=False)] == [False]
        assert [finding.repaired for finding in store.check(repair=True)] == [True]
        assert store.settings(QUEUE) is None and store.check(repair=False) == []

    def test_facts_are_words(self, store: Store) -> None:
        facts = store.facts()
        assert facts and all(isinstance(word, str) for pair in facts.items() for word in pair)

    def test_a_closed_store_says_so(self, store: Store) -> None:
        publish(store, 1)
        lease = take_one(store)
        store.close()
        store.close()
        calls: list[Callable[[], Any]] = [
            lambda: publish(store, 2),
            lambda: take(store),
            lambda: ack(store, lease),
            lambda: store.extend([lease.receipt], 10),
            lambda: store.expired(QUEUE, 1),
            lambda: store.next_due(QUEUE),
            lambda: store.counts(QUEUE),
            lambda: store.browse(QUEUE, State.READY),
            lambda: store.find(QUEUE, lease.receipt.id),
            lambda: store.revive(QUEUE, ["x"]),
            lambda: store.cancel(QUEUE, ["x"]),
            lambda: store.purge(QUEUE, State.DONE),
            lambda: store.queues(),
            lambda: store.settings(QUEUE),
            lambda: store.configure(QUEUE, {}),
        ]
        if isinstance(store, Waitable):
            calls.append(lambda: store.watch([QUEUE]))
        for call in calls:
            with pytest.raises(StoreClosed):
                call()

    def fill(self, store: Store) -> None:
        """Put two messages into each state."""
        store.publish([draft(n) for n in range(8)])
        publish(store, "later", "later", delay=60)
        leases = take(store, 6)
        store.settle([Settlement(lease.receipt, Done()) for lease in leases[:2]])
        store.settle([Settlement(lease.receipt, Dead(FAILED)) for lease in leases[2:4]])

    def test_a_queue_is_deleted_with_all_that_it_has(self, store: Store, reopen: Reopen, clock: ManualClock) -> None:
        other = reopen()
        assert store.delete("nothing") == 0 and store.queues() == []
        store.configure(QUEUE, {"paused": True})
        store.publish(
            [draft(n, id=f"m-{n}", group="g" if n > 3 else "", delay=5.0 if n == 3 else 0.0) for n in range(6)]
        )
        publish(other, "stays", queue="other", id="m-0")
        ack(store, take_one(store))
        bury(store, take_one(store))
        held = take_one(other)
        with pytest.raises(QueueNotEmpty, match="2 ready, 1 delayed, 1 inflight, 1 dead"):
            store.delete(QUEUE)
        assert store.counts(QUEUE)[State.READY] == 2 and store.settings(QUEUE) == {"paused": True}
        assert store.delete(QUEUE, force=True) == 5
        assert store.delete(QUEUE) == 0
        for handle in (store, other, reopen()):
            assert handle.queues() == ["other"] and not any(handle.counts(QUEUE).values())
            assert handle.settings(QUEUE) is None and handle.find(QUEUE, "m-0") is None
            assert take(handle) == []
        assert ack(other, held) is Outcome.LOST
        assert count(store, State.READY, "other") == 1
        # A handle that knew it makes it again, and its ids are free.
        assert other.publish([draft("new", id="m-0", group="g")]) == [Published("m-0")]
        assert store.queues() == ["jobs", "other"] and drain(store) == ["new"]
        # Only tombstones are left: these keep nothing.
        assert store.delete(QUEUE) == 0 and reopen().queues() == ["other"]
        other.configure(QUEUE, {})
        assert store.queues() == ["jobs", "other"] and reopen().settings(QUEUE) == {}
        assert (isinstance(store, Checkable) and store.check(repair=False)) in ([], False)
