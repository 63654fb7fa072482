"""The health of the machine, in `state/resources.json`: the chamberlain writes readings, the King's gate reads them.

A level begins above its threshold and ends some points below it, so that a value at the edge does not flicker. A
missing reading is green: nothing measures. One without a timestamp was written by hand and counts as long as it is
there. A damaged or old reading is orange: the chamberlain is in trouble, and that is no time for new work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from pabal import jsontext
from pabal.apps.kingdom.chamberlain import settings
from pabal.apps.kingdom.documents import PRIORITIES, Priority, instant, stamp
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.sessions import Sessions
from pabal.errors import InvalidInput
from pabal.filesystem import read_plain
from pabal.runtime.resources import Load
from pabal.runtime.state_file import write_reading

FILE = "state/resources.json"
LEVELS = ("green", "yellow", "orange", "red")
Measure = Callable[[Path], Load]
_ADMITTED: dict[str, tuple[Priority, ...]] = {"green": PRIORITIES, "yellow": ("high",), "orange": (), "red": ()}


class Health(NamedTuple):
    """The health of the machine, and the problem of its reading."""

    level: str
    warning: str = ""

    @property
    def admitted(self) -> tuple[Priority, ...]:
        return _ADMITTED[self.level]

    def held(self, priority: str) -> str:
        """Return why an event of this priority is held; empty if it is not."""
        if priority in self.admitted:
            return ""
        needs = f", needs {self.admitted[-1]}" if self.admitted else ""
        return f"held: {self.level}{needs}" + (f" ({self.warning})" if self.warning else "")


def read_health(root: Path, now: float, stale: float) -> Health:
    """Read the last reading of the chamberlain."""
    try:
        data = read_plain(root / FILE)
    except FileNotFoundError:
        return Health("green")
    except OSError as exc:
        return Health("orange", f"{FILE}: {exc.strerror}")
    try:
        document = jsontext.read(data)
        if not isinstance(document, dict):
            return Health("orange", f"{FILE} must be a JSON object; found {type(document).__name__}")
        level, at = str(document.get("health", "green")), document.get("timestamp")
        measured = now if at is None else instant(str(at))
    except InvalidInput as exc:
        return Health("orange", f"{FILE} cannot be used: {exc}"[:200])
    if level not in _ADMITTED:
        return Health("orange", f"{FILE} has the level {level!r:.40}, which is none of {', '.join(_ADMITTED)}")
    if abs(now - measured) > stale:
        return Health("orange", f"{FILE} is {now - measured:.0f} s old")
    return Health(level)


def level_of(value: float, before: str, limits: settings.Health) -> str:
    """Return the level of a reading, given the level before."""
    starts = {"yellow": limits.yellow, "orange": limits.orange, "red": limits.red}
    found = "green"
    for level, start in starts.items():
        held = LEVELS.index(before) >= LEVELS.index(level)
        if value > (start - limits.margin if held else start):
            found = level
    return found


class HealthMeter:
    """Measures the machine and writes the readings."""

    def __init__(self, home: Home, limits: settings.Health, measure: Measure) -> None:
        self._home = home
        self._limits = limits
        self._measure = measure
        self.level = "green"
        self.load = Load(0.0, 0.0, 0.0)
        self._processor: deque[float] = deque(maxlen=limits.readings)

    def read(self) -> bool:
        """Take a reading; True if the level changed."""
        found = self._measure(self._home.root)
        self._processor.append(found.cpu)
        # A machine that compiles for half a minute is not in trouble: the average counts.
        self.load = replace(found, cpu=round(sum(self._processor) / len(self._processor), 1))
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
        # If this fails, as on a full disk, the old reading turns orange by its age.
        write_reading(self._home.root / FILE, jsontext.pretty(document))
