"""What users do that is no slice of calls: several processes at work at once, and the first leases of a new process."""

import statistics
import time
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from crowd import Crowd
from footprint import in_child
from kinds import open_subject
from ours import Ours
from scale import Scale

FIRST = 300  # messages that a new process takes
_TRIES = 5


def first_ratio(kind: str, place: Path, scale: Scale) -> float:
    """Return the rate of the first leases of a new process at the large backlog, to that at the small one."""
    rates: dict[int, list[float]] = {scale.small: [], scale.large: []}
    first = min(FIRST, scale.small // 2)
    for backlog in rates:
        subject = open_subject(kind, place / str(backlog))
        subject.fill(backlog + first * _TRIES)
        subject.close()
    for _ in range(_TRIES):
        for backlog, found in rates.items():
            found.append(in_child(_first, kind, place / str(backlog), first))
    return statistics.median(rates[scale.large]) / statistics.median(rates[scale.small])


def through(kind: str, place: Path, scale: Scale, consumers: int) -> float:
    """Return how many messages per second go through while as many processes publish as the scale says."""
    subject = open_subject(kind, place)
    join = partial(open_subject, kind, place)
    publishers, takers = Crowd(join, scale.processes), Crowd(join, consumers, _take)
    start = time.perf_counter()
    for crowd in (publishers, takers):
        crowd.tell(10 * scale.slice)
    published, taken = publishers.told(), takers.told()
    seconds = time.perf_counter() - start
    for crowd in (publishers, takers):
        crowd.close()
    subject.close()
    assert taken <= published + scale.processes + consumers  # each publishes one when it joins
    return taken / seconds


def _take(subject: Ours) -> int:
    return subject.take_soon(0.1)


def _first(kind: str, place: Path, count: int, answer: Connection) -> None:
    subject = open_subject(kind, place)
    start = time.perf_counter()
    for _ in range(count):
        subject.take()
    answer.send(count / (time.perf_counter() - start))
    subject.close()
