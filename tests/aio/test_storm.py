"""Tasks that are cancelled at random while they publish, lease, handle and settle: nothing lost, nothing twice."""

import asyncio
import random
from collections import Counter

import pytest

import pabal.aio
from pabal.store import State

pytestmark = pytest.mark.anyio


async def test_random_cancellation_loses_nothing_and_settles_nothing_twice(jobs: pabal.aio.Queue) -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    await jobs.configure(pabal.Policy(visibility=5, retry=pabal.RetryPolicy(limit=1000, initial=0, max=0)))
    stored: set[str] = set()  # answered
    handled: Counter[str] = Counter()  # acknowledged

    async def publish() -> None:
        while True:
            stored.add((await jobs.publish({"n": chance.random()})).id)

    async def consume() -> None:
        while True:
            for delivery in await jobs.lease(chance.randint(1, 3), wait=chance.choice((0, 0.05, None))):
                async with delivery:
                    await asyncio.sleep(chance.random() * 0.003)
                handled[delivery.message.id] += 1

    acts = [publish] * 5 + [consume] * 10
    tasks = [asyncio.create_task(act()) for act in acts]
    for _ in range(300):
        await asyncio.sleep(chance.random() * 0.01)
        number = chance.randrange(len(tasks))
        tasks[number].cancel()
        await asyncio.wait([tasks[number]])
        assert tasks[number].cancelled(), seed
        tasks[number] = asyncio.create_task(acts[number]())
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)

    async def note(delivery: pabal.aio.Delivery) -> None:
        handled[delivery.message.id] += 1

    async with asyncio.timeout(60):
        while sum((await jobs.counts()).values()) > (await jobs.counts())[State.DONE]:
            await pabal.aio.worker(jobs, note, concurrency=50, visibility=30).run(wait=0.1)
    done = {entry.id for entry in jobs.blocking.entries(State.DONE)}
    assert stored <= done and len(stored) > 50, seed
    assert set(handled) <= done and max(handled.values()) == 1, (seed, handled.most_common(3))
