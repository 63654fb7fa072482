"""The sentinel as a process: every watcher at its own pace, none in the way of another."""

from __future__ import annotations

from contextlib import closing

from pabal.kingdom.home import Home
from pabal.kingdom.records import Record
from pabal.kingdom.sentinel.looking import Looking
from pabal.kingdom.sentinel.problems import FILE, Problems
from pabal.kingdom.sentinel.settings import watchers_of
from pabal.kingdom.serving import role_lock, serve
from pabal.runtime.wake import FdWatch

IDLE = 5.0  # seconds


class Sentinel:
    """A task of the sentinel's service."""

    def __init__(self, home: Home, watch: FdWatch) -> None:
        found = watchers_of(home, watch)
        self._watchers = found.found
        self._skipped = found.problems
        self._looking = [Looking(home, name, watcher) for name, watcher in found.found.items()]
        self._problems = Record(home.root / FILE, Problems)
        for name, problem in found.problems.items():
            home.journal.note("system.warning", "sentinel", watcher=name, problem=problem)

    def step(self) -> None:
        for looking in self._looking:
            looking.step()
        told = {looking.name: looking.problem for looking in self._looking if looking.problem}
        self._problems.save(Problems({**self._skipped, **told}))

    def next_due(self) -> float:
        return min([IDLE, *(looking.next_due() for looking in self._looking)])

    def close(self) -> None:
        for looking in self._looking:
            looking.close()
        for watcher in self._watchers.values():
            watcher.close()


def run(home: Home) -> None:
    """Watch until told to stop."""
    with closing(role_lock(home, "sentinel")):
        watch = FdWatch()
        with closing(Sentinel(home, watch)) as sentinel:
            serve(home, "sentinel", watch, sentinel)
