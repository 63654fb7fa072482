"""The stream of figures: how often the store is read, for one browser and for many, and a store that is silent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import pytest

import pabal
from pabal.clock import SystemClock
from pabal.errors import StoreFailed
from pabal.gateway.api.live import Live
from pabal.queues.overview import Overview
from pabal.store import Consumer

pytestmark = pytest.mark.anyio


class Counted:
    """A connection that counts looks, waits while it shall hang, and fails if it shall."""

    def __init__(self, mq: pabal.Connection) -> None:
        self._mq = mq
        self.looks = 0
        self.going = threading.Event()
        self.going.set()
        self.broken = False

    def queues(self) -> list[str]:
        self.looks += 1
        assert self.going.wait(60)
        if self.broken:
            raise StoreFailed("the disk is gone")
        return self._mq.queues()

    def queue(self, name: str) -> pabal.Queue:
        return self._mq.queue(name)

    def consumers(self) -> list[Consumer]:
        return self._mq.consumers()


class Pauses:
    """Pauses that last until the test lets the next look begin."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.begun = asyncio.Event()
        self._next = asyncio.Event()

    async def __call__(self, wanted: asyncio.Event, seconds: float) -> None:
        self.seconds.append(seconds)
        self.begun.set()
        waits = [asyncio.ensure_future(self._next.wait()), asyncio.ensure_future(wanted.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        self._next.clear()

    async def look(self) -> None:
        """End a pause, and wait for the next one: between them is a look."""
        await self.begun.wait()
        self.begun.clear()
        self._next.set()
        await self.begun.wait()


@pytest.fixture
def source() -> Iterator[Counted]:
    with pabal.connect("memory:") as mq:
        mq.queue("jobs").publish(1)
        yield Counted(mq)


@asynccontextmanager
async def lively(source: Counted, pauses: Pauses) -> AsyncIterator[Live]:
    live = Live(source, SystemClock(), pause=pauses)
    try:
        yield live
    finally:
        source.going.set()
        live.close()


async def figures(browser: AsyncGenerator[Overview | None, None]) -> Overview:
    """Return the next figures; signs of life are none."""
    while (found := await anext(browser)) is None:
        pass
    return found


async def test_ten_browsers_cost_the_store_as_much_as_one_and_none_at_all_a_look_a_minute(source: Counted) -> None:
    pauses = Pauses()
    async with lively(source, pauses) as live:
        await pauses.begun.wait()
        assert pauses.seconds[-1] == 60.0
        async with AsyncExitStack() as stack:
            browsers = [await stack.enter_async_context(aclosing(live.watch())) for _ in range(10)]
            for each in browsers:
                first = await anext(each)
                assert first is not None and first["queues"][0]["ready"] == 1
            asked = [asyncio.ensure_future(anext(each)) for each in browsers]
            before = source.looks
            await pauses.look()
            await asyncio.gather(*asked)
            assert source.looks - before <= 2  # one for the first browser, which ended the pause, and ours
            assert pauses.seconds[-1] == 1.0
        await pauses.look()
        assert live._watchers == 0 and pauses.seconds[-1] == 60.0


async def test_a_store_that_is_silent_is_a_fault_while_it_is_and_one_look_goes_on(source: Counted) -> None:
    pauses = Pauses()
    async with lively(source, pauses) as live, aclosing(live.watch()) as browser:
        while (await figures(browser))["fault"]:
            await pauses.look()
        looks = source.looks
        source.going.clear()
        await pauses.begun.wait()
        pauses._next.set()
        for _ in range(2):
            found = await figures(browser)
            assert "has not answered for" in (found["fault"] or "") and source.looks == looks + 1
        assert live._latest["queues"][0]["ready"] == 1  # what it said last
        source.going.set()
        while (await figures(browser))["fault"]:
            pass


async def test_a_store_that_fails_is_a_fault_and_heals(source: Counted) -> None:
    pauses = Pauses()
    source.broken = True
    async with lively(source, pauses) as live, aclosing(live.watch()) as browser:
        assert (await figures(browser))["fault"] == "StoreFailed: the disk is gone"
        source.broken = False
        await pauses.look()
        while (await figures(browser))["fault"]:
            pass
