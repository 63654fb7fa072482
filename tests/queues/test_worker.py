"""The worker: handlers, failures, concurrency, stopping."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import pabal
from pabal import Delivery, Policy, Queue, RetryPolicy, State
from pabal.connect import Connection
from pabal.errors import ExtraMissing, InvalidInput, StoreClosed
from pabal.jsontext import Json
from pabal.queues import waiter
from pabal.queues.store_proxy import StoreProxy
from pabal.store import Outcome, Settlement
from pabal.watch import PathWatch
from tests.waiting import until


@pytest.fixture(params=["sqlite", "file"])
def mq(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connection]:
    with pabal.connect(f"{request.param}:{tmp_path}/store") as connection:
        yield connection


@pytest.fixture
def jobs(mq: Connection) -> Queue:
    queue = mq.queue("jobs")
    queue.configure(Policy(retry=RetryPolicy(limit=2, initial=0, max=0)))
    return queue


class Reading(msgspec.Struct):
    temp: float


def test_every_message_is_handled_and_acked(jobs: Queue) -> None:
    jobs.publish_many([str(n) for n in range(50)])
    seen: list[str] = []
    assert pabal.worker(jobs, lambda delivery: seen.append(delivery.body)).run(wait=0.1) == 50
    assert seen == [str(n) for n in range(50)]
    assert jobs.counts()[State.DONE] == 50


def test_a_handler_that_raises_is_tried_again_and_then_dead(jobs: Queue) -> None:
    jobs.publish("x")
    attempts: list[int] = []

    def handler(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        raise RuntimeError("no\nsecond line")

    assert pabal.worker(jobs, handler).run(wait=0.3) == 0
    assert attempts == [1, 2]
    [entry] = jobs.browse(State.DEAD)
    assert entry.failure is not None
    assert (entry.failure.code, entry.failure.reason) == (
        "RETRY_LIMIT",
        "attempt 2 of 2: HANDLER_ERROR: RuntimeError: no",
    )


def test_what_no_store_can_write_is_left_out_of_the_reason(jobs: Queue) -> None:
    jobs.publish("x")

    def handler(delivery: Delivery) -> None:
        raise ValueError("found \ud800")

    pabal.worker(jobs, handler).run(wait=0.3)
    [entry] = jobs.browse(State.DEAD)
    assert entry.failure is not None and entry.failure.reason.endswith("ValueError: found ?")


def test_a_handler_may_settle_by_itself(mq: Connection, jobs: Queue) -> None:
    jobs.publish("x")
    results = mq.queue("results")
    pabal.worker(jobs, lambda delivery: delivery.ack(then=[results.draft("r")])).run(count=1)
    assert [delivery.body for delivery in results.lease()] == ["r"]


def test_bodies_are_converted_to_the_type_asked_for(jobs: Queue) -> None:
    jobs.publish_many([{"temp": 1}, {"rpm": 2}, b"raw"])
    seen: list[Reading] = []
    pabal.worker(jobs, lambda delivery: seen.append(delivery.body), body=Reading).run(wait=0.2)
    assert seen == [Reading(1.0)]
    failures = [entry.failure for entry in jobs.entries(State.DEAD)]
    assert [failure.code for failure in failures if failure] == ["VALIDATION_ERROR"] * 2
    assert all(failure and failure.attempt == 1 for failure in failures)


def test_bodies_are_checked_by_json_schema(jobs: Queue) -> None:
    pytest.importorskip("fastjsonschema")
    jobs.publish_many([{"temp": 1}, {"temp": "hot"}])
    seen: list[object] = []
    schema: dict[str, Json] = {"type": "object", "properties": {"temp": {"type": "number"}}}
    pabal.worker(jobs, lambda delivery: seen.append(delivery.body), body=schema).run(wait=0.2)
    assert seen == [{"temp": 1}]
    [entry] = jobs.browse(State.DEAD)
    assert entry.failure is not None and "body.temp must be number" in entry.failure.reason


def test_a_missing_extra_says_what_to_install(jobs: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "fastjsonschema", None)
    with pytest.raises(ExtraMissing, match=r"its extra 'schema'"):
        pabal.worker(jobs, print, body={"type": "object"})


def test_handlers_run_side_by_side(jobs: Queue) -> None:
    jobs.publish_many(["a", "b", "c", "d"])
    together = threading.Barrier(4, timeout=20)
    pabal.worker(jobs, lambda delivery: together.wait(), concurrency=4).run(count=4)
    assert jobs.counts()[State.DONE] == 4


def test_count_bounds_what_is_taken(jobs: Queue) -> None:
    jobs.publish_many([str(n) for n in range(10)])
    assert pabal.worker(jobs, lambda delivery: None, concurrency=4).run(count=3) == 3
    assert jobs.counts()[State.READY] == 7


def test_stop_ends_a_sleeping_worker_at_once(jobs: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiter, "SLOW_POLL", 3600.0)  # from here on only a wake ends a sleep
    asleep = threading.Event()
    wait = PathWatch.wait

    def seen(watch: PathWatch, timeout: float) -> bool:
        asleep.set()
        return wait(watch, timeout)

    monkeypatch.setattr(PathWatch, "wait", seen)
    worker = pabal.worker(jobs, lambda delivery: None)
    running = threading.Thread(target=worker.run, daemon=True)
    running.start()
    assert asleep.wait(30)
    worker.stop()
    running.join(30)
    assert not running.is_alive()


def test_stop_lets_a_running_handler_finish(jobs: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.publish_many(["a", "b"])

    finishing = threading.Event()

    def handler(delivery: Delivery) -> None:
        worker.stop()
        finishing.wait(60)  # `run` has taken notice, and waits for this handler

    worker = pabal.worker(jobs, handler)
    finish = worker._finish

    def noted(grace: float) -> None:
        finishing.set()
        finish(grace)

    monkeypatch.setattr(worker, "_finish", noted)
    assert worker.run() == 1
    counts = jobs.counts()
    assert (counts[State.DONE], counts[State.READY]) == (1, 1)


def test_what_does_not_finish_in_its_grace_is_given_back(jobs: Queue) -> None:
    jobs.publish("x")
    never = threading.Event()

    def handler(delivery: Delivery) -> None:
        worker.stop()
        never.wait(30)

    worker = pabal.worker(jobs, handler)
    worker.run(grace=0.2)
    [delivery] = jobs.lease()
    assert delivery.attempt == 1  # a stop counts no attempt
    never.set()
    delivery.ack()


def test_a_handler_may_outlast_its_grace_when_nobody_asked_to_stop(jobs: Queue) -> None:
    jobs.publish("x")
    done = threading.Event()

    def handler(delivery: Delivery) -> None:
        done.wait(0.1)  # longer than its grace

    assert pabal.worker(jobs, handler).run(count=1, grace=0.0) == 1


def test_a_handler_that_exits_ends_the_run_and_gives_the_message_back(jobs: Queue) -> None:
    jobs.publish("x")

    def handler(delivery: Delivery) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        pabal.worker(jobs, handler).run(wait=30)
    assert jobs.counts()[State.READY] == 1


def test_a_body_refused_by_another_queue_is_an_ordinary_failure(mq: Connection, jobs: Queue) -> None:
    other = mq.queue("other")
    other.configure(Policy(body_schema={"type": "number"}))
    jobs.publish("x")
    pabal.worker(jobs, lambda delivery: other.publish("no number")).run(count=1)
    [entry] = jobs.browse(State.READY)
    assert entry.failure is not None and entry.failure.code == "HANDLER_ERROR"


def test_waiting_for_a_slow_handler_is_no_busy_loop(jobs: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.publish("x")
    waits: list[float] = []
    looked = threading.Event()
    lease = waiter.Waiter.lease

    def noted(own: waiter.Waiter, limit: int, seconds: float | None, wait: float) -> list[Delivery]:
        waits.append(wait)
        if len(waits) == 3:
            looked.set()
        return lease(own, limit, seconds, wait)

    monkeypatch.setattr(waiter.Waiter, "lease", noted)
    pabal.worker(jobs, lambda delivery: looked.wait(60), concurrency=2).run(wait=0)
    assert waits[0] == 0 and min(waits[1:3]) > 0  # each look that finds a handler at work sleeps before the next one


@pytest.mark.parametrize("concurrency", [0, -1, 1.5])
def test_a_worker_needs_hands(jobs: Queue, concurrency: int) -> None:
    with pytest.raises(InvalidInput, match="concurrency"):
        pabal.worker(jobs, print, concurrency=concurrency)


def test_a_long_handler_keeps_its_lease(jobs: Queue, mq: Connection) -> None:
    jobs.publish("x")
    seen: list[int] = []

    def handler(delivery: Delivery) -> None:
        seen.append(delivery.attempt)
        clock = pabal.SystemClock()
        end = clock.boot() + 3 * delivery.visibility
        while clock.boot() < end:
            assert mq.queue("jobs").lease() == []

    worker = pabal.worker(jobs, handler, concurrency=2, visibility=0.2)
    worker.run(wait=0.2)
    assert seen == [1]


def test_a_store_that_fails_ends_the_worker_with_its_error(mq: Connection, jobs: Queue) -> None:
    jobs.publish("x")
    worker = pabal.worker(jobs, lambda delivery: mq.close())
    with pytest.raises(StoreClosed):
        worker.run()


def test_a_handler_that_takes_too_long_has_failed_and_cannot_ack_any_more(jobs: Queue) -> None:
    jobs.publish("x", id="slow")
    lost: list[type[Exception]] = []

    def handler(delivery: Delivery) -> None:
        if delivery.attempt > 1:
            return
        while (entry := jobs.find("slow")) is not None and entry.state is State.INFLIGHT:
            time.sleep(0.01)
        assert entry is not None and entry.failure is not None
        assert (entry.failure.code, entry.failure.reason) == ("HANDLER_TIMEOUT", "took longer than 0.1 s")
        try:
            delivery.ack()
        except pabal.LeaseLost as exc:
            lost.append(type(exc))

    assert pabal.worker(jobs, handler, timeout=0.1).run(wait=0.5) == 1
    assert lost == [pabal.LeaseLost]
    assert jobs.counts()[State.DONE] == 1


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_that_is_none_is_refused(jobs: Queue, timeout: float) -> None:
    with pytest.raises(pabal.InvalidInput, match="timeout must be"):
        pabal.worker(jobs, lambda delivery: None, timeout=timeout)


async def later(delivery: Delivery) -> None:
    await asyncio.sleep(0)
    delivery.ack()


class Later:
    async def __call__(self, delivery: Delivery) -> None:
        delivery.ack()


def yielding(delivery: Delivery) -> Iterator[None]:
    delivery.ack()
    yield


@pytest.mark.parametrize("handler", [later, partial(later), Later(), Later().__call__, yielding, "print"])
def test_a_handler_that_would_not_run_when_called_is_refused(jobs: Queue, handler: Any) -> None:
    with pytest.raises(InvalidInput, match="a handler is a (plain )?function; found"):
        pabal.worker(jobs, handler)


def test_an_async_handler_is_refused_with_the_way_to_write_it(jobs: Queue) -> None:
    with pytest.raises(InvalidInput, match=r"found a coroutine function, later: .* pabal\.aio"):
        pabal.worker(jobs, later)
    jobs.publish("x")
    assert pabal.worker(jobs, lambda item: asyncio.run(later(item))).run(wait=0.1) == 1


def test_a_coroutine_that_a_handler_returns_is_a_failed_attempt(jobs: Queue) -> None:
    jobs.publish("x")
    assert pabal.worker(jobs, lambda delivery: later(delivery)).run(wait=0.2) == 0
    [entry] = jobs.browse(State.DEAD)
    assert entry.failure is not None and entry.attempt == 2
    assert "the handler returned a coroutine, which nobody awaits" in entry.failure.reason


def test_a_handler_that_fails_is_seen_without_any_logging_set_up(tmp_path: Path) -> None:
    program = f"""
