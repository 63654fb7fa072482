"""What an operation costs for each queue or message when there are ten times as many of them."""

import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pabal
from pabal.queues.queue import Queue
from pabal.store import Dead, Failure, Settlement, State
from scale import Scale
from subject import BODY

AIM = 1.5  # an item may cost half as much again
_BATCH = 1_000
_SAMPLE = 500  # messages of a large store that are used
_FAILED = Failure("NACKED", "for the benchmark")
_SCHEMES = {"sqlite": "sqlite:{}/queue.db", "files": "file:{}", "hybrid": "hybrid:{}"}


class Growth(NamedTuple):
    """A measurement: how many items at most, by store, and what is done with a store of that many.

    `fill` is not measured; `use` gets the store opened anew and returns how many items it used.
    """

    title: str
    most: dict[str, int]
    fill: Callable[[pabal.Connection, int], None]
    use: Callable[[pabal.Connection, int], int]


def _fill_queues(connection: pabal.Connection, count: int) -> None:
    for number in range(count):
        connection.queue(f"q{number}").publish(BODY)


def _count_queues(connection: pabal.Connection, count: int) -> int:
    for name in connection.queues():
        connection.queue(name).counts()
    return count


def _published(**options: object) -> Callable[[pabal.Connection, int], None]:
    def fill(connection: pabal.Connection, count: int) -> None:
        queue = connection.queue("jobs")
        for start in range(0, count, _BATCH):
            some = range(start, min(start + _BATCH, count))
            queue.publish_many([queue.draft(BODY, **_of(options, number)) for number in some])  # type: ignore[arg-type]  # options by name
        if "delay" in options:
            time.sleep(float(str(options["delay"])))

    return fill


def _of(options: dict[str, object], number: int) -> dict[str, object]:
    return {name: value.format(number) if isinstance(value, str) else value for name, value in options.items()}


def _take(connection: pabal.Connection, count: int) -> int:
    queue, taken = connection.queue("jobs"), 0
    while found := queue.lease(100):
        queue.ack_many(found)
        taken += len(found)
    assert taken == count
    return taken


def _take_one_by_one(connection: pabal.Connection, count: int) -> int:
    queue, taken = connection.queue("jobs"), 0
    while taken < min(count, _SAMPLE) and (found := queue.lease()):
        found[0].ack()
        taken += 1
    return taken


def _take_first(connection: pabal.Connection, count: int) -> int:
    """Everything is looked through once: what that costs for each."""
    [delivery] = connection.queue("jobs").lease()
    delivery.ack()
    return count


def _bury(connection: pabal.Connection, count: int) -> None:
    _published()(connection, count)
    queue = connection.queue("jobs")
    while found := queue.lease(_BATCH):
        queue.store.settle([Settlement(delivery.receipt, Dead(_FAILED)) for delivery in found])


def _ids(queue: Queue, state: State) -> Iterable[list[str]]:
    after = ""
    while page := queue.browse(state, after=after, limit=100):
        yield [entry.id for entry in page]
        after = page[-1].cursor


def _list_dead(connection: pabal.Connection, count: int) -> int:
    return sum(map(len, _ids(connection.queue("jobs"), State.DEAD)))


def _revive(connection: pabal.Connection, count: int) -> int:
    queue = connection.queue("jobs")
    return sum(len(queue.revive(ids)) for ids in list(_ids(queue, State.DEAD)))


def _publish_again(connection: pabal.Connection, count: int) -> int:
    queue = connection.queue("jobs")
    for number in range(min(count, _SAMPLE)):
        assert queue.publish(BODY, dedup_key=f"key {number * (count // min(count, _SAMPLE))}").duplicate
    return min(count, _SAMPLE)


def _purge(connection: pabal.Connection, count: int) -> int:
    return connection.queue("jobs").purge(State.READY)


def _each(number: int, files: int) -> dict[str, int]:
    return {"sqlite": number, "files": files, "hybrid": files}


GROWTHS = (
    Growth("counts of all queues", _each(20_000, 2_000), _fill_queues, _count_queues),
    Growth(
        "lease + ack 100 per call of delayed messages due at once",
        _each(1_000_000, 50_000),
        _published(delay=0.2),
        _take,
    ),
    Growth("list dead messages", _each(200_000, 20_000), _bury, _list_dead),
    Growth("revive all dead messages", _each(200_000, 20_000), _bury, _revive),
    Growth("publish a duplicate, dedup keys", _each(500_000, 50_000), _published(dedup_key="key {}"), _publish_again),
    Growth("lease + ack of one group", _each(200_000, 50_000), _published(group="one"), _take_one_by_one),
    Growth("purge of one group", _each(200_000, 50_000), _published(group="one"), _purge),
    Growth("first lease after opening", _each(1_000_000, 150_000), _published(), _take_first),
)


def cost(growth: Growth, kind: str, place: Path, count: int) -> float:
    """Return the seconds for each item in a store of so many."""
    place.mkdir(parents=True)
    url = _SCHEMES[kind].format(place)
    try:
        connection = pabal.connect(url)
        growth.fill(connection, count)
        connection.close()
        connection = pabal.connect(url)
        began = time.monotonic()
        used = growth.use(connection, count)
        spent = time.monotonic() - began
        connection.close()
    finally:
        shutil.rmtree(place)
    return spent / used


def ratio(growth: Growth, kind: str, place: Path, scale: Scale) -> tuple[int, float]:
    """Return the larger number of items, and how many times as much one costs there as at a tenth of it."""
    most = max(20, growth.most[kind] // scale.growth_divisor)
    small = sorted(cost(growth, kind, place / f"small-{turn}", most // 10) for turn in range(3))[1]
    return most, cost(growth, kind, place / "large", most) / small
