"""Publish, lease and settle from an event loop: batches, long polls, cancellation at every await, closing."""

import asyncio
import contextlib
import gc
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

import pabal
import pabal.aio
from pabal.aio.calls import Batcher, Threads
from pabal.aio.queue import publishes
from pabal.errors import InvalidInput, InvalidReceipt, QueueFull, StoreClosed
from pabal.policy.policy import Policy, RetryPolicy
from pabal.queues.store_proxy import StoreProxy
from pabal.store import Draft, Lease, Outcome, Published, Settlement, State

pytestmark = pytest.mark.anyio


class Gate(StoreProxy):
    """A store whose calls stand still while the gate is shut, and are counted."""

    def __init__(self, store: pabal.Store) -> None:
        super().__init__(store)
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()
        self.publishes: list[int] = []
        self.settles: list[int] = []
        self.leases: list[tuple[int, float]] = []

    def publish(self, drafts: Sequence[Draft]) -> list[Published]:
        self._pass()
        self.publishes.append(len(drafts))
        return super().publish(drafts)

    def settle(self, settlements: Sequence[Settlement], *, durable: bool = False) -> list[Outcome]:
        self._pass()
        self.settles.append(len(settlements))
        return super().settle(settlements, durable=durable)

    def lease(self, queue: str, limit: int, seconds: float, **more: Any) -> list[Lease]:
        found = super().lease(queue, limit, seconds, **more)
        if queue == "jobs":  # the sweep leases what is due of schedules
            self.leases.append((limit, seconds))
            self._pass()
        return found

    def _pass(self) -> None:
        self.entered.set()
        assert self.open.wait(30)

    def shut(self) -> None:
        self.entered.clear()
        self.open.clear()

    def let_one_through(self) -> None:
        """Open the gate for the call that stands before it, and for no other."""
        before, self.open = self.open, threading.Event()
        before.set()


@pytest.fixture
def store(mq: pabal.aio.Connection) -> Gate:
    """A gate before the store of this connection."""
    found = Gate(mq.blocking.store)
    mq.blocking.store = found
    mq._publishes = publishes(found, mq.threads)
    return found


