"""Reads the journal as it grows, to count repeated failures, and rotates the logs.

The cursor is a file and an offset. A file that was renamed is read to its end before the next one, so a rotation loses
no line. The counts are saved with the cursor and continue across restarts and rotations.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pabal import jsontext
from pabal.apps.kingdom.chamberlain import settings
from pabal.apps.kingdom.chamberlain.alerts import Alert
from pabal.apps.kingdom.documents import instant
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.journal import FILE
from pabal.errors import InvalidInput
from pabal.filesystem import private
from pabal.runtime.state_file import StateFile

CURSOR = "state/chamberlain/journal.json"
SYSTEM_LOG = "logs/system.log"
_AT_ONCE = 4 << 20  # bytes read in one round


class Cursor(msgspec.Struct, frozen=True):
    """The position in the journal, and the counts so far."""

    inode: int = 0
    offset: int = 0
    failures: dict[str, int] = {}  # of each general, in a row
    timeouts: list[float] = []  # the times of soldiers' timeouts


class _Read(NamedTuple):
    lines: list[dict[str, Any]]
    inode: int
    offset: int


class JournalReader:
    """Follows the journal of a kingdom."""

    def __init__(self, home: Home, limits: settings.Alerts) -> None:
        self._home = home
        self._limits = limits
        self._record = StateFile(home.root / CURSOR, Cursor)

    def read(self) -> list[Alert]:
        """Read the lines since the last call; return the alerts."""
        cursor = self._record.value
        failures, timeouts = dict(cursor.failures), list(cursor.timeouts)
        for part in self._parts(cursor):
            for line in part.lines:
                _count(line, failures, timeouts)
            cursor = Cursor(part.inode, part.offset)
        since = self._home.clock.now() - self._limits.window_seconds
        recent = [at for at in timeouts if at > since]
        self._record.save(Cursor(cursor.inode, cursor.offset, failures, recent))
        return [*self._failing(failures), *self._slow(recent)]

    def _failing(self, failures: dict[str, int]) -> Iterator[Alert]:
        for general, count in failures.items():
            if count >= self._limits.failures:
                yield Alert(f"failures-{general}", "failing", f"{general} failed {count} times in a row")

    def _slow(self, recent: list[float]) -> Iterator[Alert]:
        if len(recent) >= self._limits.timeouts:
            minutes = self._limits.window_seconds / 60
            yield Alert("timeouts", "many", f"{len(recent)} soldiers ran out of time within {minutes:.0f} minutes")

    def _parts(self, cursor: Cursor) -> Iterator[_Read]:
        """Read the rest of the cursor's file, then the current file."""
        current = self._home.root / FILE
        inode, offset = cursor.inode, cursor.offset
        if inode and inode != _inode(current) and (old := _find(current, inode)):
            yield _lines(old, inode, offset)
        if found := _inode(current):
            yield _lines(current, found, offset if found == inode else 0)


def _count(line: dict[str, Any], failures: dict[str, int], timeouts: list[float]) -> None:
    data = line.get("data")
    general = str(data.get("general", "")) if isinstance(data, dict) else ""
    if line.get("type") == "task.failed" and general:
        failures[general] = failures.get(general, 0) + 1
    elif line.get("type") == "task.completed":
        failures.pop(general, None)
    elif line.get("type") == "soldier.timeout":
        timeouts.append(instant(str(line.get("ts"))))


def _lines(path: Path, inode: int, offset: int) -> _Read:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(offset if offset <= size else 0)
        start = file.tell()
        data = file.read(_AT_ONCE)
    whole = data[: data.rfind(b"\n") + 1]
    found = []
    for line in whole.splitlines():
        try:
            document = jsontext.read(line)
            instant(str(document["ts"]))
            found.append(document)
        except (InvalidInput, KeyError, TypeError):
            continue  # no line of the journal
    return _Read(found, inode, start + len(whole))


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _find(current: Path, inode: int) -> Path | None:
    return next((path for path in current.parent.glob("events-*.log") if _inode(path) == inode), None)


def rotate(home: Home, most: int) -> list[str]:
    """Rotate the journal of a day that is over, and logs that are too large; return their new names."""
    moved = []
    journal, today = home.root / FILE, datetime.fromtimestamp(home.clock.now(), UTC).date()
    if journal.exists() and journal.stat().st_size:
        began = _day_of(journal) or today
        if began != today or journal.stat().st_size > most:
            target = _free(journal.parent, f"events-{began:%Y%m%d}")
            journal.rename(target)
            moved.append(target.name)
    system = home.root / SYSTEM_LOG
    if system.exists() and system.stat().st_size > most:
        # The roles have the file open, so its content is copied and the file is truncated.
        target = _free(system.parent, f"system-{today:%Y%m%d}")
        with open(system, "rb") as whole, open(target, "xb", opener=private) as kept:
            shutil.copyfileobj(whole, kept)
        os.truncate(system, 0)
        moved.append(target.name)
    for name in moved:
        home.journal.note("recovery.log_rotated", "chamberlain", file=name)
    return moved


def _day_of(journal: Path) -> Any:
    """Return the day of the first readable line."""
    first = _lines(journal, 0, 0).lines[:1]
    return datetime.fromtimestamp(instant(first[0]["ts"]), UTC).date() if first else None


def _free(folder: Path, stem: str) -> Path:
    """Return a free name."""
    names = (f"{stem}{f'-{number}' if number else ''}.log" for number in range(1_000_000))
    return next(folder / name for name in names if not (folder / name).exists())
