"""The journal: what happened in the kingdom, a line of JSON for each thing, in `logs/events.log`.

Lines are appended whole by any number of processes and never changed. Whoever rotates the file renames it; the next
line then begins a new one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from pabal import jsontext
from pabal.clock import Clock
from pabal.errors import InvalidInput
from pabal.kingdom.documents import stamp

FILE = "logs/events.log"
FAILED = "system.role_failed"  # the type of a line that says why a role ended


class Journal:
    """Writes the journal of one kingdom."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._clock = clock

    def note(self, type: str, actor: str, /, **data: Any) -> None:
        """Append a line `{ts, type, actor, data}`. A journal that cannot be written stops nobody."""
        line = {"ts": stamp(self._clock.now()), "type": type, "actor": actor, "data": data}
        try:
            text = jsontext.encode(line)
        except InvalidInput:  # such as the name of a file that is no text
            text = jsontext.encode({**line, "data": {"unwritable": ascii(data)}})
        with suppress(OSError):
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.write(fd, text + b"\n")
            finally:
                os.close(fd)
