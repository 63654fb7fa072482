"""One manager for each data root: a lock that the kernel gives up with its holder, in a file that says who holds it."""

from __future__ import annotations

import fcntl
import os
from datetime import UTC, datetime
from pathlib import Path

from pabal.durable import make_dirs, translated
from pabal.errors import ManagerRunning

LOCK = "manager.lock"
_LONGEST = 200


class RootLock:
    """Holds a data root until closed. Raises ManagerRunning if somebody else does."""

    def __init__(self, root: Path, now: float) -> None:
        self.path = root / LOCK
        with translated(f"locking {self.path}"):
            make_dirs(root)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                self._take(root, now)
            except BaseException:
                os.close(self._fd)
                raise

    def _take(self, root: Path, now: float) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            who = os.pread(self._fd, _LONGEST, 0).decode(errors="replace").strip() or "somebody"
            raise ManagerRunning(f"{root} is served already: {who}; stop it first, or give another --root") from exc
        since = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"pid {os.getpid()} since {since}\n".encode(), 0)

    def close(self) -> None:
        os.ftruncate(self._fd, 0)
        os.close(self._fd)
