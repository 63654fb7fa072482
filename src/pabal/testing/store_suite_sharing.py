"""Many at once: handles, threads, processes, forks; being woken (G2, and the Waitable contract)."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial

import pytest

from pabal.store import Dead, Done, Outcome, Settlement, State, Store, Waitable, Watch
from pabal.testing.clock import ManualClock
from pabal.testing.store_place import (
    FAILED,
    QUEUE,
    Child,
    Reopen,
    StorePlace,
    ack,
    bodies,
    bury,
    count,
    draft,
    drain,
    in_threads,
    publish,
    retry,
    soon,
    take,
    take_one,
    waiting,
)

RING_SECONDS = 5.0  # only a failing test waits this long


@contextmanager
def watching(store: Store, *queues: str) -> Iterator[Watch]:
    if not isinstance(store, Waitable):
        pytest.skip("this store cannot be watched")
    with closing(store.watch(queues or [QUEUE])) as watch:
        yield watch


def quiet(watch: Watch) -> bool:
    """Say whether the watch can sleep: it may wake for nothing, but not every time."""
    return any(not watch.wait(0.02) for _ in range(5))


class SharingTests(StorePlace):
    def test_two_handles_are_one_store(self, store: Store, reopen: Reopen) -> None:
        other = reopen()
        publish(store, "a", id="a")
        publish(other, "b", id="b")
        first, second = take_one(other), take_one(store)
        assert bodies([first, second]) == ["a", "b"]
        assert [ack(store, first), ack(other, second)] == [Outcome.APPLIED] * 2
        assert store.counts(QUEUE) == other.counts(QUEUE)
        other.close()

    def test_a_handle_sees_what_another_did_while_it_was_idle(self, store: Store, reopen: Reopen) -> None:
        other = reopen()
        assert take(store) == []
        for n in range(5):
            publish(other, n)
            assert drain(store) == [n]
            publish(store, n)
            lease = take_one(store)
            retry(store, lease)
            assert take_one(other).attempt == 2
            other.purge(QUEUE, State.READY)
        other.close()

    def test_threads_share_one_handle(self, store: Store) -> None:
        done: list[str] = []

        def produce(name: str) -> None:
            for n in range(20):
                store.publish([draft(f"{name}-{n}"), draft(f"{name}-{n}'")])

        def consume() -> None:
            deadline = time.monotonic() + 60
            while len(done) < 160 and time.monotonic() < deadline:
                for lease in take(store, 3):
                    assert ack(store, lease) is Outcome.APPLIED
                    done.append(str(lease.message.body))

        in_threads(*[partial(produce, name) for name in "abcd"], consume, consume, consume)
        assert sorted(done) == sorted(f"{name}-{n}{tick}" for name in "abcd" for n in range(20) for tick in ("", "'"))

    def test_g6_threads_racing_with_one_key_store_one_message(self, store: Store) -> None:
        answers: list[str] = []
        start = threading.Barrier(8)

        def race() -> None:
            start.wait()
            answers.extend(answer.id for answer in store.publish([draft("x", dedup_key="k")]))

        in_threads(*[race] * 8)
        assert len(set(answers)) == 1 and len(drain(store)) == 1

    def test_g2_threads_racing_for_a_lease_get_one_message_each(self, store: Store) -> None:
        store.publish([draft(n) for n in range(40)])
        got: list[str] = []
        start = threading.Barrier(8)

        def race() -> None:
            start.wait()
            for _ in range(5):
                got.extend(lease.receipt.id for lease in take(store, 1))

        in_threads(*[race] * 8)
        assert len(got) == len(set(got)) == 40

    def test_calls_at_the_same_time_with_one_token_get_the_same(self, store: Store, reopen: Reopen) -> None:
        store.publish([draft(n) for n in range(60)])
        with closing(reopen()) as other:
            for turn in range(30):
                got: list[list[str]] = []
                start = threading.Barrier(2)

                def race(handle: Store, token: str, start: threading.Barrier, got: list[list[str]]) -> None:
                    start.wait()
                    got.append([lease.receipt.id for lease in take(handle, 1, token=token)])

                in_threads(*(partial(race, handle, f"t{turn:016d}", start, got) for handle in (store, other)))
                assert got[0] == got[1] and len(got[0]) == 1

    def test_g2_threads_racing_to_settle_are_told_apart(self, store: Store) -> None:
        publish(store, 1)
        lease = take_one(store)
        outcomes: list[Outcome] = []
        start = threading.Barrier(6)

        def race(verdict: Done | Dead) -> None:
            start.wait()
            outcomes.extend(store.settle([Settlement(lease.receipt, verdict)]))

        in_threads(*[lambda: race(Done())] * 3, *[lambda: race(Dead(FAILED))] * 3)
        assert outcomes.count(Outcome.APPLIED) == 1
        assert outcomes.count(Outcome.REPEATED) == 2 and outcomes.count(Outcome.LOST) == 3

    def test_processes_share_the_place(self, store: Store, reopen: Reopen) -> None:
        self.need_processes()

        def work() -> list[str]:
            with closing(reopen()) as mine:
                store_ids = publish(mine, *range(5))
                for lease in take(mine, 5):
                    ack(mine, lease)
                return store_ids

        children = [Child(work) for _ in range(4)]
        ids = {id for child in children for id in child.result()}
        assert len(ids) == 20 and count(store, State.DONE) + waiting(store) == 20
        drain(store)
        assert count(store, State.DONE) == 20

    def test_g5_a_receipt_travels_between_processes(self, store: Store, reopen: Reopen, clock: ManualClock) -> None:
        self.need_processes()
        publish(store, 1, 2)
        held, kept = take(store, 2, seconds=10)

        def settle_there() -> str:
            with closing(reopen()) as mine:
                return ack(mine, held).name

        assert Child(settle_there).result() == "APPLIED"
        clock.advance(11)

        def take_over_there() -> int:
            with closing(reopen()) as mine:
                return len(mine.expired(QUEUE, 10))

        assert Child(take_over_there).result() == 1
        assert [ack(store, held), ack(store, kept)] == [Outcome.REPEATED, Outcome.LOST]

    def test_a_forked_child_may_use_its_parents_store(self, store: Store) -> None:
        self.need_processes()
        publish(store, "before", id="before")
        lease = take_one(store)

        def use() -> str:
            publish(store, "from the child", id="child")
            outcome = ack(store, lease)
            assert drain(store) == ["from the child"]
            store.close()
            return outcome.name

        assert Child(use).result() == "APPLIED"
        publish(store, "after", id="after")
        assert drain(store) == ["after"]
        assert count(store, State.DONE) == 3

    def test_parent_and_forked_children_use_one_store_at_once(self, store: Store) -> None:
        self.need_processes()

        def take_and_ack() -> bool:
            leases = take(store)
            return bool(leases) and ack(store, leases[0]) is Outcome.APPLIED

        def use() -> int:
            for n in range(10):
                publish(store, n)
                # Another may take this one, and publish its own only after we looked at the ready messages.
                assert soon(take_and_ack, 60)
            return 1

        children = [Child(use) for _ in range(3)]
        assert use() == 1
        assert sum(child.result() for child in children) == 3
        assert (count(store, State.DONE), waiting(store)) == (40, 0)

    def test_a_watch_sleeps_while_nothing_happens(self, store: Store) -> None:
        publish(store, 1)
        with watching(store) as watch:
            assert quiet(watch)

    @pytest.mark.parametrize("what", ["publish", "delayed", "configure", "retry", "revive", "freed", "follow-up"])
    def test_a_watch_rings_for_what_another_handle_does(self, store: Store, reopen: Reopen, what: str) -> None:
        store.publish([draft(1, group="g"), draft(2, group="g")])
        lease = take_one(store)
        with closing(reopen()) as other, watching(store) as watch:
            quiet(watch)
            if what == "revive":
                bury(other, lease)
                quiet(watch)
            self.stir(other, what, lease.receipt.id, lambda: None)
            if what == "retry":
                retry(other, lease)
            if what == "freed":
                ack(other, lease)
            if what == "follow-up":
                publish(other, 1, queue="elsewhere")
                quiet(watch)
                ack(other, take_one(other, queue="elsewhere"), draft(3))
            assert watch.wait(RING_SECONDS)

    @staticmethod
    def stir(store: Store, what: str, id: str, before: Callable[[], None]) -> None:
        before()
        if what == "publish":
            publish(store, "new")
        if what == "delayed":
            publish(store, "new", delay=60)
        if what == "configure":
            store.configure(QUEUE, {"paused": False})
        if what == "revive":
            assert store.revive(QUEUE, [id]) == [id]

    def test_a_watch_rings_for_a_queue_that_did_not_exist(self, store: Store, reopen: Reopen) -> None:
        with closing(reopen()) as other, watching(store, "new", "newer") as watch:
            quiet(watch)
            publish(other, 1, queue="newer")
            assert watch.wait(RING_SECONDS)
            quiet(watch)
            publish(other, 2, queue="newer")
            assert watch.wait(RING_SECONDS)

    def test_a_watch_misses_nothing_between_arming_and_waiting(self, store: Store, reopen: Reopen) -> None:
        with closing(reopen()) as other, watching(store) as watch:
            for n in range(20):
                publish(other, n)
                assert watch.wait(RING_SECONDS)
                assert drain(store) == [n]
                quiet(watch)

    def test_a_watch_rings_across_threads(self, store: Store) -> None:
        with watching(store) as watch:
            quiet(watch)
            thread = threading.Timer(0.05, lambda: publish(store, 1))
            thread.start()
            started = time.monotonic()
            assert watch.wait(RING_SECONDS)
            assert time.monotonic() - started < RING_SECONDS / 2
            thread.join()

    def test_a_watch_rings_across_processes(self, store: Store, reopen: Reopen) -> None:
        self.need_processes()

        def later() -> None:
            time.sleep(0.05)
            with closing(reopen()) as mine:
                publish(mine, 1)

        with watching(store) as watch:
            quiet(watch)
            child = Child(later)
            assert watch.wait(RING_SECONDS)
            child.result()

    def test_wake_ends_the_wait(self, store: Store) -> None:
        with watching(store) as watch:
            quiet(watch)
            watch.wake()
            assert watch.wait(RING_SECONDS)
            thread = threading.Timer(0.05, watch.wake)
            thread.start()
            assert watch.wait(RING_SECONDS)
            thread.join()

    def test_two_watches_both_ring(self, store: Store, reopen: Reopen) -> None:
        with closing(reopen()) as other, watching(store) as first, watching(other) as second:
            quiet(first), quiet(second)
            publish(other, 1)
            assert first.wait(RING_SECONDS) and second.wait(RING_SECONDS)
