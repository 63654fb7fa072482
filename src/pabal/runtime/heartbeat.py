"""The heartbeat: a file in which a loop counts the passes it has finished.

Only the loop itself writes it. A loop that hangs stops counting, so a reader of the file sees it hang although its
process lives and its threads run.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from pabal import jsontext
from pabal.clock import Clock
from pabal.runtime.state_file import write_reading

BEAT = 1.0  # seconds between writes at most
PATIENCE = 30.0  # seconds without a finished pass after which a loop counts as hung


class Beat(msgspec.Struct, frozen=True, rename="camel"):
    """The content of the file: the loop, its start, how many passes are finished and when the last one was."""

    name: str
    pid: int
    boot_id: str
    started: float  # readings of the boot clock
    last: float
    passes: int = 0


class Pulse(NamedTuple):
    """The state of a loop: `ok`, `hung` or `gone`, and the seconds since its last finished pass."""

    state: str
    silent: float
    beat: Beat | None = None


class Heartbeat:
    """Writes the file of one loop. Call `passed` after each pass."""

    def __init__(self, path: Path, name: str, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._name = name
        self._started = clock.boot()
        self._written = float("-inf")
        self._passes = 0

    def passed(self) -> None:
        """Count a finished pass; the file is written at most once a second."""
        self._passes += 1
        now = self._clock.boot()
        if now - self._written >= BEAT:
            self._written = now
            self._write(now)

    def end(self) -> None:
        """Remove the file: the loop ended on purpose."""
        with suppress(OSError):
            self._path.unlink()

    def _write(self, now: float) -> None:
        beat = Beat(self._name, os.getpid(), self._clock.boot_id, self._started, now, self._passes)
        write_reading(self._path, msgspec.json.encode(beat))


def read_pulse(path: Path, clock: Clock, patience: float = PATIENCE) -> Pulse:
    """Read the state of a loop from its heartbeat."""
    try:
        beat = jsontext.decode_as(path.read_bytes(), Beat)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return Pulse("gone", float("inf"))
    if beat.boot_id != clock.boot_id or not _alive(beat.pid):
        return Pulse("gone", float("inf"), beat)
    silent = max(0.0, clock.boot() - beat.last)
    return Pulse("hung" if silent > patience or _stopped(beat.pid) else "ok", silent, beat)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # the latter for a number that no process can have
        return False
    except PermissionError:
        return True
    return True


def _stopped(pid: int) -> bool:
    """Return whether a process was stopped by a signal, or by a debugger: it will not finish a pass."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] in (b"T", b"t")
