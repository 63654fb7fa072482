"""Several processes on one subject at once, each with a handle of its own."""

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from subject import Subject

_SPAWN = multiprocessing.get_context("spawn")


def publish(subject: Subject) -> int:
    """Publish one message; return how many that was."""
    subject.publish()
    return 1


class Crowd:
    """Processes that publish one by one, or do something else, when told to. `join` opens the subject in each."""

    def __init__(self, join: Callable[[], Subject], size: int, act: Callable[[Any], int] = publish) -> None:
        self._members = [_started(join, act) for _ in range(size)]

    def rate(self, seconds: float) -> float:
        """Return messages per second of all of them together."""
        start = time.perf_counter()
        self.tell(seconds)
        return self.told() / (time.perf_counter() - start)

    def tell(self, seconds: float) -> None:
        """Have all of them act for so long."""
        for _, pipe in self._members:
            pipe.send(seconds)

    def told(self) -> int:
        """Wait for them; return how many messages that were."""
        return sum(pipe.recv() for _, pipe in self._members)

    def close(self) -> None:
        for member, pipe in self._members:
            pipe.send(None)
            member.join()


def _started(
    join: Callable[[], Subject], act: Callable[[Any], int]
) -> tuple[multiprocessing.process.BaseProcess, Connection]:
    here, there = _SPAWN.Pipe()
    member = _SPAWN.Process(target=_serve, args=(join, act, there), daemon=True)
    member.start()
    there.close()
    here.recv()
    return member, here


def _serve(join: Callable[[], Subject], act: Callable[[Any], int], pipe: Connection) -> None:
    subject = join()
    subject.publish()
    pipe.send(None)
    while (seconds := pipe.recv()) is not None:
        end, count = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            count += act(subject)
        pipe.send(count)
    subject.close()
