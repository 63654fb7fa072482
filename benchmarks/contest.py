"""Measuring in turns: short slices of every contender, in a new order each round, compared only within a round.

A machine that is busy with something else slows the raw limit of the same round as well, so the ratio holds where the
rates do not.
"""

import random
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import partial
from pathlib import Path
from typing import NamedTuple

from crowd import Crowd
from kinds import open_client, open_subject
from ours import Ours
from scale import Scale
from subject import BATCH, Subject

THREADS = 16
SPARE = 500  # how far a backlog is topped up, unmeasured, whenever it has been eaten down to its size
FILL_STEP = 10_000
THOUSAND = 1000  # as many as one request file may hold


class Work(Enum):
    PUBLISH = "publish one at a time"
    PUBLISH_MANY = f"publish {BATCH} per call"
    PUBLISH_THOUSAND = f"publish {THOUSAND:,} per call"
    PUBLISH_PROCESSES = "processes publishing one by one"
    PUBLISH_THREADS = f"{THREADS} threads publishing one by one"
    TAKE = "lease + ack one at a time"
    TAKE_MANY = f"lease + ack {BATCH} per call"
    CONSUME = "consume one at a time"
    PREFETCH = "consume(prefetch=32)"
    WORKER_1 = "worker(concurrency=1)"
    WORKER_8 = "worker(concurrency=8)"
    WORKER_32 = "worker(concurrency=32)"


RUN = 500  # messages of one call of these; a stage has them ready before
_RUNS = (Work.CONSUME, Work.PREFETCH, Work.WORKER_1, Work.WORKER_8, Work.WORKER_32)
_TAKING = (Work.TAKE, Work.TAKE_MANY, *_RUNS)
_PER_CALL = {
    Work.PUBLISH_MANY: BATCH,
    Work.TAKE_MANY: BATCH,
    Work.PUBLISH_THOUSAND: THOUSAND,
    **dict.fromkeys(_RUNS, RUN),
}


class Contender(NamedTuple):
    kind: str
    work: Work
    backlog: int = 0


class Pair(NamedTuple):
    """A contender and what its rate is divided by."""

    contender: Contender
    base: Contender


class Ratio(NamedTuple):
    """The median over the rounds of contender to base, its range, and the median rates of both per second."""

    median: float
    low: float
    high: float
    rate: float
    base_rate: float


class NotReached(Exception):
    """The backlog could not be built up in the time allowed."""


