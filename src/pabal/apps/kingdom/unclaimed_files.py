"""Unclaimed files: files in a folder of pending documents that no role takes, because they do not end in `.json`.

They stay where they are, because another program may own them, and the journal names each of them once.
"""

from __future__ import annotations

import os

from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.layout import EVENTS, MESSAGES, TASKS, KingdomLayout
from pabal.jsontext import storable
from pabal.store import State
from pabal.stores.layout import admits

CHECK_SECONDS = 60.0  # rarely, because a folder may hold a hundred thousand documents
_YOUNG = 2.0  # seconds without a change after which no program writes it any more
_NAMED = 5  # of one folder
_LAYOUT = KingdomLayout()


class UnclaimedFiles:
    """A task of the King's service: notes each unclaimed file in the journal once."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._noted: dict[str, frozenset[str]] = {}
        self._due = 0.0

    def step(self) -> None:
        if self.next_due() > 0:
            return
        self._due = self._home.clock.boot() + CHECK_SECONDS
        found = unclaimed_files(self._home)
        for place, names in found.items():
            if names - self._noted.get(place, frozenset()):
                self._home.journal.note("system.warning", "king", problem=_problem(place, names))
        self._noted = found

    def next_due(self) -> float:
        return max(0.0, self._due - self._home.clock.boot())


def unclaimed_file_problems(home: Home) -> list[str]:
    """Name the unclaimed files of each folder, with what to do."""
    return [_problem(place, names) for place, names in unclaimed_files(home).items()]


def unclaimed_files(home: Home) -> dict[str, frozenset[str]]:
    """Return the names of unclaimed files by folder."""
    if not home.on_files:
        return {}
    places = [_LAYOUT.directory(queue, State.READY) for queue in (EVENTS, TASKS, MESSAGES)]
    return {place: names for place in places if (names := _names(home, place))}


def _names(home: Home, place: str) -> frozenset[str]:
    now = home.clock.now()
    try:
        with os.scandir(home.root / place) as entries:
            return frozenset(entry.name for entry in entries if _is_unclaimed(entry, now))
    except OSError:  # the store needs the folder too, and reports the error
        return frozenset()


def _is_unclaimed(entry: os.DirEntry[str], now: float) -> bool:
    if entry.name.endswith(".json") or not admits(entry.name):
        return False
    try:
        young = 0 <= now - entry.stat(follow_symlinks=False).st_mtime < _YOUNG
        return entry.is_file(follow_symlinks=False) and not young
    except OSError:  # moved away meanwhile
        return False


def _problem(place: str, names: frozenset[str]) -> str:
    first = ", ".join(storable(name) for name in sorted(names)[:_NAMED])
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (
        f"{place}: no role takes {first}{rest}: names of documents end in .json; rename what is one, move the rest away"
    )
