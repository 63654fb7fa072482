"""A hundred tasks of one event loop that each await a durable publish, beside one that publishes one by one."""

import asyncio
import statistics
import time
from pathlib import Path

import pabal.aio
from contest import Ratio
from scale import Scale

TASKS = 100
_TICK = 0.001  # seconds between two looks at how late the event loop is


def together(place: Path, scale: Scale) -> tuple[Ratio, float]:
    """Return the ratio of both rates, in alternating slices, and how many ms late the loop was (99 of 100 looks)."""
    return asyncio.run(_together(f"sqlite:{place}/jobs.db", scale))


async def _together(url: str, scale: Scale) -> tuple[Ratio, float]:
    rates: list[tuple[float, float]] = []
    late: list[float] = []
    async with pabal.aio.connect(url) as mq:
        queue = mq.queue("jobs")
        for _ in range(scale.rounds):
            alone = await _rate(queue, 1, scale.slice)
            looking = asyncio.create_task(_look(late))
            rates.append((alone, await _rate(queue, TASKS, scale.slice)))
            while not late:  # one look at least
                await asyncio.sleep(0)
            looking.cancel()
    ratios = [many / alone for alone, many in rates]
    median = statistics.median
    ratio = Ratio(
        median(ratios), min(ratios), max(ratios), median(many for _, many in rates), median(one for one, _ in rates)
    )
    return ratio, sorted(late)[len(late) * 99 // 100] * 1000


async def _rate(queue: pabal.aio.Queue, tasks: int, seconds: float) -> float:
    done, begun = 0, time.perf_counter()

    async def publish() -> None:
        nonlocal done
        while time.perf_counter() - begun < seconds:
            await queue.publish(b"x" * 1024)
            done += 1

    await asyncio.gather(*(publish() for _ in range(tasks)))
    return done / (time.perf_counter() - begun)


async def _look(late: list[float]) -> None:
    while True:
        due = time.perf_counter() + _TICK
        await asyncio.sleep(_TICK)
        late.append(time.perf_counter() - due)
