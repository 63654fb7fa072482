"""The register of running soldiers, `state/sessions.json`: for people, and for whoever ends soldiers without a general.

Nothing is decided by counting it: the cap on soldiers counts tasks. An empty or damaged file is an empty register.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from pabal import jsontext
from pabal.errors import InvalidInput

FILE = "state/sessions.json"


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A soldier: its process, which leads a group of its own, and the ticks at which that was started."""

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
            return msgspec.convert(jsontext.read(self._path.read_bytes()), list[Session])
        except (OSError, InvalidInput, msgspec.ValidationError):
            return []

    def add(self, session: Session) -> None:
        self._change(lambda found: [*found, session])

    def remove(self, id: str) -> None:
        self._change(lambda found: [each for each in found if each.id != id])

    def end_left_behind(self, general: str) -> list[Session]:
        """End what is left of the soldiers of a general that died; return those that still ran."""
        left = [each for each in self.all() if each.general == general]
        ended = [each for each in left if end(each)]
        for each in left:
            self.remove(each.id)
        return ended

    def _change(self, change: Callable[[list[Session]], list[Session]]) -> None:
        # Not durable: after a power cut no soldier runs.
        with suppress(OSError), self._locked():
            draft = self._path.with_name(f".sessions.{os.getpid()}.tmp")
            draft.write_bytes(jsontext.pretty(change(self.all())))
            draft.rename(self._path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self._path.with_name("sessions.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def end(session: Session) -> bool:
    """Kill a soldier's whole group, if it is still that soldier's; True if something was there."""
    # A number is not given away again while a group bears it, so a group without its leader is the soldier's own.
    if ticks_of(session.pid) not in (session.ticks, None):
        return False
    try:
        os.killpg(session.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def ticks_of(pid: int) -> int | None:
    """Return the clock ticks after boot at which a process was started; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])
