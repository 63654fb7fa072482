"""The supervisor keeps children running: it restarts a child that ended, after a pause that grows while it fails.

It is a task of a `Service`: the watch wakes the loop when a child ends, and `next_due` is the time of the next restart.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pabal.clock import Clock
from pabal.filesystem import private
from pabal.runtime.process import GRACE, Child, Command
from pabal.runtime.wake import FdWatch

log = logging.getLogger("pabal.supervisor")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0  # seconds
STEADY = 60.0  # seconds after which a child counts as recovered


class ChildState(NamedTuple):
    """The state of one child: its pid while it runs, else the seconds until its restart, and its last exit status.

    Without pid and due it failed too often in a row and is not started again.
    """

    name: str
    pid: int | None
    restarts: int
    status: int | None
    due: float | None


@dataclass
class _Slot:
    """A child to be kept running."""

    command: Command
    child: Child | None = None
    started: float = 0.0
    due: float = 0.0
    failures: int = 0  # in a row
    restarts: int = 0
    status: int | None = None


class Supervisor:
    """Keeps one child for each name. Use it in one thread, which must outlive the children."""

    def __init__(
        self,
        commands: Mapping[str, Command],
        *,
        clock: Clock,
        watch: FdWatch,
        output: Callable[[str], Path] | None = None,
        most: int | None = None,
    ) -> None:
        """`output` returns the file to which the output of a child is appended; without it, ours is inherited.

        `most` is how often in a row a child is restarted before it is given up; None means without limit.
        """
        self._clock = clock
        self._most = most
        self._watch = watch
        self._output = output
        self._slots = {name: _Slot(command, due=clock.boot()) for name, command in commands.items()}

    def step(self) -> None:
        """Handle children that ended, and start those that are due."""
        now = self._clock.boot()
        for name, slot in self._slots.items():
            if slot.child is not None and (status := slot.child.status()) is not None:
                self._ended(name, slot, status, now)
            if slot.child is None and slot.due <= now and not self._given_up(slot):
                self._begin(name, slot, now)

    def next_due(self) -> float | None:
        """Return the seconds until the next restart."""
        due = [slot.due for slot in self._slots.values() if slot.child is None and not self._given_up(slot)]
        return max(0.0, min(due) - self._clock.boot()) if due else None

    def states(self) -> list[ChildState]:
        return [
            ChildState(
                name,
                slot.child.pid if slot.child else None,
                slot.restarts,
                slot.status,
                None if slot.child or self._given_up(slot) else max(0.0, slot.due - self._clock.boot()),
            )
            for name, slot in self._slots.items()
        ]

    def restart(self, name: str, grace: float = GRACE) -> None:
        """Restart a child at the next step, without a pause; a running one is stopped first."""
        slot = self._slots[name]
        if slot.child is not None:
            self._remove_child(slot, slot.child.stop(grace))
        slot.failures, slot.due = 0, self._clock.boot()

    def keep(self, name: str, command: Command) -> None:
        """Add a child, or change the command of one; it is started at the next step."""
        if name in self._slots and self._slots[name].command == command:
            return
        self.drop(name)
        self._slots[name] = _Slot(command, due=self._clock.boot())

    def drop(self, name: str, grace: float = GRACE) -> None:
        """Stop a child and remove it, if there is one of this name."""
        slot = self._slots.pop(name, None)
        if slot is not None and slot.child is not None:
            self._remove_child(slot, slot.child.stop(grace))

    def forgive(self, name: str) -> None:
        """Reset the failures of a child: it has done its work."""
        self._slots[name].failures = 0

    def stop(self, grace: float = GRACE) -> None:
        """Stop all children at the same time, and wait for them.

        Each gets SIGTERM once, because a second one may end it at once.
        """
        running = [(slot, slot.child) for slot in self._slots.values() if slot.child is not None]
        for _, child in running:
            child.signal(signal.SIGTERM)
        end = self._clock.boot() + grace
        for slot, child in running:
            child.wait(max(0.0, end - self._clock.boot()))
            self._remove_child(slot, child.kill())

    def _given_up(self, slot: _Slot) -> bool:
        return self._most is not None and slot.failures > self._most

    def _begin(self, name: str, slot: _Slot, now: float) -> None:
        try:
            child = self._start(name, slot.command)
        except OSError as exc:
            log.error("cannot start %(child)s: %(error)s", {"child": name, "error": str(exc)})
            self._postpone(slot, now)
            return
        slot.child, slot.started = child, now
        self._watch.add(child.fd)
        log.info("started %(child)s", {"child": name, "pid": child.pid})

    def _start(self, name: str, command: Command) -> Child:
        if self._output is None:
            return Child(command)
        with open(self._output(name), "ab", opener=private) as file:
            return Child(command, stdout=file, stderr=file)

    def _ended(self, name: str, slot: _Slot, status: int, now: float) -> None:
        if now - slot.started >= STEADY:
            slot.failures = 0
        self._remove_child(slot, status)
        self._postpone(slot, now)
        facts = {"child": name, "status": status, "again_in": round(slot.due - now, 3)}
        log.warning("%(child)s ended with %(status)s", facts)

    def _postpone(self, slot: _Slot, now: float) -> None:
        slot.due = now + min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(slot.failures, 30))
        slot.failures += 1
        slot.restarts += 1

    def _remove_child(self, slot: _Slot, status: int) -> None:
        assert slot.child is not None
        self._watch.remove(slot.child.fd)
        slot.child.close()
        slot.child, slot.status = None, status
