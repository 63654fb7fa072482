"""Sixteen processes with clocks that differ by minutes, killed -9 at random: each occurrence comes once (G14).

The test moves the time by hand, in memory that all processes share. It goes on to the next hour when the occurrence of
this one is published, so nothing depends on how fast the machine is.
"""

import mmap
import os
import random
import signal
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

import pabal
from pabal.clock import SystemClock
from pabal.errors import LeaseLost
from pabal.queues.schedules import QUEUE, occurrence_id
from pabal.store import State
from tests.crash.harness import SOAK
from tests.services.postgres import PostgresServer
from tests.waiting import until

HOUR = 3600.0
PROCESSES, OCCURRENCES = 16, 300 if SOAK else 12
VISIBILITY = 0.3  # real seconds: what a killed process held comes back soon
_WALL = """
create table {0}.test_clock (wall double precision);
insert into {0}.test_clock values (0);
create or replace function {0}.wall() returns double precision language sql volatile
  as 'select wall from {0}.test_clock'"""


class SharedClock(SystemClock):
    """A wall clock that stands still until the test moves it, some minutes before or after those of the others."""

    def __init__(self, memory: mmap.mmap, ahead: float) -> None:
        self._memory = memory
        self._ahead = ahead

    def now(self) -> float:
        return self.read() + self._ahead

    def read(self) -> float:
        return float(struct.unpack("d", self._memory[:8])[0])

    def move(self, to: float) -> None:
        self._memory[:8] = struct.pack("d", to)


class Consumers:
    """Processes that take what comes. Each writes down what it has got before it acks, and what it has acked."""

    def __init__(self, url: str, folder: Path, clocks: list[SharedClock]) -> None:
        self._url = url
        self._folder = folder
        self._clocks = clocks
        self._pids: list[int] = []

    def _start(self, number: int) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                self._consume(number)
            finally:
                os._exit(1)
        return pid

    def _consume(self, number: int) -> None:
        fds = [os.open(self._folder / f"{what}-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND) for what in NOTES]
        with pabal.connect(self._url, clock=self._clocks[number]) as mq:
            for delivery in mq.queue("reports").consume():
                os.write(fds[0], f"{delivery.message.id}\n".encode())
                try:
                    delivery.ack()
                except LeaseLost:
                    continue
                os.write(fds[1], f"{delivery.message.id}\n".encode())

    def replace(self, number: int) -> None:
        os.kill(self._pids[number], signal.SIGKILL)
        os.waitpid(self._pids[number], 0)
        self._pids[number] = self._start(number)

    def noted(self, what: str) -> list[str]:
        files = sorted(self._folder.glob(f"{what}-*"))
        return [line for file in files for line in file.read_text().splitlines()]

    def __enter__(self) -> "Consumers":
        self._pids += [self._start(number) for number in range(len(self._clocks))]
        return self

    def __exit__(self, *exc: object) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


NOTES = ("got", "acked")


def check(url: str, folder: Path, move: Callable[[SharedClock, float], None], seed: int) -> None:
    chance, memory = random.Random(seed), mmap.mmap(-1, 8)
    clock = SharedClock(memory, 0.0)
    begin = time.time() // HOUR * HOUR + 600
    move(clock, begin)
    with pabal.connect(url, clock=clock) as mq:
        first = mq.schedule("hourly", every=HOUR, queue="reports").next
        mq.queue(QUEUE).update_policy(visibility=VISIBILITY)
        mq.queue("reports").update_policy(visibility=VISIBILITY)
    assert first == begin + HOUR - 600
    clocks = [SharedClock(memory, chance.uniform(-300, 300)) for _ in range(PROCESSES)]
    times = [first + turn * HOUR for turn in range(OCCURRENCES)]
    with Consumers(url, folder, clocks) as consumers, pabal.connect(url, clock=clock) as mq:
        for at in times:
            # Past the hour for all: a consumer whose clock is behind may be the only one left.
            move(clock, at + 310)
            while not (found := mq.schedules()) or found[0].next <= at:
                time.sleep(chance.uniform(0, 0.1))
                consumers.replace(chance.randrange(PROCESSES))
        until(lambda: {occurrence_id("hourly", at) for at in times} <= set(consumers.noted("got")))
        until(lambda: not any(mq.queue("reports").counts()[state] for state in (State.READY, State.INFLIGHT)))
        [schedule] = mq.schedules()
    got, acked = consumers.noted("got"), consumers.noted("acked")
    assert sorted(set(got)) == [occurrence_id("hourly", at) for at in times]
    assert len(acked) == len(set(acked)) and schedule.next == times[-1] + HOUR
    with pabal.connect(url, clock=clock) as mq:
        assert sum(len(mq.queue(QUEUE).browse(state)) for state in (State.READY, State.DELAYED, State.INFLIGHT)) == 1


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("store", ["sqlite", "file", "hybrid"])
def test_each_occurrence_comes_once(store: str, tmp_path: Path) -> None:
    check(f"{store}:{tmp_path}/store", tmp_path, SharedClock.move, len(store))


@contextmanager
def moved_server(server: PostgresServer, schema: str) -> Iterator[Callable[[SharedClock, float], None]]:
    """Let the test move the wall clock of the server, which is that of the store."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(_WALL.format(schema))

        def move(clock: SharedClock, to: float) -> None:
            connection.execute(f"update {schema}.test_clock set wall = %s", (to,))
            clock.move(to)

        yield move


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_each_occurrence_comes_once_on_a_server(postgres: PostgresServer, schema: str, tmp_path: Path) -> None:
    url = f"{postgres.url}?schema={schema}"
    pabal.connect(url).close()
    with moved_server(postgres, schema) as move:
        check(url, tmp_path, move, 1)
