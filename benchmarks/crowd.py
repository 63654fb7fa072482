"""Several processes on one subject at once, each with a handle of its own."""

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from subject import Subject

_SPAWN = multiprocessing.get_context("spawn")


class Crowd:
    """Processes that publish one by one when told to. `join` opens the subject in each of them."""

    def __init__(self, join: Callable[[], Subject], size: int) -> None:
        self._members = [_started(join) for _ in range(size)]

    def rate(self, seconds: float) -> float:
        """Return messages per second of all of them together."""
        start = time.perf_counter()
        for _, pipe in self._members:
            pipe.send(seconds)
        count: int = sum(pipe.recv() for _, pipe in self._members)
        return count / (time.perf_counter() - start)

    def close(self) -> None:
        for member, pipe in self._members:
            pipe.send(None)
            member.join()


def _started(join: Callable[[], Subject]) -> tuple[multiprocessing.process.BaseProcess, Connection]:
    here, there = _SPAWN.Pipe()
    member = _SPAWN.Process(target=_publish, args=(join, there), daemon=True)
    member.start()
    there.close()
    here.recv()
    return member, here


def _publish(join: Callable[[], Subject], pipe: Connection) -> None:
    subject = join()
    subject.publish()
    pipe.send(None)
    while (seconds := pipe.recv()) is not None:
        end, count = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            subject.publish()
            count += 1
        pipe.send(count)
    subject.close()
