"""One queue on disk, and the root that holds them: directories, locks, moves, and what this process remembers.

Every rename between the states of a queue happens under its lock, except that plain publishing only adds a name that
nobody else can have. So whoever holds the lock and has read the watch on the directories sees them exactly.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pabal import durable, jsontext
from pabal.clock import Clock
from pabal.errors import InvalidInput, NameTaken, StoreClosed, StoreError, StoreFailed, StoreFull, StoreRefused
from pabal.ids import IdMaker
from pabal.names import check_name
from pabal.store import State
from pabal.stores.files.names import Names, Slot, floored
from pabal.stores.layout import Layout
from pabal.stores.place import require_local

if TYPE_CHECKING:
    from pabal.stores.files.feed import Feed
    from pabal.stores.files.listing import Listing
    from pabal.stores.files.tending import Purging

T = TypeVar("T")

FORMAT = 1
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOENT, errno.ENOMEM})
_MOST_HELD = 100_000
_STAMP = 16  # bytes of the last stamp in the lock file


class Held(NamedTuple):
    """A file that is leased; `slot` may be of the name before. `failed`: an earlier attempt may have left a reason."""

    name: str
    slot: Slot
    attempt: int
    failed: bool = True


class Spool:
    """One queue: a context manager that holds its lock, against threads and processes."""

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
        self.tending = threading.Lock()  # held by the thread that purges or sweeps
        self._threads = threading.Lock()
        for path in {*self.dirs.values(), self.private, self.tmp, self.dedup, self.why}:
            durable.make_dirs(Path(path))
        self._fd = os.open(f"{self.private}/.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if os.fstat(self._fd).st_size < _STAMP:
            os.pwrite(self._fd, b"0" * _STAMP, 0)  # its block is there even when the disk is full

    def __enter__(self) -> Spool:
        self._threads.acquire()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        except BaseException:
            self._threads.release()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        finally:
            self._threads.release()

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

    def close(self) -> None:
        with suppress(OSError, ValueError):  # in a forked child another thread of the parent may have been at it
            os.close(self._fd)
            if self.sweeping is not None:
                self.sweeping.close()


class Root:
    """The directory that holds the queues of one store, as this process has it open."""

    def __init__(self, path: Path, clock: Clock, layout: Layout) -> None:
        require_local(path)
        durable.make_dirs(path)
        self.path = os.path.abspath(path)
        self.clock, self.layout, self.codec = clock, layout, layout.codec
        self.names = Names(native=layout.native, extension=layout.codec.extension)
        self.ids = IdMaker(clock)
        self.settling = f"{self.path}/.settling"
        self.ballast = durable.Ballast(Path(self.path, ".ballast"))
        self.feed: Feed | None = None
        self._spools: dict[str, Spool] = {}
        self.making = threading.Lock()
        self._pid = os.getpid()
        self._failed: StoreError | None = None
        self._closed = False
        with self._locked():
            self._check_format()
            self.ballast.restore()
        durable.make_dirs(Path(self.settling))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the root: for what is done once, or rarely."""
        fd = os.open(f"{self.path}/.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _check_format(self) -> None:
        about = Path(self.path, "pabal.json")
        try:
            found = jsontext.read(about.read_bytes())["format"]
        except FileNotFoundError:
            durable.replace_whole(about, jsontext.pretty({"format": FORMAT}))
            return
        except (InvalidInput, KeyError, TypeError) as exc:
            raise StoreRefused(f"{about} does not say its format: is this the root of a file store?") from exc
        if found != FORMAT:
            raise StoreRefused(f"{about} has format {found}; this version of pabal reads format {FORMAT}")

    def check_usable(self) -> None:
        """Raise if this handle was closed or has failed; start anew in a forked child."""
        if self._closed:
            raise StoreClosed("this store is closed")
        if self._failed is not None:
            raise StoreFailed(f"this handle failed before ({self._failed}): reopen the store") from self._failed
        if self._pid != os.getpid():
            self._start_anew()

    def _start_anew(self) -> None:
        # Locks and watches of the parent are shared through their descriptors: a child needs its own.
        spools, feed = self._spools, self.feed
        self._spools, self.feed, self.making, self._pid = {}, None, threading.Lock(), os.getpid()
        for spool in spools.values():
            spool.close()
        if feed is not None:
            feed.close()

    def spool(self, queue: str) -> Spool | None:
        """Return a queue that exists, or None."""
        found = self._spools.get(queue)
        if found is None:
            check_name(queue)
            if not os.path.isdir(f"{self.path}/{self.layout.directory(queue, State.READY)}"):
                return None
            return self.make(queue)
        return found

    def make(self, queue: str) -> Spool:
        """Return a queue, made if need be."""
        found = self._spools.get(queue)
        if found is not None:
            return found
        check_name(queue)
        with self.making:
            if queue not in self._spools:
                self._spools[queue] = self._make(queue)
            return self._spools[queue]

    def _make(self, queue: str) -> Spool:
        with self._locked():
            for other in self.layout.queues(Path(self.path)):
                if other != queue and other.lower() == queue.lower():
                    raise NameTaken(f"queue {queue} differs from {other} in case only: use that name or another")
            return Spool(self, queue)

    def spare(self, work: Callable[[], T]) -> T:
        """Do what work already taken in needs: on a full disk, give up the ballast and try once more."""
        try:
            return work()
        except OSError as exc:
            if exc.errno not in NO_ROOM:
                raise
        self.ballast.release()
        return work()

    def move(self, source: str, target: str) -> None:
        """Rename, also where a directory must grow for it on a full disk."""
        try:
            os.rename(source, target)
        except OSError as exc:
            if exc.errno not in NO_ROOM:
                raise
            self.spare(lambda: os.rename(source, target))

    def write_spare(self, path: str, data: bytes, *, synced: bool) -> None:
        """Write a small file that work already taken in needs."""
        with suppress(FileNotFoundError):
            os.unlink(path)
        self.spare(lambda: write_synced(path, data, synced=synced))

    def restore_ballast(self) -> None:
        if not self.ballast.present:
            with self._locked():
                self.ballast.restore()

    def now(self) -> int:
        """Return the wall clock in milliseconds."""
        return floored(self.clock.now())

    def boot(self) -> int:
        """Return the boot clock in milliseconds."""
        return floored(self.clock.boot())

    def fault(self, exc: OSError, doing: str) -> StoreError:
        """Return what to raise for an error of the system. An I/O error is the end of this handle."""
        if exc.errno in NO_ROOM:
            return StoreFull(f"no room left while {doing} in {self.path}: free some space and repeat")
        failed = StoreFailed(f"{exc} while {doing} in {self.path}; reopen the store and repeat")
        if exc.errno in (errno.EMFILE, errno.ENFILE):
            failed = StoreFailed(f"too many open files while {doing}: raise the limit (ulimit -n) or close some")
        if exc.errno not in _PASSING:
            self._failed = failed
        return failed

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for spool in self._spools.values():
            spool.close()
        if self.feed is not None:
            self.feed.close()


def write_synced(path: str, data: bytes, *, synced: bool = True) -> None:
    """Write a whole new file; on failure nothing is left."""
    fd = durable.write_new(path, data)
    try:
        if synced:
            durable.sync(fd)
    except OSError:
        with suppress(OSError):
            os.unlink(path)
        raise
    finally:
        os.close(fd)
