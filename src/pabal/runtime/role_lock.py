"""The role lock: one process for each role. The kernel releases it when its holder dies; the file names the holder."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path

from pabal.clock import iso_stamp
from pabal.durable import make_dirs, translated
from pabal.errors import AlreadyRunning

_LONGEST = 200


class RoleLock:
    """Holds the lock of a role until closed.

    Raises AlreadyRunning, with the refusal, the holder and the advice, if another process has it.
    """

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
            process = _content(self._fd) or "somebody"
            raise AlreadyRunning(f"{refusal}: {process}{'; ' * bool(advice)}{advice}") from exc
        since = iso_stamp(now, timespec="seconds")
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"pid {os.getpid()} since {since}\n".encode(), 0)

    def close(self) -> None:
        os.ftruncate(self._fd, 0)
        os.close(self._fd)


def holder(path: Path) -> int | None:
    """Return the process that holds a lock, or None."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        found = re.match(r"pid (\d+)", _content(fd))
        return int(found[1]) if found else None
    finally:
        os.close(fd)


def _content(fd: int) -> str:
    return os.pread(fd, _LONGEST, 0).decode(errors="replace").strip()
