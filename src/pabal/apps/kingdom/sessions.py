"""The register of running soldiers, `state/sessions.json`: for people, and to end soldiers whose general is gone.

The limit of soldiers does not depend on it: that counts tasks. An empty or damaged file is an empty register.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from pabal import jsontext
from pabal.filesystem import locked
from pabal.runtime.resources import start_ticks
from pabal.runtime.state_file import DAMAGED, read_state, write_reading

FILE = "state/sessions.json"


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A soldier: its process, which leads a group of its own, and the clock ticks at which it was started."""

    id: str
    task_id: str
    general: str
    pid: int
    ticks: int
    started_at: str


class Sessions:
    """The register of one kingdom."""

    def __init__(self, root: Path) -> None:
        self._path = root / FILE

    def all(self) -> list[Session]:
        try:
            return read_state(self._path, list[Session])
        except DAMAGED:
            return []

    def add(self, session: Session) -> None:
        self._change(lambda found: [*found, session])

    def remove(self, id: str) -> None:
        self._change(lambda found: [each for each in found if each.id != id])

    def end_orphans_of(self, general: str) -> list[Session]:
        """End the soldiers that a dead general left behind; return those that still ran."""
        left = [each for each in self.all() if each.general == general]
        ended = [each for each in left if end(each)]
        for each in left:
            self.remove(each.id)
        return ended

    def _change(self, change: Callable[[list[Session]], list[Session]]) -> None:
        with suppress(OSError), locked(self._path.with_name("sessions.lock")):
            write_reading(self._path, jsontext.pretty(change(self.all())))


def end(session: Session) -> bool:
    """Kill the whole process group of a soldier, if it is still the soldier's; True if it existed."""
    # The kernel does not reuse a pid while a group has it, so a group without its leader is still the soldier's.
    if start_ticks(session.pid) not in (session.ticks, None):
        return False
    try:
        os.killpg(session.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True