class Stage:
    """One subject in its own directory, with a backlog that is kept at its size."""

    def __init__(self, kind: str, backlog: int, place: Path, processes: int) -> None:
        self.place = place
        self._backlog = backlog
        self._processes = processes
        self._stock = 0
        self._subject: Subject = open_subject(kind, place)
        self._client = partial(open_client, kind, place)
        self._crowd: Crowd | None = None

    def fill(self, seconds: float) -> None:
        start = time.monotonic()
        while self._stock < self._backlog:
            if time.monotonic() - start > seconds:
                raise NotReached(f"not reached: {self._stock:,} in {seconds:.0f} s")
            self._add(min(FILL_STEP, self._backlog - self._stock))

    def rate(self, work: Work, seconds: float, most: int) -> float:
        """Return messages per second over one slice of at most `most` messages."""
        if work is Work.PUBLISH_THREADS:
            return self._threads(seconds)
        if work is Work.PUBLISH_PROCESSES:
            self._crowd = self._crowd or Crowd(self._client, self._processes)
            return self._crowd.rate(seconds)
        call, size, taking = _call(self._subject, work), _PER_CALL.get(work, 1), work in _TAKING
        count, spent = 0, 0.0
        while count < most and spent < seconds:
            if taking and self._stock - self._backlog < size:
                self._add(SPARE)
            room = min(most - count, self._stock - self._backlog if taking else most)
            calls, took = _burst(call, max(1, room // size), seconds - spent)
            count, spent = count + calls * size, spent + took
            self._stock += -calls * size if taking else calls * size
        return count / spent

    def close(self) -> None:
        if self._crowd is not None:
            self._crowd.close()
        self._subject.close()

    def _add(self, count: int) -> None:
        self._subject.fill(count)
        self._stock += count

    def _threads(self, seconds: float) -> float:
        counts = [0] * THREADS
        gate = threading.Barrier(THREADS + 1)

        def publish(place: int) -> None:
            gate.wait()
            counts[place], _took = _burst(self._subject.publish, 1 << 62, seconds)

        threads = [threading.Thread(target=publish, args=(place,)) for place in range(THREADS)]
        for thread in threads:
            thread.start()
        gate.wait()
        start = time.perf_counter()
        for thread in threads:
            thread.join()
        return sum(counts) / (time.perf_counter() - start)


def _call(subject: Subject, work: Work) -> Callable[[], None]:
    calls: dict[Work, Callable[[], None]] = {
        Work.PUBLISH: subject.publish,
        Work.PUBLISH_MANY: partial(subject.publish_many, BATCH),
        Work.PUBLISH_THOUSAND: partial(subject.publish_many, THOUSAND),
        Work.TAKE: subject.take,
        Work.TAKE_MANY: partial(subject.take_many, BATCH),
    }
    if isinstance(subject, Ours):
        calls |= {
            Work.CONSUME: partial(subject.consume, RUN, 1),
            Work.PREFETCH: partial(subject.consume, RUN, 32),
            Work.WORKER_1: partial(subject.work, RUN, 1),
            Work.WORKER_8: partial(subject.work, RUN, 8),
            Work.WORKER_32: partial(subject.work, RUN, 32),
        }
    return calls[work]


def _burst(call: Callable[[], None], most: int, seconds: float) -> tuple[int, float]:
    clock = time.perf_counter
    start = now = clock()
    end, calls = start + seconds, 0
    while now < end and calls < most:
        call()
        calls += 1
        now = clock()
    return calls, now - start


def contest(
    pairs: Iterable[Pair],
    scale: Scale,
    chance: random.Random,
    place: Path,
    after: Callable[[Mapping[tuple[str, int], Path]], None] = lambda _places: None,
) -> dict[Pair, Ratio | str]:
    """Measure all pairs in turns; a pair whose backlog cannot be built says so instead.

    `after` is shown where the stages lie, closed and still there.
    """
    wanted = list(dict.fromkeys(pairs))
    stages: dict[tuple[str, int], Stage] = {}
    try:
        for kind, backlog in dict.fromkeys((c.kind, c.backlog) for pair in wanted for c in pair):
            where = place / f"{kind}-{backlog}".replace(" ", "-")
            stage = stages[kind, backlog] = Stage(kind, backlog, where, scale.processes)
            stage.fill(scale.fill_seconds)
        rates = _rounds(stages, list(dict.fromkeys(c for pair in wanted for c in pair)), scale, chance)
        for stage in stages.values():
            stage.close()
        after({key: stage.place for key, stage in stages.items()})
    except NotReached as exc:
        return dict.fromkeys(wanted, str(exc))
    finally:
        for stage in stages.values():
            shutil.rmtree(stage.place, ignore_errors=True)
    return {pair: _ratio(rates[pair.contender], rates[pair.base]) for pair in wanted}


def _rounds(
    stages: Mapping[tuple[str, int], Stage], contenders: list[Contender], scale: Scale, chance: random.Random
) -> dict[Contender, list[float]]:
    rates: dict[Contender, list[float]] = {contender: [] for contender in contenders}
    rounds = scale.backlog_rounds if any(contender.backlog for contender in contenders) else scale.rounds
    for turn in range(rounds + 1):
        order = contenders.copy()
        chance.shuffle(order)
        for contender in order:
            most = scale.kept if contender.backlog and contender.work is Work.PUBLISH else 1 << 62
            rate = stages[contender.kind, contender.backlog].rate(contender.work, scale.slice, most)
            if turn:  # the first round only warms up
                rates[contender].append(rate)
    return rates


def _ratio(rates: list[float], bases: list[float]) -> Ratio:
    ratios = [rate / base for rate, base in zip(rates, bases, strict=True)]
    return Ratio(
        statistics.median(ratios), min(ratios), max(ratios), statistics.median(rates), statistics.median(bases)
    )
