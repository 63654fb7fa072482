"""Sixteen processes with clocks that differ by minutes, some killed -9 at random: no occurrence comes twice."""

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

import pabal
from pabal.clock import SystemClock
from pabal.errors import LeaseLost
from pabal.queues.schedules import QUEUE
from pabal.store import State
from tests.crash.harness import SOAK

HOUR = 3600.0
PROCESSES, SECONDS = 16, 60.0 if SOAK else 5.0


class FastClock(SystemClock):
    """A wall clock on which an hour takes a second, some minutes before or after those of the others."""

    def __init__(self, start: float, offset: float) -> None:
        self._start = start
        self._offset = offset

    def now(self) -> float:
        return self._start + (super().now() - self._start) * HOUR + self._offset


def consume(url: str, clock: FastClock, notes: Path) -> None:
    """Take and ack what comes, and write down the ids, until killed."""
    fd = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with pabal.connect(url, clock=clock) as mq:
        for delivery in mq.queue("reports").consume():
            try:
                delivery.ack()
            except LeaseLost:
                continue
            os.write(fd, f"{delivery.message.id}\n".encode())


def start(url: str, clock: FastClock, notes: Path) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            consume(url, clock, notes)
        finally:
            os._exit(1)
    return pid


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("store", ["sqlite", "file"])
def test_no_occurrence_comes_twice(store: str, tmp_path: Path) -> None:
    url, chance, begin = f"{store}:{tmp_path}/store", random.Random(store), time.time() // HOUR * HOUR
    with pabal.connect(url, clock=FastClock(begin, 0.0)) as mq:
        mq.schedule("hourly", every=HOUR, queue="reports")
        mq.queue(QUEUE).update_policy(visibility=0.3)  # real seconds: what a killed process held comes back soon
    notes = [tmp_path / f"notes-{n}" for n in range(PROCESSES)]
    clocks = [FastClock(begin, chance.uniform(-300, 300)) for _ in notes]
    pids = [start(url, clock, each) for clock, each in zip(clocks, notes, strict=True)]
    try:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(0.2)
            n = chance.randrange(PROCESSES)
            os.kill(pids[n], signal.SIGKILL)
            os.waitpid(pids[n], 0)
            pids[n] = start(url, clocks[n], notes[n])
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    taken = Counter(line for each in notes if each.exists() for line in each.read_text().splitlines())
    assert len(taken) >= 2 and set(taken.values()) == {1}, taken
    with pabal.connect(url) as mq:
        live = [
            entry for state in (State.READY, State.DELAYED, State.INFLIGHT) for entry in mq.queue(QUEUE).browse(state)
        ]
        assert [each.name for each in mq.schedules()] == ["hourly"] and len(live) == 1
