"""The service loop: runs its tasks, then sleeps until something wakes it or the next task is due.

It never polls faster than its tasks ask for, and it never sleeps longer than a heartbeat lasts. So an idle loop still
finishes a pass now and then, and a hung one does not.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import Protocol

from pabal.runtime.heartbeat import Heartbeat
from pabal.store import Watch

LONGEST_SLEEP = 5.0  # seconds; well below the limits of systemd and of readers of the heartbeat


class Task(Protocol):
    """Something that a service does again and again."""

    def step(self) -> object:
        """Do the work that is due, and return soon."""
        ...

    def next_due(self) -> float | None:
        """Return the seconds until `step` has work even if nothing wakes the loop; None if never."""
        ...


class Service:
    """Runs tasks in turn, in one thread, until stopped."""

    def __init__(
        self,
        watch: Watch,
        *tasks: Task,
        heartbeat: Heartbeat | None = None,
        passed: Callable[[], None] = lambda: None,
    ) -> None:
        self._watch = watch
        self._tasks = tasks
        self._heartbeat = heartbeat
        self._passed = passed
        self.stopping = False
        self._calls: dict[signal.Signals, Callable[[], None]] = {}
        self._asked: list[signal.Signals] = []

    def run(self) -> None:
        """Run until `stop`. The current pass is finished."""
        while not self.stopping:
            self._answer()
            for task in self._tasks:
                task.step()
            if self._heartbeat is not None:
                self._heartbeat.passed()
            self._passed()
            if not self.stopping and not self._asked:
                self._watch.wait(self._pause())
        if self._heartbeat is not None:
            self._heartbeat.end()

    def stop(self) -> None:
        """End `run` after the current pass. Signal handlers and other threads may call it."""
        self.stopping = True
        self._watch.wake()

    @contextmanager
    def on_signals(self, calls: dict[signal.Signals, Callable[[], None]]) -> Iterator[None]:
        """Stop on SIGTERM and SIGINT; run `calls` for the other signals, between two passes and never inside one.

        In another thread than the main one nothing is heard: there whoever hears signals calls `stop`.
        """
        self._calls = calls

        def ask(number: int, frame: FrameType | None) -> None:
            if number in (signal.SIGTERM, signal.SIGINT):
                self.stopping = True
            else:
                self._asked.append(signal.Signals(number))
            self._watch.wake()

        heard = (signal.SIGTERM, signal.SIGINT, *calls) if current_thread() is main_thread() else ()
        before = {number: signal.signal(number, ask) for number in heard}
        try:
            yield
        finally:
            for number, usual in before.items():
                signal.signal(number, usual)

    def _answer(self) -> None:
        while self._asked:
            self._calls[self._asked.pop(0)]()

    def _pause(self) -> float:
        due = [seconds for task in self._tasks if (seconds := task.next_due()) is not None]
        return max(0.0, min([LONGEST_SLEEP, *due]))
