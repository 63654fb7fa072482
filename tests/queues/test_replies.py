"""Request and reply: one reply for each request, also when either side is killed."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import pabal
import pabal.aio
from pabal import Connection, Delivery, InvalidInput, LeaseLost, Queue, State
from pabal.errors import NoReply, RequestFailed
from pabal.queues.replies import SUFFIX
from tests.waiting import until

STORES = ["sqlite", "file", "hybrid"]


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}:{tmp_path}/store"


@pytest.fixture
def mq(url: str) -> Iterator[Connection]:
    with pabal.connect(url) as connection:
        yield connection


@pytest.fixture
def sums(mq: Connection) -> Iterator[Queue]:
    """A queue whose worker replies with the sum of the numbers."""

    def add(delivery: Delivery) -> None:
        if delivery.message.type == "silent":
            return
        if delivery.message.type == "bad":
            delivery.bury("no numbers")
            return
        delivery.reply({"sum": sum(delivery.body)}, type="sum")

    queue = mq.queue("sums")
    worker = pabal.worker(queue, add, concurrency=4)
    thread = threading.Thread(target=worker.run)
    thread.start()
    yield queue
    worker.stop()
    thread.join()


def test_a_request_returns_the_body_of_its_reply(mq: Connection, sums: Queue) -> None:
    assert sums.request([1, 2]) == {"sum": 3}
    answers: dict[int, object] = {}

    def ask(n: int) -> None:
        answers[n] = sums.request([n, n], timeout=60)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {n: {"sum": 2 * n} for n in range(20)}
    # With an id of its own the reply stays: asking again, as after a crash, is answered without the worker.
    assert sums.request([1, 2], id="mine") == sums.request([1, 2], id="mine") == {"sum": 3}
    replies = mq.queue(f"sums{SUFFIX}")
    assert [entry.id for entry in replies.browse(State.READY)] == ["mine.reply"]
    assert replies.browse(State.READY)[0].message is not None
    assert sums.counts()[State.DONE] == 22


def test_a_request_that_gets_no_reply_says_why(mq: Connection, sums: Queue) -> None:
    with pytest.raises(RequestFailed, match="is dead: NACKED no numbers"):
        sums.request([1], type="bad", timeout=60)
    with pytest.raises(RequestFailed, match="is done: nothing was replied"):
        sums.request([1], type="silent", timeout=60)
    lonely = mq.queue("lonely")
    with pytest.raises(NoReply, match="within 0.05 s"):
        lonely.request(1, timeout=0.05)
    with pytest.raises(TimeoutError):
        lonely.request(1, timeout=0.05, id="kept")
    # What nobody took is cancelled, unless it may be asked for again.
    assert [entry.id for entry in lonely.browse(State.READY)] == ["kept"]
    assert lonely.counts()[State.DONE] == 1
    [delivery] = lonely.lease()
    plain = lonely.publish(2)
    [other] = lonely.lease()
    with pytest.raises(InvalidInput, match="has no reply_to"):
        other.reply("nobody asks")
    assert other.message.id == plain.id
    lonely.cancel(["kept"], inflight=True)
    with pytest.raises(LeaseLost):
        delivery.reply("too late")
    assert mq.queue(f"lonely{SUFFIX}").counts()[State.READY] == 0


def test_both_sides_may_be_killed(url: str, tmp_path: Path) -> None:
    """The first consumer is killed before its reply, the requester after it has asked."""

    def consume(slow: bool) -> None:
        with pabal.connect(url) as mq:
            for delivery in mq.queue("jobs").consume(visibility=0.5):
                if slow:
                    (tmp_path / "taken").touch()
                    time.sleep(3600)
                delivery.reply(delivery.body + 1)

    def ask() -> None:
        with pabal.connect(url) as mq:
            mq.queue("jobs").request(41, timeout=3600, id="question")

    def fork(call: object, *args: object) -> int:
        if (pid := os.fork()) == 0:
            try:
                call(*args)  # type: ignore[operator]
            finally:
                os._exit(0)
        return pid

    asker, first = fork(ask), fork(consume, True)
    until((tmp_path / "taken").exists)
    for pid in (asker, first):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    second = fork(consume, False)
    try:
        with pabal.connect(url) as mq:
            assert mq.queue("jobs").request(41, timeout=60, id="question") == 42
    finally:
        os.kill(second, signal.SIGKILL)
        os.waitpid(second, 0)


@pytest.mark.anyio
async def test_request_and_reply_awaited(tmp_path: Path) -> None:
    import asyncio

    async with pabal.aio.connect(f"sqlite:{tmp_path}/store") as mq:
        jobs = mq.queue("jobs")

        async def serve(delivery: pabal.aio.Delivery) -> None:
            await delivery.reply(delivery.body * 2)

        worker = pabal.aio.worker(jobs, serve, concurrency=8)
        running = asyncio.create_task(worker.run())
        assert await asyncio.gather(*(jobs.request(n) for n in range(50))) == [2 * n for n in range(50)]
        assert await jobs.request(5, id="mine") == await jobs.request(5, id="mine") == 10
        worker.stop()
        await running
        with pytest.raises(NoReply):
            await jobs.request(1, timeout=0.05)
        asking = asyncio.create_task(jobs.request(1))
        while not (await jobs.counts())[State.READY]:
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.wait([asking])
        while (await jobs.counts())[State.READY]:
            await asyncio.sleep(0.01)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
