"""Busy processes at one place, started and killed together."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from tests.crash.harness import ROOT


class Crew:
    def __init__(self, store: str, place: Path, histories: Path, *, seed: int, fault: str = "") -> None:
        self._store = store
        self._place = place
        self._histories = histories
        self._chance = random.Random(seed)
        self._fault = fault
        self._numbers = count()
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(self, roles: Sequence[str]) -> None:
        for role in roles:
            history = self._histories / f"{role[0]}{next(self._numbers)}.jsonl"
            arguments = [
                self._store,
                str(self._place),
                str(history),
                role,
                str(self._chance.randrange(10**9)),
                self._fault,
            ]
            process = subprocess.Popen([sys.executable, "-m", "tests.crash.busy", *arguments], cwd=ROOT)
            self._running.append((role, process))

    def kill_one(self) -> None:
        """Kill one at random and start another in its place."""
        role, process = self._running.pop(self._chance.randrange(len(self._running)))
        _kill(process)
        self.start([role])

    def kill_all(self) -> None:
        for _, process in self._running:
            _kill(process)
        self._running.clear()

    def work(self, shortest: float, longest: float) -> None:
        time.sleep(self._chance.uniform(shortest, longest))

    def wait_until_busy(self, timeout: float = 30.0) -> None:
        """Wait until every process has written down something."""
        end = time.monotonic() + timeout
        while len([path for path in self._histories.glob("*.jsonl") if path.stat().st_size]) < len(self._running):
            assert time.monotonic() < end, "the processes do not start"
            time.sleep(0.01)

    def failures(self) -> list[str]:
        """Return the errors that ended a process by itself."""
        return [path.read_text() for path in self._histories.glob("*.failed")]


def _kill(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
