"""Topics from an event loop: appends that share a call, and consumers whose handlers are coroutines."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import pabal.aio
from pabal import Received, Refusal, RetryPolicy
from pabal.errors import InvalidInput, StoreClosed
from tests.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def topic(tmp_path: Path) -> AsyncIterator[pabal.aio.Topic]:
    async with pabal.aio.connect_topics(f"sqlite:{tmp_path}/events.db") as topics:
        found = topics.topic("events")
        assert await found.create(2, schema={"type": ["object", "integer"]})
        yield found
    with pytest.raises(StoreClosed, match="async with"):
        topics.topic("events")


async def test_many_append_at_once_in_order_and_a_refused_one_fails_alone(topic: pabal.aio.Topic) -> None:
    answers = await asyncio.gather(
        *(topic.append({"n": n} if n != 7 else "no object", key="a") for n in range(100)), return_exceptions=True
    )
    assert isinstance(answers[7], pabal.errors.ValidationFailed)
    [number] = {answer.partition for n, answer in enumerate(answers) if n != 7}  # type: ignore[union-attr]
    read = [topic.blocking.body_of(record) for record in await topic.read(number, limit=1000)]
    assert read == [{"n": n} for n in range(100) if n != 7]
    assert len(await topic.bounds()) == 2


async def test_a_consumer_awaits_its_handler_and_retries(topic: pabal.aio.Topic) -> None:
    seen: list[Any] = []

    async def handle(received: Received) -> None:
        await asyncio.sleep(0)
        seen.append(received.body)
        if received.body == 3 and seen.count(3) < 3:
            raise ValueError("not yet")
        if received.body == 4:
            raise ValueError("never")

    await topic.append_many(list(range(6)), key="a")
    consumer = pabal.aio.consumer(topic, "workers", handle, retry=RetryPolicy(limit=3, initial=0, max=0))
    assert await consumer.run(wait=0.2) == 5 and (consumer.handled, consumer.dead) == (5, 1)
    assert seen == [0, 1, 2, 3, 3, 3, 4, 4, 4, 5]
    assert sum(share.lag for shares in (await topic.groups()).values() for share in shares) == 0


async def test_batches_and_refusals(topic: pabal.aio.Topic) -> None:
    async def handle(received: Sequence[Received]) -> list[Refusal]:
        return [Refusal(one, "odd") for one in received if one.body % 2]

    await topic.append_many(list(range(10)))
    consumer = pabal.aio.consumer(topic, "workers", handle, together=True)
    assert await consumer.run(wait=0.2) == 5 and consumer.dead == 5


async def test_a_cancelled_consumer_leaves_its_record_to_the_next(topic: pabal.aio.Topic) -> None:
    begun = asyncio.Event()
    attempts: list[int] = []

    async def hang(received: Received) -> None:
        begun.set()
        await asyncio.sleep(60)

    async def note(received: Received) -> None:
        attempts.append(received.attempt)

    await topic.append(1)
    running = asyncio.create_task(pabal.aio.consumer(topic, "workers", hang).run())
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(20):
            await running
    assert await pabal.aio.consumer(topic, "workers", note).run(count=1) == 1
    assert attempts == [1]
    waiting = pabal.aio.consumer(topic, "workers", note)
    running = asyncio.create_task(waiting.run())
    await asyncio.sleep(0.1)
    waiting.stop()
    assert await running == 0
    with pytest.raises(InvalidInput, match="async def"):
        pabal.aio.consumer(topic, "workers", print)  # type: ignore[arg-type]


async def test_a_cancelled_consumer_ends_after_its_handler(topic: pabal.aio.Topic) -> None:
    begun, seen = asyncio.Event(), list[str]()

    async def hang(received: Received) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.1)
            seen.append("cleaned up")

    await topic.append(1)
    consumer = pabal.aio.consumer(topic, "workers", hang)
    running = asyncio.create_task(consumer.run())
    await begun.wait()
    running.cancel()
    await asyncio.wait([running])
    assert seen == ["cleaned up"] and consumer.handled == 0
    with pytest.raises(InvalidInput, match="another"):
        await consumer.run()


def test_a_consumer_whose_loop_is_gone_counts_no_attempt(tmp_path: Path) -> None:
    attempts: list[int] = []
    loop = asyncio.new_event_loop()

    async def hang(received: Received) -> None:
        loop.stop()
        await asyncio.sleep(60)

    async def note(received: Received) -> None:
        attempts.append(received.attempt)

    async def consume(topics: pabal.aio.TopicConnection) -> None:
        await pabal.aio.consumer(topics.topic("events"), "workers", note, session=10).run(count=1)

    async def begin() -> pabal.aio.TopicConnection:
        topics = await pabal.aio.connect_topics(f"sqlite:{tmp_path}/events.db").__aenter__()
        await topics.topic("events").create()
        await topics.topic("events").append(1)
        return topics

    topics = loop.run_until_complete(begin())
    consumer = pabal.aio.consumer(topics.topic("events"), "workers", hang)
    with pytest.raises(RuntimeError, match="stopped"):
        loop.run_until_complete(consumer.run())
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    until(lambda: not any(thread.name == "pabal-aio-consumer" for thread in threading.enumerate()))
    asyncio.run(consume(topics))
    assert attempts == [1]
    asyncio.run(topics.close())


async def test_one_record_where_many_are_expected_is_refused(topic: pabal.aio.Topic) -> None:
    with pytest.raises(InvalidInput, match="use append"):
        await topic.append_many("text")
    with pytest.raises(InvalidInput, match="use append"):
        topic.blocking.append_many({"a": 1})
    await topic.retain(max_age=60)
    assert await topic.schema() == {"type": ["object", "integer"]}
