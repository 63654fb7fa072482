"""How the machine is: green, yellow, orange or red, written to `state/resources.json` for the King's gate.

A level begins above its threshold and ends only some points below it, so that a value at the edge does not flicker.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pabal import jsontext
from pabal.kingdom.chamberlain import settings
from pabal.kingdom.documents import stamp
from pabal.kingdom.gate import FILE
from pabal.kingdom.home import Home
from pabal.kingdom.sessions import Sessions
from pabal.runtime.resources import Load, load

LEVELS = ("green", "yellow", "orange", "red")
Measure = Callable[[Path], Load]


def level_of(value: float, before: str, limits: settings.Health) -> str:
    """Return the level of a reading after that of the one before."""
    starts = {"yellow": limits.yellow, "orange": limits.orange, "red": limits.red}
    found = "green"
    for level, start in starts.items():
        held = LEVELS.index(before) >= LEVELS.index(level)
        if value > (start - limits.margin if held else start):
            found = level
    return found


class Health:
    """Takes readings and writes them down."""

    def __init__(self, home: Home, limits: settings.Health, measure: Measure = load) -> None:
        self._home = home
        self._limits = limits
        self._measure = measure
        self.level = "green"
        self.load = Load(0.0, 0.0, 0.0)

    def read(self) -> bool:
        """Take a reading; True if the level changed."""
        self.load = self._measure(self._home.root)
        before, self.level = self.level, level_of(max(self.load.cpu, self.load.memory), self.level, self._limits)
        self._write()
        if self.level != before:
            self._home.journal.note("system.health_changed", "chamberlain", before=before, now=self.level)
        return self.level != before

    def _write(self) -> None:
        document = {
            "timestamp": stamp(self._home.clock.now()),
            "health": self.level,
            "cpu_percent": self.load.cpu,
            "memory_percent": self.load.memory,
            "disk_percent": self.load.disk,
            "soldiers": len(Sessions(self._home.root).all()),
        }
        path = self._home.root / FILE
        draft = path.with_name(f".resources.{os.getpid()}.tmp")
        # Not synced: it is old in two minutes. On a full disk the old reading turns orange by its age.
        with suppress(OSError):
            draft.write_bytes(jsontext.pretty(document))
            draft.rename(path)
