"""The journal: what happened in the kingdom, one line of JSON for each event, in `logs/events.log`.

Any number of processes append whole lines, which never change. Rotation renames the file; the next line begins a new
one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from pabal import jsontext
from pabal.apps.kingdom.documents import stamp
from pabal.clock import Clock
from pabal.errors import InvalidInput
from pabal.filesystem import private

FILE = "logs/events.log"
FAILED = "system.role_failed"  # the type of the line with the reason why a role ended
_TAIL = 1 << 20  # bytes at the end of the journal that are read


class Journal:
    """Writes the journal of one kingdom."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._clock = clock

    def note(self, type: str, actor: str, /, **data: Any) -> None:
        """Append a line `{ts, type, actor, data}`. A failure to write is ignored."""
        line = {"ts": stamp(self._clock.now()), "type": type, "actor": actor, "data": data}
        try:
            text = jsontext.encode(line)
        except InvalidInput:  # such as a file name that is not text
            text = jsontext.encode({**line, "data": {"unwritable": ascii(data)}})
        with suppress(OSError):
            fd = private(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            try:
                os.write(fd, text + b"\n")
            finally:
                os.close(fd)


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return the last lines of the journal that can be read."""
    found = []
    for line in tail(path, 100_000):
        try:
            document = jsontext.read(line.encode())
            if isinstance(document["data"], dict):
                found.append({"ts": document["ts"], "type": document["type"], **document})
        except (InvalidInput, KeyError, TypeError):
            continue
    return found


def tail(path: Path, lines: int) -> list[str]:
    """Return the last lines of a file, of its last megabyte at most."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            found = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return found[-lines:] if lines else []
