"""One queue on disk: its directories, its lock, and what this process remembers of it.

Every rename between the states of a queue happens under its lock, except that plain publishing only adds a name that
nobody else can have. So whoever holds the lock and has read the watch on the directories sees them exactly.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pabal import durable
from pabal.store import State
from pabal.stores.files.locks import FileLock
from pabal.stores.files.names import Slot

if TYPE_CHECKING:
    from pabal.stores.files.listing import Listing
    from pabal.stores.files.root import Root
    from pabal.stores.files.tending import Purging

_MOST_HELD = 100_000
_STAMP = 16  # bytes of the last stamp in the lock file


class Held(NamedTuple):
    """A file that is leased; `slot` may be of the name before. `failed`: an earlier attempt may have left a reason."""

    name: str
    slot: Slot
    attempt: int
    failed: bool = True


class Spool(FileLock):
    """One queue, and its lock."""

    def __init__(self, root: Root, name: str) -> None:
        self.name = name
        self.dirs = {state: f"{root.path}/{root.layout.directory(name, state)}" for state in State}
        self.waiting = tuple(dict.fromkeys((self.dirs[State.READY], self.dirs[State.DELAYED])))
        self.inflight = self.dirs[State.INFLIGHT]
        self.private = f"{root.path}/{root.layout.private(name)}"
        self.tmp, self.dedup, self.why = (f"{self.private}/{part}" for part in ("tmp", "dedup", "why"))
        self.held: dict[tuple[str, str], Held] = {}  # by id and token; a hint, never the truth
        self.listing: Listing | None = None
        self.purging: dict[State, Purging] = {}
        self.sweeping: Generator[str, None, None] | None = None
        self.published: set[str] = set()  # generated ids of late: only one of these is looked for when it comes again
        self.tending = threading.Lock()  # held by the thread that purges or sweeps
        super().__init__(f"{self.private}/.lock", root.idle)
        for path in {*self.dirs.values(), self.private, self.tmp, self.dedup, self.why}:
            durable.make_dirs(Path(path))
        try:
            if os.fstat(self.open()).st_size < _STAMP:
                os.pwrite(self._fd, b"0" * _STAMP, 0)  # its block is there even when the disk is full
        finally:
            self._drop()  # who only publishes never needs the lock

    def next_stamp(self, now: float) -> int:
        """Give the next place in the order of publishing; with the lock held."""
        stamp = max(int(now * 1_000_000), int(os.pread(self._fd, _STAMP, 0) or b"0", 16) + 1)
        os.pwrite(self._fd, f"{stamp:0{_STAMP}x}".encode(), 0)
        return stamp

    def hold(self, id: str, token: str, held: Held) -> None:
        if len(self.held) >= _MOST_HELD:
            self.held.clear()  # left by leases that nobody settled; the directory still knows
        self.held[id, token] = held

    def sync(self, directories: Iterable[str]) -> None:
        """Make the names in these directories durable."""
        for path in dict.fromkeys(directories):
            durable.sync_dir(path)

    def ring(self) -> None:
        """Wake who watches, where no file arrives that would."""
        os.utime(self.private)

    def doubt(self) -> None:
        """Look at the directories again: what is remembered of them may be half changed."""
        self.purging.clear()
        if self.listing is not None:
            self.listing.stale = True

    def close(self) -> None:
        super().close()
        with self.tending:
            if self.sweeping is not None:
                self.sweeping.close()
