"""One watcher at work: a page becomes events, what follows from them is done, and only then is it remembered."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from pabal import jsontext
from pabal.durable import make_dirs, read_plain, replace_whole, translated
from pabal.errors import InvalidInput, WatchFailed
from pabal.kingdom.documents import Event
from pabal.kingdom.home import Home
from pabal.kingdom.sentinel.contract import State, Watcher

LONGEST_PAUSE = 900.0  # seconds between looks that fail
_WAITING = 1.0  # seconds until a watcher that gave way is asked again, if nothing wakes us


class Looking:
    """Looks again and again, at most one page in each step."""

    def __init__(self, home: Home, name: str, watcher: Watcher) -> None:
        self._home = home
        self.name = name
        self._watcher = watcher
        self._path = state_file(home.root, name)
        self._due = home.clock.boot()
        self._going: Generator[bool, None, None] | None = None
        self._failures = 0
        self.problem = ""

    def step(self) -> None:
        if self._going is None and self.next_due() <= 0:
            self._going = self._look()
        if self._going is None:
            return
        try:
            waits = next(self._going)
            self._due = self._home.clock.boot() + (_WAITING if waits else 0.0)
        except StopIteration:
            self._failures = 0
            self._rest(self._watcher.interval)
        except WatchFailed as exc:
            self._failures += 1
            pause = min(LONGEST_PAUSE, self._watcher.interval * 2.0 ** min(self._failures - 1, 20))
            self._tell(str(exc))
            self._rest(max(exc.after, pause))

    def next_due(self) -> float:
        return max(0.0, self._due - self._home.clock.boot())

    def close(self) -> None:
        if self._going is not None:
            self._going.close()

    def _rest(self, seconds: float) -> None:
        self._going = None
        self._due = self._home.clock.boot() + seconds

    def _look(self) -> Generator[bool, None, None]:
        """Take one whole look; yields whether there is nothing to do but wait."""
        state = known = self._state()
        safe: list[Event] = []
        problems: list[str] = []
        for page in self._watcher.fetch(state, self._home.clock.now()):
            if page is None:
                yield True
                continue
            known = self._save(known, state)  # the pages before this one are done with
            parsed = self._watcher.parse(page, state)
            self._home.emit(parsed.events)
            safe += parsed.events
            problems += parsed.problems
            state = parsed.state
            yield False
        # After the last page, for it may change what the pages are. With those events too that were known already: if
        # we died before this the last time, it is still to be done.
        for _ in self._watcher.post_emit(safe):
            yield False
        self._save(known, state)
        self._tell("; ".join(problems[:3]))

    def _tell(self, problem: str) -> None:
        """Note a problem once, until it is another."""
        if problem and problem != self.problem:
            self._home.journal.note("system.warning", "sentinel", watcher=self.name, problem=problem)
        self.problem = problem

    def _state(self) -> State:
        try:
            found = jsontext.read(read_plain(self._path))
        except (OSError, InvalidInput):
            return {}
        return found if isinstance(found, dict) else {}

    def _save(self, known: State, state: State) -> State:
        """Remember a state, unless it is the one that is known."""
        if state != known:
            with translated(f"writing {self._path}"):
                make_dirs(self._path.parent)
                replace_whole(self._path, jsontext.pretty(dict(state)))
        return state


def state_file(root: Path, name: str) -> Path:
    """Return where a watcher remembers."""
    return root / "state/sentinel" / f"{name}-state.json"
