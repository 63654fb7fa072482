"""One process for each place: a lock that the kernel gives up with its holder, in a file that says who holds it."""

from __future__ import annotations

import fcntl
import os
import re
from datetime import UTC, datetime
from pathlib import Path

from pabal.durable import make_dirs, translated
from pabal.errors import ManagerRunning

_LONGEST = 200


class PlaceLock:
    """Holds a place until closed. Raises ManagerRunning if somebody else does: the refusal, who it is, the advice."""

    def __init__(self, path: Path, now: float, refusal: str, *, advice: str = "") -> None:
        self.path = path
        with translated(f"locking {path}"):
            make_dirs(path.parent)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                self._take(now, refusal, advice)
            except BaseException:
                os.close(self._fd)
                raise

    def _take(self, now: float, refusal: str, advice: str) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            who = _said(self._fd) or "somebody"
            raise ManagerRunning(f"{refusal}: {who}{'; ' * bool(advice)}{advice}") from exc
        since = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"pid {os.getpid()} since {since}\n".encode(), 0)

    def close(self) -> None:
        os.ftruncate(self._fd, 0)
        os.close(self._fd)


def holder(path: Path) -> int | None:
    """Return the process that holds a place, or None."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        found = re.match(r"pid (\d+)", _said(fd))
        return int(found[1]) if found else None
    finally:
        os.close(fd)


def _said(fd: int) -> str:
    return os.pread(fd, _LONGEST, 0).decode(errors="replace").strip()
