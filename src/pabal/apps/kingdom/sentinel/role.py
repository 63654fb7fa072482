"""The sentinel as a process: every watcher at its own pace, none in the way of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from pabal.apps.kingdom.documents import Event
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.roles import role_lock, serve
from pabal.apps.kingdom.sentinel.settings import PROBLEMS, Made, Problems, make_watchers
from pabal.jsontext import Json
from pabal.runtime.state_file import StateFile
from pabal.runtime.wake import FdWatch
from pabal.watchers import Look, WatchLoop

IDLE = 5.0  # seconds


class CursorFile:
    """Remembers the cursor of a watcher. The ids of events are remembered by `Home.emit`."""

    def __init__(self, path: Path) -> None:
        self._file: StateFile[dict[str, Any]] = StateFile(path, dict)

    def look(self, now: float) -> Look:
        return Look(now, 0.0, 0.0, self._file.value)

    def unknown(self, events: Sequence[Event]) -> Sequence[Event]:
        return events

    def remember(self, events: Sequence[Event], cursor: Mapping[str, Json]) -> None:
        if cursor != self._file.value:
            self._file.save(dict(cursor))

    def finish(self, began: float) -> None:
        pass


class Sentinel:
    """A task of the sentinel's service."""

    def __init__(self, home: Home, watch: FdWatch) -> None:
        self._home = home
        self._stack = ExitStack()
        made, self._skipped = make_watchers(home, watch, self._stack)
        self._found: dict[str, str] = {}
        self._loops = [self._loop(name, each) for name, each in made.items()]
        self._problems = StateFile(home.root / PROBLEMS, Problems)
        for name, problem in self._skipped.items():
            self._note(name, problem)

    def step(self) -> None:
        for loop in self._loops:
            loop.step()
        self._problems.save(Problems({**self._skipped, **self._found}))

    def next_due(self) -> float:
        return min([IDLE, *(loop.next_due() for loop in self._loops)])

    def close(self) -> None:
        for loop in self._loops:
            loop.close()
        self._stack.close()

    def _loop(self, name: str, made: Made) -> WatchLoop[Event]:
        def ended(problem: str, pause: float) -> None:
            if problem and problem != self._found.get(name):
                self._note(name, problem)
            self._found.pop(name, None)
            if problem:
                self._found[name] = problem

        return WatchLoop(
            made.watcher,
            CursorFile(self._home.root / "state/sentinel" / f"{name}-state.json"),
            emit=self._home.emit,
            interval=made.interval,
            clock=self._home.clock,
            ended=ended,
        )

    def _note(self, name: str, problem: str) -> None:
        self._home.journal.note("system.warning", "sentinel", watcher=name, problem=problem)


def run(home: Home) -> None:
    """Run until stopped."""
    with closing(role_lock(home, "sentinel")):
        watch = FdWatch()
        with closing(Sentinel(home, watch)) as sentinel:
            serve(home, "sentinel", watch, sentinel)