import pabal
with pabal.connect("sqlite:{tmp_path}/x.db") as mq:
    mq.queue("jobs").publish({{}})
    pabal.worker(mq.queue("jobs"), lambda delivery: delivery.body["name"]).run(count=1)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stderr.startswith("handler raised for jobs/") and ran.stderr.endswith("KeyError: 'name'\n")
    assert "Traceback" in ran.stderr


class Counted(StoreProxy):
    """Counts the calls that settle."""

    calls = 0

    def settle(self, settlements: Sequence[Settlement], *, durable: bool = False) -> list[Outcome]:
        self.calls += 1
        return super().settle(settlements, durable=durable)


def test_messages_that_return_together_are_acked_in_one_call(mq: Connection, jobs: Queue) -> None:
    jobs.publish_many(list(range(400)))
    store = Counted(mq.store)
    assert pabal.worker(Queue("jobs", store), lambda delivery: None, concurrency=8).run(count=400) == 400
    assert store.calls < 300
    assert jobs.counts()[State.DONE] == 400


def test_a_slow_handler_holds_back_no_ack_of_others(jobs: Queue) -> None:
    jobs.publish_many(["slow", *range(20)])

    def handler(delivery: Delivery) -> None:
        if delivery.body == "slow":
            until(lambda: jobs.counts().get(State.DONE, 0) == 20)

    assert pabal.worker(jobs, handler, concurrency=4).run(count=21) == 21


def test_a_lost_lease_does_not_touch_the_acks_beside_it(mq: Connection, jobs: Queue) -> None:
    jobs.publish_many(list(range(32)))
    lost: list[Json] = []

    def handler(delivery: Delivery) -> None:
        if delivery.body in (3, 17) and delivery.body not in lost:
            lost.append(delivery.body)
            mq.queue("jobs").nack(delivery.receipt)  # behind the back of the worker

    assert pabal.worker(jobs, handler, concurrency=8).run(wait=0.1) == 32
    assert jobs.counts()[State.DONE] == 32 and sorted(map(str, lost)) == ["17", "3"]


def test_a_worker_runs_once_and_says_that_its_queue_is_paused(jobs: Queue, caplog: pytest.LogCaptureFixture) -> None:
    jobs.pause()
    jobs.publish("x")
    done = pabal.worker(jobs, print)
    assert done.run(wait=0) == 0 and "jobs is paused" in caplog.text
    with pytest.raises(InvalidInput, match="make another one"):
        done.run(wait=0)