async def soon(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


async def ready(queue: pabal.aio.Queue) -> int:
    return (await queue.counts())[State.READY]


async def test_the_words_of_the_library_awaited(mq: pabal.aio.Connection, jobs: pabal.aio.Queue) -> None:
    published = await jobs.publish({"n": 1}, priority="high", id="first")
    assert published.id == "first" and (await jobs.publish({"n": 1}, id="first")).duplicate
    await jobs.publish_many([2, 3], type="number")
    [first] = await jobs.lease()
    assert (first.body, first.attempt, first.queue, first.message.id) == ({"n": 1}, 1, "jobs", "first")
    await first.extend(60)
    await first.ack(then=[await mq.queue("next").draft("follow")])
    assert first.settled and await ready(mq.queue("next")) == 1
    two, three = await jobs.lease(10)
    await two.nack(delay=0, reason="not now")
    await three.bury("never")
    [again] = await jobs.lease()
    assert again.attempt == 2 and again.failure is not None and again.failure.reason == "not now"
    await again.release()
    [entry] = await jobs.browse(State.DEAD)
    assert await jobs.revive([entry.id]) == [entry.id] and await jobs.find("nobody") is None
    assert sorted([d.body async for d in jobs.consume(wait=0)]) == [2, 3]
    assert await mq.queues() == ["jobs", "next"]
    with pytest.raises(InvalidInput, match="limit"):
        await jobs.lease(0)
    with pytest.raises(InvalidInput, match="wait"):
        await jobs.lease(wait=-1)
    await jobs.pause()
    assert jobs.blocking.paused
    await jobs.resume()
    assert await mq.queue("next").purge(State.READY) == 1 and await mq.queue("next").delete() == 0


async def test_what_comes_during_a_commit_shares_the_next_one(store: Gate, jobs: pabal.aio.Queue) -> None:
    store.shut()
    first = asyncio.create_task(jobs.publish("first"))
    await soon(store.entered.is_set)
    others = [asyncio.create_task(jobs.publish(number)) for number in range(50)]
    refused = asyncio.create_task(jobs.publish("x", delay=-1))
    await asyncio.sleep(0.02)
    store.open.set()
    ids = {answer.id for answer in await asyncio.gather(first, *others)}
    assert len(ids) == 51 and store.publishes == [1, 50]
    with pytest.raises(InvalidInput, match="delay"):
        await refused
    held = await jobs.lease(51)
    store.shut()
    acks = [asyncio.create_task(held[0].ack())]
    await soon(store.entered.is_set)
    acks += [asyncio.create_task(delivery.ack()) for delivery in held[1:]]
    await asyncio.sleep(0.02)
    store.open.set()
    await asyncio.gather(*acks)
    assert store.settles == [1, 50] and (await jobs.counts())[State.DONE] == 51


async def asked_meanwhile(
    store: Gate, jobs: pabal.aio.Queue, many: int, *leases: tuple[int, float | None]
) -> list["asyncio.Task[list[pabal.aio.Delivery]]"]:
    """Begin these leases while the store answers another one, which takes `many` messages."""
    store.shut()
    first = asyncio.create_task(jobs.lease(many))
    await soon(lambda: store.leases)
    tasks = [asyncio.create_task(jobs.lease(limit, visibility=visibility)) for limit, visibility in leases]
    await soon(lambda: len(jobs._leases) == len(leases))
    store.leases.clear()
    return [first, *tasks]


async def test_tasks_that_lease_at_the_same_time_share_a_lease(store: Gate, jobs: pabal.aio.Queue) -> None:
    await jobs.publish_many(range(9))
    first, *tasks = await asked_meanwhile(store, jobs, 1, (2, None), (1, 60.0), (3, None), (2, 60.0), (5, None))
    store.open.set()
    found = [[delivery.body for delivery in await task] for task in tasks]
    assert store.leases == [(10, 30.0), (3, 60.0)] and [len(each) for each in found] == [2, 0, 3, 0, 3]
    assert found[0] + found[2] + found[4] == list(range(1, 9)) and len(await first) == 1


async def test_a_task_that_is_cancelled_in_a_shared_lease_leaves_its_messages_to_others(
    store: Gate, jobs: pabal.aio.Queue
) -> None:
    await jobs.publish_many(range(6))
    first, gone, stays, withdrawn = await asked_meanwhile(store, jobs, 1, (2, None), (2, None), (9, None))
    withdrawn.cancel()
    await asyncio.wait([withdrawn])
    store.let_one_through()
    await first
    await soon(lambda: store.leases)
    gone.cancel()
    await asyncio.wait([gone])
    store.open.set()
    kept = [delivery.body for delivery in await stays]
    assert gone.cancelled() and store.leases[0] == (4, 30.0)  # none for the one that was withdrawn
    while await ready(jobs) < 3:
        await asyncio.sleep(0.005)
    again = await jobs.lease(10)
    assert sorted([*kept, *(delivery.body for delivery in again)]) == [1, 2, 3, 4, 5]
    assert {delivery.attempt for delivery in again} == {1}


async def test_a_task_that_is_cancelled_with_its_messages_in_hand_gives_them_back(jobs: pabal.aio.Queue) -> None:
    await jobs.publish("x")
    for turn in range(30):
        taking = asyncio.create_task(jobs.lease())
        for _ in range(turn):
            await asyncio.sleep(0.0001)
        taking.cancel()
        await asyncio.wait([taking])
        if not taking.cancelled():
            [delivery] = taking.result()
            await delivery.release(counted=False)
        while await ready(jobs) == 0:
            await asyncio.sleep(0.002)


async def test_a_lease_for_a_wrong_time_is_refused_alone(jobs: pabal.aio.Queue) -> None:
    await jobs.publish("x")
    right = asyncio.create_task(jobs.lease())
    with pytest.raises(InvalidInput, match="visibility"):
        await jobs.lease(visibility=-1.0)
    assert len(await right) == 1


async def test_acks_of_many_share_a_commit_and_each_hears_of_its_own_lost_ones(
    store: Gate, jobs: pabal.aio.Queue
) -> None:
    await jobs.publish_many(range(6))
    held = await jobs.lease(6)
    await held[2].ack()
    await jobs.cancel([held[4].message.id], inflight=True)
    store.settles.clear()
    store.shut()
    first = asyncio.create_task(jobs.ack_many(held[:1]))
    await soon(store.entered.is_set)
    good = asyncio.create_task(jobs.ack_many([held[1], held[2]]))
    bad = asyncio.create_task(jobs.ack_many([held[3], held[4].receipt]))
    alone = asyncio.create_task(jobs.ack(held[5].receipt))
    await soon(lambda: len(jobs._settlements) == 3)
    store.open.set()
    await asyncio.gather(first, good, alone)
    with pytest.raises(pabal.LeaseLost) as lost:
        await bad
    assert lost.value.receipts == (str(held[4].receipt),) and store.settles == [1, 5]
    assert [delivery.settled for delivery in held] == [True, True, True, True, False, False]
    assert (await jobs.counts())[State.DONE] == 6


async def test_one_that_is_refused_does_not_harm_its_batch(mq: pabal.aio.Connection, jobs: pabal.aio.Queue) -> None:
    full = mq.queue("full")
    await full.configure(Policy(max_waiting=2))
    answers = await asyncio.gather(
        *(queue.publish(n) for n in range(20) for queue in (jobs, full)), return_exceptions=True
    )
    refused = [answer for answer in answers if isinstance(answer, QueueFull)]
    assert len(refused) == 18 and await ready(jobs) == 20 and await ready(full) == 2


async def test_a_message_wakes_one_of_many_tasks_and_all_share_one_thread(jobs: pabal.aio.Queue) -> None:
    threads = threading.active_count()
    waiting = [asyncio.create_task(jobs.lease(wait=None)) for _ in range(200)]
    await asyncio.sleep(0.1)
    assert threading.active_count() - threads <= 10
    await jobs.publish("one")
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    [[delivery]] = [task.result() for task in done]
    await delivery.ack()
    await jobs.publish_many(list(range(199)))
    async with asyncio.timeout(20):
        found = [delivery.body for task in waiting if task not in done for delivery in await task]
    assert sorted(found) == list(range(199))


async def test_a_wait_ends_by_its_time(jobs: pabal.aio.Queue) -> None:
    long = asyncio.create_task(jobs.lease(wait=30))
    assert await jobs.lease(wait=0.05) == []
    assert await jobs.lease(5, visibility=3, wait=0.05) == []
    await jobs.publish("late")
    assert [delivery.body for delivery in await long] == ["late"]


async def test_a_lease_cancelled_before_or_after_it_took_a_message_leaves_it_to_others(
    store: Gate, jobs: pabal.aio.Queue
) -> None:
    waiting = asyncio.create_task(jobs.lease(wait=None))
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.wait([waiting])
    await jobs.publish("for the next")
    for wait in (0.0, 30.0):
        store.shut()
        taking = asyncio.create_task(jobs.lease(wait=wait))
        await soon(store.entered.is_set)
        taking.cancel()
        await asyncio.wait([taking])
        assert taking.cancelled()
        store.open.set()
        while await ready(jobs) == 0:
            await asyncio.sleep(0.005)
    [delivery] = await jobs.lease()
    assert delivery.body == "for the next"


async def test_a_cancelled_publish_says_whether_it_may_be_stored(store: Gate, jobs: pabal.aio.Queue) -> None:
    store.shut()
    running = asyncio.create_task(jobs.publish("running"))
    await soon(store.entered.is_set)
    queued = asyncio.create_task(jobs.publish("queued"))
    await asyncio.sleep(0.02)
    for task in (queued, running):
        task.cancel()
    await asyncio.wait([queued, running])
    store.open.set()
    with pytest.raises(asyncio.CancelledError, match="is not stored"):
        await queued
    with pytest.raises(asyncio.CancelledError, match="same id"):
        await running
    while await ready(jobs) == 0:
        await asyncio.sleep(0.005)
    assert [delivery.body for delivery in await jobs.lease(5)] == ["running"]


async def test_a_block_acks_fails_by_policy_or_gives_back(jobs: pabal.aio.Queue) -> None:
    await jobs.publish("x")
    [delivery] = await jobs.lease()
    with pytest.raises(ValueError, match="no"):
        async with delivery:
            raise ValueError("no")
    [again] = await jobs.lease()
    assert again.attempt == 2 and again.failure is not None and "ValueError" in again.failure.reason

    async def work() -> None:
        async with again:
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.wait([task])
    assert await ready(jobs) == 1
    [last] = await jobs.lease()
    async with last:
        pass
    assert last.settled and (await jobs.counts())[State.DONE] == 1


async def test_a_block_renews_its_lease(jobs: pabal.aio.Queue) -> None:
    await jobs.publish("x")
    [delivery] = await jobs.lease(visibility=0.2)
    async with delivery:
        await asyncio.sleep(0.7)
        assert await jobs.lease() == []
    assert delivery.settled


async def test_an_ack_is_not_withdrawn_by_a_cancel(store: Gate, jobs: pabal.aio.Queue) -> None:
    await jobs.publish("x")
    [delivery] = await jobs.lease()
    store.shut()

    async def work() -> None:
        async with delivery:
            pass

    task = asyncio.create_task(work())
    await soon(store.entered.is_set)
    task.cancel()
    await asyncio.wait([task])
    store.open.set()
    await soon(lambda: delivery.settled)
    assert (await jobs.counts())[State.DONE] == 1


async def test_what_was_prefetched_and_not_seen_is_given_back(jobs: pabal.aio.Queue) -> None:
    await jobs.publish_many([1, 2, 3])
    messages = jobs.consume(prefetch=3)
    async for delivery in messages:
        await delivery.ack()
        break
    await messages.aclose()
    while await ready(jobs) < 2:
        await asyncio.sleep(0.005)
    assert [delivery.body for delivery in await jobs.lease(3)] == [2, 3]


async def test_closing_ends_tasks_in_flight(url: str) -> None:
    async with pabal.aio.connect(url) as mq:
        jobs = mq.queue("jobs")
        waiting = [asyncio.create_task(jobs.lease(wait=None)) for _ in range(3)]
        publishing = [asyncio.create_task(jobs.publish(n)) for n in range(100)]
        await asyncio.sleep(0)
    answers = await asyncio.gather(*publishing, return_exceptions=True)
    with pytest.raises(StoreClosed):
        for task in waiting:
            await task
        raise StoreClosed  # each of them may have got one of the messages
    with pytest.raises(StoreClosed):
        await jobs.publish("late")
    with pytest.raises(StoreClosed):
        await jobs.lease(wait=1)
    with pytest.raises(StoreClosed, match="async with"):
        mq.queue("jobs")
    stored = sum(isinstance(answer, Published) for answer in answers)
    with pabal.connect(url) as again:
        assert sum(again.queue("jobs").counts().values()) == stored


async def test_a_store_that_cannot_be_opened_says_so(tmp_path: Path) -> None:
    with pytest.raises(pabal.errors.StoreMissing):
        async with pabal.aio.connect(f"sqlite:{tmp_path}/none.db", create=False):
            pass
    with pytest.raises(StoreClosed, match="async with"):
        pabal.aio.connect(f"sqlite:{tmp_path}/none.db").queue("jobs")


async def test_several_event_loops_and_threads_share_a_connection(mq: pabal.aio.Connection) -> None:
    jobs = mq.queue("jobs")

    async def work(numbers: Iterable[int]) -> list[Any]:
        await asyncio.gather(*(jobs.publish(number) for number in numbers))
        found = []
        for _ in numbers:
            [delivery] = await jobs.lease(wait=20)
            await delivery.ack()
            found.append(delivery.body)
        return found

    def elsewhere(numbers: Iterable[int]) -> list[Any]:
        return asyncio.run(work(numbers))

    parts = await asyncio.gather(work(range(20)), *(asyncio.to_thread(elsewhere, range(n, n + 20)) for n in (20, 40)))
    assert sorted(body for part in parts for body in part) == list(range(60))


async def test_a_failing_store_fails_every_task_that_waits(
    jobs: pabal.aio.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await jobs.configure(Policy(retry=RetryPolicy(limit=3)))

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise pabal.StoreFailed("disk")

    monkeypatch.setattr(jobs.blocking, "_take", fail)
    for result in await asyncio.gather(*(jobs.lease(wait=5) for _ in range(3)), return_exceptions=True):
        assert isinstance(result, pabal.StoreFailed)


async def test_one_body_where_many_are_expected_is_refused(jobs: pabal.aio.Queue) -> None:
    for body in ({"a": 1, "b": 2}, "text", b"bytes"):
        with pytest.raises(InvalidInput, match="use publish"):
            await jobs.publish_many(body)


async def test_a_wrong_verdict_fails_alone(jobs: pabal.aio.Queue) -> None:
    await jobs.publish_many([1, 2, 3, 4])
    held = await jobs.lease(4)
    wrong = held[0].nack(reason=None)  # type: ignore[arg-type]
    answers = await asyncio.gather(wrong, *(delivery.ack() for delivery in held[1:]), return_exceptions=True)
    assert isinstance(answers[0], Exception) and answers[1:] == [None] * 3
    assert (await jobs.counts())[State.DONE] == 3


async def test_a_burst_is_leased_for_the_tasks_that_are_still_there(jobs: pabal.aio.Queue) -> None:
    waiting = [asyncio.create_task(jobs.lease(wait=None)) for _ in range(20)]
    await asyncio.sleep(0.05)
    for task in waiting[1:]:
        task.cancel()
    await asyncio.wait(waiting[1:])
    await jobs.publish_many(list(range(20)))
    [first] = await waiting[0]
    await first.ack()
    assert {delivery.attempt for delivery in await jobs.lease(20)} == {1}
    short, long = (asyncio.create_task(jobs.lease(visibility=term, wait=None)) for term in (5, 60))
    await asyncio.sleep(0.05)
    short.cancel()
    await asyncio.wait([short])
    await jobs.publish("counted once")
    [delivery] = await long
    assert delivery.attempt == 1


async def test_a_lease_that_was_cancelled_as_the_connection_closed_is_given_back(url: str) -> None:
    for wait in (0.0, 30.0):
        async with pabal.aio.connect(url) as mq:
            store = Gate(mq.blocking.store)
            mq.blocking.store = store
            jobs = mq.queue("jobs")
            if not await ready(jobs):
                await jobs.publish("x")
            store.shut()
            taking = asyncio.create_task(jobs.lease(wait=wait))
            await soon(store.entered.is_set)
            taking.cancel()
            await asyncio.wait([taking])
            closing = asyncio.create_task(mq.close())
            await asyncio.sleep(0.05)
            store.open.set()
            await closing
        with pabal.connect(url) as again:
            assert again.queue("jobs").counts()[State.READY] == 1


async def test_an_abandoned_iteration_has_given_back_when_it_is_closed(jobs: pabal.aio.Queue) -> None:
    await jobs.publish_many([1, 2, 3])
    async with contextlib.aclosing(jobs.consume(prefetch=3)) as messages:
        async for delivery in messages:
            await delivery.ack()
            break
    assert await ready(jobs) == 2
    with pytest.raises(InvalidInput, match="wait"):
        jobs.consume(wait=-1)  # at the call, not at the first message


async def test_a_block_keeps_its_own_error_when_its_message_cannot_be_settled(url: str) -> None:
    for error in (ValueError("of the block"), asyncio.CancelledError("of the block")):
        async with pabal.aio.connect(url) as mq:
            await mq.queue("jobs").publish("x")
            [delivery] = await mq.queue("jobs").lease()
        with pytest.raises(type(error), match="of the block") as caught:
            async with delivery:
                raise error
        assert "was not settled" in caught.value.__notes__[0]
    with pabal.connect(url) as blocking:
        blocking.queue("jobs").publish("y")
        [held] = blocking.queue("jobs").lease()
    with pytest.raises(KeyboardInterrupt) as interrupted, held:
        raise KeyboardInterrupt
    assert "was not settled" in interrupted.value.__notes__[0]


async def test_publishers_that_never_pause_do_not_keep_a_connection_from_closing(url: str) -> None:
    answers: list[object] = []

    async def publish(jobs: pabal.aio.Queue, number: int) -> None:
        with contextlib.suppress(StoreClosed):
            while True:
                answers.append(await jobs.publish(number))
                await asyncio.sleep(number / 5000)

    async with pabal.aio.connect(url) as mq:
        tasks = [asyncio.create_task(publish(mq.queue("jobs"), number)) for number in range(10)]
        await soon(lambda: len(answers) > 20)
        async with asyncio.timeout(20):
            await mq.close()
    await asyncio.gather(*tasks)
    with pabal.connect(url) as again:
        assert again.queue("jobs").counts()[State.READY] == len(answers)


async def test_busy_batches_let_other_calls_through() -> None:
    threads = Threads("busy", 2)
    ends = False

    def act(items: Sequence[int]) -> list[int]:
        time.sleep(0.001)
        return list(items)

    batches = [Batcher(threads, act) for _ in range(2)]

    async def keep_busy(batch: Batcher[int, int]) -> None:
        while not ends:
            await batch.add(1)

    tasks = [asyncio.create_task(keep_busy(batch)) for batch in batches for _ in range(4)]
    await asyncio.sleep(0.02)
    async with asyncio.timeout(20):
        for _ in range(5):
            assert await threads(int) == 0
    ends = True
    await asyncio.gather(*tasks)
    await asyncio.to_thread(threads.close)


async def test_one_that_is_refused_costs_a_few_commits_more(
    store: Gate, mq: pabal.aio.Connection, jobs: pabal.aio.Queue
) -> None:
    full = mq.queue("full")
    await full.configure(Policy(max_waiting=1))
    await full.publish("fills it")
    store.publishes.clear()
    store.shut()
    first = asyncio.create_task(jobs.publish("first"))
    await soon(store.entered.is_set)
    others = [asyncio.create_task((full if number == 40 else jobs).publish(number)) for number in range(200)]
    await asyncio.sleep(0.05)
    store.open.set()
    answers = await asyncio.gather(first, *others, return_exceptions=True)
    assert [type(answer) for answer in answers].count(QueueFull) == 1 and await ready(jobs) == 200
    assert len(store.publishes) < 25


async def test_what_fails_in_the_thread_that_waits_is_told_to_the_tasks(
    jobs: pabal.aio.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr(jobs._feed, "_serve", fail)
    with pytest.raises(RuntimeError, match="foresaw"):
        await jobs.lease(wait=5)
    monkeypatch.undo()
    await jobs.publish("x")
    assert len(await jobs.lease(wait=5)) == 1


async def test_a_forked_process_is_told_to_connect_itself(mq: pabal.aio.Connection, jobs: pabal.aio.Queue) -> None:
    waiting = asyncio.create_task(jobs.lease(wait=None))
    await jobs.publish("wakes the threads")
    await waiting
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads that do not exist in the child
        child = os.fork()
    if not child:
        told = 0
        for call in (jobs.publish("x"), jobs.lease(wait=5), jobs.lease()):
            try:
                call.send(None)
            except StoreClosed as exc:
                told += "fork" in str(exc)
        os._exit(told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


async def test_a_connection_keeps_no_queue_that_was_asked_for_once(mq: pabal.aio.Connection) -> None:
    kept = mq.queue("kept")
    for number in range(1000):
        mq.queue(f"reply-{number}")
    gc.collect()
    assert mq.queue("kept") is kept and len(mq._queues) < 300


async def test_all_words_of_the_library_have_an_awaited_form() -> None:
    left_out = {"watch", "still_unfit", "publish_in", "validate", "read_policy"}  # `blocking` has these
    for awaited, blocking in ((pabal.aio.Queue, pabal.Queue), (pabal.aio.Connection, pabal.Connection)):
        public = {name for name in vars(blocking) if not name.startswith("_")}
        assert public - set(dir(awaited)) - left_out == set()


async def test_policy_and_settling_by_receipt_awaited(jobs: pabal.aio.Queue, mq: pabal.aio.Connection) -> None:
    assert (await jobs.update_policy(visibility=9)).visibility == 9 and not await jobs.paused()
    await jobs.ensure_policy(Policy(visibility=8))
    assert (await jobs.policy()).visibility == 8
    await jobs.publish_many([1, 2, 3])
    one, two, three = await jobs.lease(3)
    await jobs.extend(one.receipt, 60)
    await jobs.ack(str(one.receipt))
    await jobs.nack(two.receipt, delay=0)
    await jobs.bury(three.receipt)
    assert [entry.message.body async for entry in jobs.entries(State.DEAD) if entry.message] == [3]
    assert await jobs.sweep() == 0 and [each.name for each in await mq.consumers()]
    closed = pabal.aio.connect("memory:")
    with pytest.raises(StoreClosed, match="async with"):
        await closed.queues()
    assert [repr(each).split()[0] for each in (jobs, mq, closed)] == [
        "<aio.Queue",
        "<aio.Connection",
        "<aio.Connection",
    ]


async def test_unique_cancel_and_schedules(mq: pabal.aio.Connection, jobs: pabal.aio.Queue) -> None:
    first = await jobs.publish(1, unique="k")
    assert (await jobs.publish(2, unique="k")) == Published(first.id, True)
    assert await jobs.cancel([first.id, "nobody"]) == [first.id]
    made = await mq.schedule("ping", every=3600, queue="jobs")
    assert await mq.schedules() == [made] and await mq.unschedule("ping") and not await mq.unschedule("ping")


async def test_a_cancelled_lease_with_a_token_gives_nothing_back(store: Gate, jobs: pabal.aio.Queue) -> None:
    await jobs.publish("x")
    [held] = await jobs.lease(token="t0000000000000001")
    store.shut()
    again = asyncio.create_task(jobs.lease(token="t0000000000000001"))
    await soon(store.entered.is_set)
    again.cancel()
    store.open.set()
    with pytest.raises(asyncio.CancelledError):
        await again
    await jobs.sweep()  # a call after it, in the same threads
    await held.ack()


async def test_a_repeated_lease_is_answered_while_another_task_waits(jobs: pabal.aio.Queue) -> None:
    await jobs.publish("x")
    [first] = await jobs.lease(token="t0000000000000001", wait=30)
    waiting = asyncio.create_task(jobs.lease(wait=60))
    await soon(lambda: jobs._feed._waiter is not None)
    [again] = await jobs.lease(token="t0000000000000001", wait=30)
    assert again.receipt == first.receipt
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_nothing_is_leased_for_a_task_that_has_gone(jobs: pabal.aio.Queue) -> None:
    assert await jobs.lease(successive=True, wait=0.05) == []
    gone = asyncio.create_task(jobs.lease(successive=True, wait=60))
    await soon(lambda: jobs._feed._waiter is not None)
    waiting = asyncio.create_task(jobs.lease(successive=True, wait=60))
    await soon(lambda: len(jobs._feed._asks) == 2)
    gone.cancel()
    await asyncio.wait([gone])
    await soon(lambda: jobs._feed._serving in jobs._feed._asks)
    await jobs.publish("x", group="g")
    [delivery] = await waiting
    await delivery.ack()
    assert jobs.blocking.store.counters("jobs").delivered == 1


@pytest.mark.parametrize("token", ["a/b", "x\ny", "t" * 129])
async def test_a_token_that_no_receipt_could_carry_is_refused(jobs: pabal.aio.Queue, token: str) -> None:
    with pytest.raises(InvalidReceipt, match="token"):
        await jobs.lease(token=token)
    with pytest.raises(InvalidReceipt, match="token"):
        jobs.blocking.lease(token=token)
