"""What a queue costs when little happens: memory over a backlog, CPU of a sleeping consumer, time until receipt.

Each is measured in a fresh process of its own.
"""

import multiprocessing
import random
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import pabal
from kinds import open_server, open_subject
from managed import Manager
from scale import Scale
from subject import BODY

CYCLES = 300  # messages published, leased and acked before memory is read
GAP = 0.005, 0.025  # seconds between publishes, so that the consumer is asleep each time
_STOP = "stop"
_SPAWN = multiprocessing.get_context("spawn")


class Latency(NamedTuple):
    """Milliseconds from the call of publish until it is answered, or another process has the message in its hands."""

    p50: float
    p99: float


def memory_growth(kind: str, filled: Path, empty: Path) -> float:
    """Return how many MB more a process uses on the filled place than on an empty one."""
    return (in_child(_memory, kind, filled) - in_child(_memory, kind, empty)) / 1e6


def idle_cpu(kind: str, place: Path, scale: Scale) -> float:
    """Return the CPU milliseconds per second of a consumer that sleeps on an empty queue."""
    return in_child(_idle, kind, place, scale.idle_seconds) * 1000


def latency(
    kind: str, place: Path, scale: Scale, chance: random.Random, gap: tuple[float, float] = GAP
) -> Latency | str:
    """Publish at random moments here, so many seconds apart, and see when each arrives in another process."""
    server = open_server(kind, place)
    here, there = _SPAWN.Pipe()
    child = _SPAWN.Process(target=_receive, args=(kind, place, there), daemon=True)
    child.start()
    there.close()
    try:
        here.recv()  # it is there
        time.sleep(0.2)  # and asleep
        for _ in range(scale.samples):
            server.send(f"{time.monotonic_ns():020}{BODY[20:]}")
            time.sleep(chance.uniform(*gap))
        server.send(_STOP)
        if not here.poll(scale.latency_seconds):
            child.terminate()
            return f"none within {scale.latency_seconds:g} s"
        return percentiles(here.recv())
    finally:
        _end(child)
        server.close()


def round_trip(place: Path, scale: Scale) -> Latency:
    """Publish through a manager when everybody is asleep, and see when each is answered."""
    subject = open_subject("mailbox", place)
    taken = []
    for _ in range(scale.samples):
        time.sleep(GAP[0])
        start = time.perf_counter_ns()
        subject.publish()
        taken.append(time.perf_counter_ns() - start)
    subject.close()
    return percentiles(taken)


def idle_manager(place: Path, scale: Scale) -> tuple[float, float]:
    """Return the CPU milliseconds per second and the MB of a manager with messages in a queue and nothing to do."""
    manager = Manager(place)
    with pabal.connect(manager.url) as mq:
        mq.queue("bench").publish_many([BODY] * 100)
    before, start = manager.usage()[0], time.monotonic()
    time.sleep(2 * scale.idle_seconds)
    used, megabytes = manager.usage()
    used, wall = used - before, time.monotonic() - start
    manager.close()
    return used / wall * 1000, megabytes


def percentiles(nanoseconds: Sequence[int]) -> Latency:
    """Return the median and the slowest but one in a hundred."""
    ordered = sorted(nanoseconds)
    p50, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * part))] / 1e6 for part in (0.5, 0.99))
    return Latency(p50, p99)


def in_child(measure: Callable[..., None], *args: object) -> float:
    here, there = _SPAWN.Pipe()
    child = _SPAWN.Process(target=measure, args=(*args, there), daemon=True)
    child.start()
    there.close()
    try:
        result: float = here.recv()
        return result
    finally:
        _end(child)


def _end(child: multiprocessing.process.BaseProcess) -> None:
    child.join(timeout=2)
    if child.is_alive():
        child.terminate()
        child.join()


def _memory(kind: str, place: Path, answer: Connection) -> None:
    subject = open_subject(kind, place)
    for _ in range(CYCLES):
        subject.publish()
        subject.take()
    with open("/proc/self/status", encoding="ascii") as status:
        [kilobytes] = [int(line.split()[1]) for line in status if line.startswith("VmRSS:")]
    subject.close()
    answer.send(kilobytes * 1024.0)


def _idle(kind: str, place: Path, seconds: float, answer: Connection) -> None:
    server = open_server(kind, place)
    server.serve(lambda _body: True, 0.01)  # what is done once is not idling
    wall, cpu = time.monotonic(), time.process_time()
    server.serve(lambda _body: True, seconds)
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    server.close()
    answer.send(cpu / wall)


def _receive(kind: str, place: Path, answer: Connection) -> None:
    latencies: list[int] = []

    def seen(body: str) -> bool:
        now = time.monotonic_ns()
        if body == _STOP:
            return False
        latencies.append(now - int(body[:20]))
        return True

    server = open_server(kind, place)
    answer.send(None)
    server.serve(seen, None)
    answer.send(latencies)
    server.close()
