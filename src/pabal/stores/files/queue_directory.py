"""One queue on disk: its directories, its lock, and the memory of this process about it.

Every rename between the states of a queue happens under its lock. The one exception is a plain publish, which only adds
a name that nobody else can have. So a process that holds the lock and has read the inotify events of the directories
sees them exactly as they are.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import zlib
from collections import deque
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pabal import durable
from pabal.errors import StoreFailed
from pabal.filesystem import NO_FILE, FileLock, close_all, open_into
from pabal.store import State
from pabal.stores.files.names import LAST_CLOCK_STAMP, LAST_STAMP, Slot, stamp_of

if TYPE_CHECKING:
    from pabal.stores.files.index import Index
    from pabal.stores.files.maintain import OldestSettled
    from pabal.stores.files.root import Root

_MOST_LEASED = 100_000
NOT_WRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})  # the errors of a place that can only be read
_STAMP_BYTES = 100  # more than a stamp has: what follows it would be damage
_EARLIER = 16  # digits of a stamp as earlier versions wrote it, without a checksum


class LeasedFile(NamedTuple):
    """A file in flight. `slot` may be of its name before; `failed`: an earlier attempt may have left a reason."""

    name: str
    slot: Slot
    attempt: int
    failed: bool = True


Row: TypeAlias = tuple[str, str, Slot | None]  # cursor, path, and the parts of the name unless it is foreign


class Listing(NamedTuple):
    """The rows that come after a page."""

    after: str  # the cursor of the last entry of that page
    rows: deque[Row]


class QueueDirectory(FileLock):
    """One queue, and its lock."""

    def __init__(self, root: Root, name: str, *, new: bool) -> None:
        self.name = name
        self.dirs = {state: f"{root.path}/{root.layout.directory(name, state)}" for state in State}
        self.waiting = tuple(dict.fromkeys((self.dirs[State.READY], self.dirs[State.DELAYED])))
        self.inflight = self.dirs[State.INFLIGHT]
        self.private = f"{root.path}/{root.layout.private(name)}"
        self.tmp, self.dedup, self.why = (f"{self.private}/{part}" for part in ("tmp", "dedup", "why"))
        self.leased: dict[str, tuple[str, LeasedFile]] = {}  # by id, with the token; a hint, the directory is the truth
        self.index: Index | None = None
        self.published: set[str] = set()  # ids generated here of late: looked for only if one of them comes again
        # Listings of directories that are not used up, so that the next page or batch need not list again. Hints too.
        self.listings: dict[State, Listing] = {}
        self.purging: dict[State, deque[Row]] = {}
        self.by_id: dict[State, dict[str, tuple[str, Slot]]] = {}  # path and slot
        self.maintaining = threading.Lock()  # held by the thread that purges or sweeps
        self.oldest: dict[State, OldestSettled] = {}
        self.sweeping: Generator[str, None, None] | None = None
        super().__init__(f"{self.private}/.lock", root.idle)
        try:
            self._prepare(root)
        except OSError as exc:
            if new or exc.errno not in NOT_WRITABLE:  # else it can still be read
                raise

    def _prepare(self, root: Root) -> None:
        root.make_dirs([*self.dirs.values(), self.private, self.tmp, self.dedup, self.why])
        if not self.stamp_in_file():
            try:
                with self:
                    if self.last_stamp() is None:
                        self.mend_stamp()  # its block is allocated before the disk can be full
            finally:
                self.close_idle()  # a process that only publishes never needs the lock

    def next_stamp(self, now: float) -> int:
        """Return the next place in the publish order of groups. With the lock held."""
        last = self.last_stamp()
        if last is None:
            last = self.mend_stamp()
        # A clock beyond the last place only counts on: no message may get a name that cannot be read again.
        stamp = max(min(int(now * 1_000_000), LAST_CLOCK_STAMP), last + 1)
        if stamp > LAST_STAMP:
            raise StoreFailed(f"{self.name} has no place left in the order of its groups: use another queue")
        os.pwrite(self._fd, _stamp_text(stamp), 0)
        return stamp

    def last_stamp(self) -> int | None:
        """Return the last place that was given, from the lock file; None if it is damaged. With the lock held."""
        return _parse_stamp(os.pread(self._fd, _STAMP_BYTES, 0))

    def stamp_in_file(self) -> bytes:
        """Return the text of the stamp; nothing if there is none. Without the lock."""
        path = f"{self.private}/.lock"
        fds: list[int] = []
        closing = map(os.close, fds)
        try:
            fd = open_into(fds, path, os.O_RDONLY | os.O_NONBLOCK)
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return os.pread(fd, _STAMP_BYTES, 0)  # not all of it: a damaged file may be very large
        except FileNotFoundError:
            return b""
        except OSError as exc:
            if exc.errno not in NO_FILE:
                raise
        finally:
            close_all(closing)
        # A folder, or a FIFO, whose writer nobody waits for.
        raise IsADirectoryError(errno.EISDIR, "not a plain file", path)

    def stamp_is_damaged(self) -> bool:
        """Say whether the stamp is damaged. Without the lock: looked at again, in case it is just being written."""
        return all(_parse_stamp(self.stamp_in_file()) is None for _ in range(3))

    def mend_stamp(self) -> int:
        """Replace a damaged stamp by the last place that a name has, and return it. With the lock held."""
        names = (name for path in (*self.waiting, self.inflight) for name in os.listdir(path))
        stamp = max(filter(LAST_STAMP.__ge__, map(stamp_of, names)), default=0)
        os.ftruncate(self._fd, os.pwrite(self._fd, _stamp_text(stamp), 0))
        return stamp

    def remember_lease(self, id: str, token: str, leased: LeasedFile) -> None:
        if len(self.leased) >= _MOST_LEASED:
            self.leased.clear()  # left by leases that were never settled; the directory still knows them
        self.leased[id] = token, leased

    def known_lease(self, id: str, token: str) -> LeasedFile | None:
        """Return the file of a lease, if this process remembers it. It may have a new name by now."""
        known = self.leased.get(id)
        return known[1] if known is not None and known[0] == token else None

    def forget_lease(self, id: str, token: str) -> None:
        if self.known_lease(id, token) is not None:
            self.leased.pop(id, None)

    def note_renamed(self, name: str, new: str) -> None:
        """Note that this process has renamed a file."""
        if self.index is not None:
            self.index.orders.rename(name, new)

    def note_gone(self, name: str) -> None:
        """Note that this process has moved a file away: no file has that name any more."""
        if self.index is not None:
            self.index.orders.forget(name)

    def reason(self, state: State, id: str, name: str) -> str:
        """Return the path of the reason of a message: beside its file once it is settled, else in the folder `why`."""
        return f"{self.dirs[state]}/{name}.why" if state in (State.DONE, State.DEAD) else f"{self.why}/{id}.why"

    def sync(self, directories: Iterable[str]) -> None:
        """Make the names in these directories durable."""
        for path in dict.fromkeys(directories):
            durable.sync_dir(path)

    def wake(self) -> None:
        """Wake the consumers that watch this queue, for a change that brings no file to the waiting ones."""
        os.utime(self.private)

    def mark_stale(self) -> None:
        """Have the directories listed again: the memory of this process may be half changed."""
        self.oldest.clear()
        if self.index is not None:
            self.index.stale = True

    def close(self) -> None:
        super().close()
        with self.maintaining:
            if self.sweeping is not None:
                self.sweeping.close()


def _stamp_text(stamp: int) -> bytes:
    """Return a stamp as it stands in the lock file, with its checksum."""
    digits = b"%016x" % stamp
    return b"%s %08x\n" % (digits, zlib.crc32(digits))


def _parse_stamp(text: bytes) -> int | None:
    try:
        stamp = int(text[:_EARLIER], 16)
    except ValueError:
        return None
    whole = text == _stamp_text(stamp) if len(text) != _EARLIER else text == b"%016x" % stamp
    return stamp if whole and stamp <= LAST_STAMP else None
