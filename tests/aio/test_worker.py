"""The worker of an event loop: outcomes, concurrency, time limits, stopping, cancelling."""

import asyncio
import threading
from typing import Any

import msgspec
import pytest

import pabal
import pabal.aio
from pabal.errors import InvalidInput
from pabal.store import State

pytestmark = pytest.mark.anyio


async def counts(queue: pabal.aio.Queue) -> dict[State, int]:
    return {state: count for state, count in (await queue.counts()).items() if count}


async def test_handlers_run_together_and_settle_by_their_outcome(jobs: pabal.aio.Queue) -> None:
    together = most = 0

    async def handle(delivery: pabal.aio.Delivery) -> None:
        nonlocal together, most
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.01)
        together -= 1
        if delivery.body % 10 == 0:
            raise ValueError("a tenth fails")
        if delivery.body % 10 == 1:
            await delivery.bury("settled by its handler")

    await jobs.publish_many(list(range(100)))
    worker = pabal.aio.worker(jobs, handle, concurrency=20)
    assert await worker.run(wait=0.1) == worker.handled == 90
    assert 10 <= most <= 20
    assert await counts(jobs) == {State.DONE: 80, State.DEAD: 20}
    with pytest.raises(InvalidInput, match="another"):
        await worker.run()


async def test_a_body_of_the_wrong_type_is_dead_and_one_of_the_right_type_converted(jobs: pabal.aio.Queue) -> None:
    class Email(msgspec.Struct):
        to: str

    seen: list[Any] = []

    async def handle(delivery: pabal.aio.Delivery) -> None:
        seen.append(delivery.body)

    await jobs.publish_many([{"to": "kim"}, {"to": 1}])
    assert await pabal.aio.worker(jobs, handle, body=Email).run(wait=0) == 1
    assert seen == [Email("kim")]
    [entry] = await jobs.browse(State.DEAD)
    assert entry.failure is not None and entry.failure.code == "VALIDATION_ERROR"


async def test_a_handler_that_takes_too_long_is_cancelled_and_its_message_fails(jobs: pabal.aio.Queue) -> None:
    cancelled = 0

    async def handle(delivery: pabal.aio.Delivery) -> None:
        nonlocal cancelled
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled += 1
            raise

    await jobs.publish("slow")
    assert await pabal.aio.worker(jobs, handle, timeout=0.05).run(wait=0.1) == 0
    [entry] = await jobs.browse(State.DEAD)
    assert cancelled == 2 and entry.failure is not None and "longer than 0.05 s" in entry.failure.reason


async def test_a_cancelled_error_of_the_handler_itself_is_a_failure(jobs: pabal.aio.Queue) -> None:
    async def handle(delivery: pabal.aio.Delivery) -> None:
        inner = asyncio.create_task(asyncio.sleep(60))
        inner.cancel()
        await inner

    await jobs.publish("x")
    assert await pabal.aio.worker(jobs, handle).run(wait=0.1) == 0
    assert await counts(jobs) == {State.DEAD: 1}


async def test_a_stop_finishes_what_is_held_and_gives_back_what_does_not_end_in_time(jobs: pabal.aio.Queue) -> None:
    begun = asyncio.Event()

    async def handle(delivery: pabal.aio.Delivery) -> None:
        begun.set()
        await asyncio.sleep(0.1 if delivery.body == "quick" else 60)

    await jobs.publish_many(["quick", "slow"])
    worker = pabal.aio.worker(jobs, handle, concurrency=2)
    running = asyncio.create_task(worker.run(grace=0.3))
    await begun.wait()
    threading.Thread(target=worker.stop).start()
    assert await running == 1
    assert await counts(jobs) == {State.DONE: 1, State.READY: 1}
    await jobs.publish("later")
    assert (await jobs.counts())[State.READY] == 2  # it leases no more


async def test_a_worker_that_waits_is_stopped_or_cancelled_at_once(jobs: pabal.aio.Queue) -> None:
    async def handle(delivery: pabal.aio.Delivery) -> None:
        raise AssertionError("nothing was published")

    for end in ("stop", "cancel"):
        worker = pabal.aio.worker(jobs, handle)
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(0.05)
        worker.stop() if end == "stop" else running.cancel()
        async with asyncio.timeout(10):
            await asyncio.wait([running])
    stopped = pabal.aio.worker(jobs, handle)
    stopped.stop()
    assert await stopped.run() == 0


async def test_a_cancelled_run_gives_back_what_its_handlers_hold(jobs: pabal.aio.Queue) -> None:
    begun = asyncio.Event()

    async def handle(delivery: pabal.aio.Delivery) -> None:
        begun.set()
        await asyncio.sleep(60)

    await jobs.publish_many([1, 2, 3])
    running = asyncio.create_task(pabal.aio.worker(jobs, handle, concurrency=3).run())
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await counts(jobs) == {State.READY: 3}


async def test_a_store_that_fails_ends_the_run(jobs: pabal.aio.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise pabal.StoreFailed("disk")

    async def handle(delivery: pabal.aio.Delivery) -> None:
        monkeypatch.setattr(jobs.blocking.settler, "settle_many", fail)

    await jobs.publish("x")
    with pytest.raises(pabal.StoreFailed, match="disk"):
        await pabal.aio.worker(jobs, handle).run()


async def test_a_run_that_is_cancelled_as_it_leases_gives_back(jobs: pabal.aio.Queue) -> None:
    async def handle(delivery: pabal.aio.Delivery) -> None:
        await asyncio.sleep(60)

    for turn in range(20):
        await jobs.publish("x")
        running = asyncio.create_task(pabal.aio.worker(jobs, handle, concurrency=3).run())
        for _ in range(turn * 3):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        async with asyncio.timeout(10):
            while await counts(jobs) != {State.READY: turn + 1}:
                await asyncio.sleep(0.005)


def test_a_plain_function_is_refused() -> None:
    for handler in (print, lambda delivery: None, 3):
        with pytest.raises(InvalidInput, match="async def"):
            pabal.aio.worker(None, handler)  # type: ignore[call-overload]


async def test_a_free_worker_does_not_look_again_and_again_while_a_handler_runs(
    jobs: pabal.aio.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    lease = jobs.lease

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal looks
        looks += 1
        return await lease(*args, **options)

    async def handle(delivery: pabal.aio.Delivery) -> None:
        await asyncio.sleep(0.3)
        if delivery.attempt == 1:
            raise ValueError("comes again at once")

    monkeypatch.setattr(jobs, "lease", counted)
    await jobs.publish("x")
    assert await pabal.aio.worker(jobs, handle, concurrency=5).run(wait=0) == 1
    assert looks < 12


async def test_handlers_have_their_grace_when_the_store_fails(
    jobs: pabal.aio.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise pabal.errors.StoreBusy("for a moment")

    async def handle(delivery: pabal.aio.Delivery) -> None:
        monkeypatch.setattr(jobs.blocking, "_take", fail)
        await asyncio.sleep(0.3)

    await jobs.publish("x")
    with pytest.raises(pabal.errors.StoreBusy, match="moment"):
        await pabal.aio.worker(jobs, handle, concurrency=2).run()
    assert await counts(jobs) == {State.DONE: 1}


def test_a_worker_whose_loop_is_closed_can_be_stopped() -> None:
    async def work() -> pabal.aio.Worker:
        async def handle(delivery: pabal.aio.Delivery) -> None:
            pass

        async with pabal.aio.connect("memory:") as mq:
            worker = pabal.aio.worker(mq.queue("jobs"), handle)
            await worker.run(wait=0)
            return worker

    asyncio.run(work()).stop()
