"""The heartbeat: a file in which a loop counts the passes it has finished.

Nobody else beats for it. So a loop that hangs stops counting, and whoever reads the file sees it hang, though its
process lives and its threads run.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from pabal.clock import Clock

BEAT = 1.0  # seconds between writes at most
PATIENCE = 30.0  # seconds without a finished pass after which a loop is taken to hang


class Beat(msgspec.Struct, frozen=True, rename="camel"):
    """What the file says: who beats, since when, how many passes are done and when the last one was."""

    name: str
    pid: int
    boot_id: str
    started: float  # readings of the boot clock
    last: float
    passes: int = 0


class Pulse(NamedTuple):
    """What a reader makes of it: `ok`, `hung` or `gone`, and how long ago the last pass was finished."""

    state: str
    silent: float
    beat: Beat | None = None


class Heartbeat:
    """Writes the file of one loop. Call `passed` after each pass."""

    def __init__(self, path: Path, name: str, clock: Clock) -> None:
        self._path = path
        self._draft = path.with_name(f".{path.name}.tmp")
        self._clock = clock
        self._name = name
        self._started = clock.boot()
        self._written = float("-inf")
        self._passes = 0

    def passed(self) -> None:
        """Count a finished pass; it is written down at most once a second."""
        self._passes += 1
        now = self._clock.boot()
        if now - self._written >= BEAT:
            self._written = now
            self._write(now)

    def end(self) -> None:
        """Say that the loop ended on purpose, by removing the file."""
        with suppress(OSError):
            self._path.unlink()

    def _write(self, now: float) -> None:
        beat = Beat(self._name, os.getpid(), self._clock.boot_id, self._started, now, self._passes)
        # Not synced: after a power cut there is no loop left for it to speak of. A full disk must not stop the loop.
        with suppress(OSError):
            self._draft.write_bytes(msgspec.json.encode(beat))
            self._draft.rename(self._path)


def read_pulse(path: Path, clock: Clock, patience: float = PATIENCE) -> Pulse:
    """Say how the loop is whose heartbeat lies here."""
    try:
        beat = msgspec.json.decode(path.read_bytes(), type=Beat)
    except (OSError, msgspec.DecodeError):
        return Pulse("gone", float("inf"))
    if beat.boot_id != clock.boot_id or not _alive(beat.pid):
        return Pulse("gone", float("inf"), beat)
    silent = max(0.0, clock.boot() - beat.last)
    return Pulse("hung" if silent > patience else "ok", silent, beat)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
