"""The resource gate: what the health of the machine lets in.

A reading that is not there is green: nobody measures. One that is damaged, undated or old is orange: whoever measures
is in trouble, and that is no time for new work.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pabal import jsontext
from pabal.durable import read_plain
from pabal.errors import InvalidInput
from pabal.kingdom.documents import PRIORITIES, Priority, instant

FILE = "state/resources.json"
_ADMITTED: dict[str, tuple[Priority, ...]] = {"green": PRIORITIES, "yellow": ("high",), "orange": (), "red": ()}


class Health(NamedTuple):
    """How the machine is, and what is wrong with the reading."""

    level: str
    warning: str = ""

    @property
    def admitted(self) -> tuple[Priority, ...]:
        return _ADMITTED[self.level]

    def held(self, priority: str) -> str:
        """Say why an event of this priority is held; empty if it is not."""
        if priority in self.admitted:
            return ""
        needs = f", needs {self.admitted[-1]}" if self.admitted else ""
        return f"held: {self.level}{needs}" + (f" ({self.warning})" if self.warning else "")


def read_health(root: Path, now: float, stale: float) -> Health:
    """Read what the chamberlain last wrote."""
    try:
        data = read_plain(root / FILE)
    except FileNotFoundError:
        return Health("green")
    except OSError as exc:
        return Health("orange", f"{FILE}: {exc.strerror}")
    try:
        document = jsontext.read(data)
        level, at = str(document["health"]), instant(str(document["timestamp"]))
    except (InvalidInput, KeyError, TypeError) as exc:
        return Health("orange", f"{FILE} cannot be used: {type(exc).__name__} {exc}"[:200])
    if level not in _ADMITTED:
        return Health("orange", f"{FILE} says {level!r:.40}, which is none of {', '.join(_ADMITTED)}")
    if abs(now - at) > stale:
        return Health("orange", f"{FILE} is {now - at:.0f} s old")
    return Health(level)
