"""The directory that holds the queues of one store, as this process has it open, and what its errors mean."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pabal import durable, jsontext
from pabal.clock import Clock
from pabal.codec import Restatable
from pabal.errors import InvalidInput, NameTaken, StoreClosed, StoreError, StoreFailed, StoreFull, StoreRefused
from pabal.ids import IdMaker
from pabal.names import check_name
from pabal.store import State
from pabal.stores.files.locks import FileLock
from pabal.stores.files.names import Names, floored
from pabal.stores.files.spool import Spool
from pabal.stores.layout import Layout
from pabal.stores.place import require_local

if TYPE_CHECKING:
    from pabal.stores.files.feed import Feed

T = TypeVar("T")

FORMAT = 1
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOENT, errno.ENOMEM})


class Root:
    """The directory that holds the queues of one store, as this process has it open."""

    def __init__(self, path: Path, clock: Clock, layout: Layout) -> None:
        require_local(path)
        durable.make_dirs(path)
        self.path = os.path.abspath(path)
        self.clock, self.layout, self.codec = clock, layout, layout.codec
        self.restating = (
            layout.codec if isinstance(layout.codec, Restatable) else None
        )  # asked for too often to ask twice
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
        self.idle: dict[FileLock, None] = {}
        self._lock = FileLock(f"{self.path}/.lock", self.idle)  # for what is done once, or rarely
        try:
            with self._lock:
                self._check_format()
                self.ballast.restore()
            durable.make_dirs(Path(self.settling))
        except BaseException:
            self._lock.let_go()
            self._lock.close()
            raise

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
        # The watches of the parent are shared through their descriptor: a child needs its own.
        feed = self.feed
        self._spools, self.feed, self.making, self._pid = {}, None, threading.Lock(), os.getpid()
        if feed is not None:
            feed.leave_to_parent()

    def let_go(self) -> None:
        """Free what this thread was holding when a call was broken off, and believe nothing that it left behind."""
        for spool in list(self._spools.values()):
            spool.let_go()
            spool.doubt()
        self._lock.let_go()

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
            if self._closed:
                raise StoreClosed("this store is closed")
            if queue not in self._spools:
                self._spools[queue] = self._make(queue)
            return self._spools[queue]

    def _make(self, queue: str) -> Spool:
        with self._lock:
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
        self.spare(lambda: durable.write_whole(path, data, synced=synced))

    def restore_ballast(self) -> None:
        if not self.ballast.present:
            with self._lock:
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
        if self._pid != os.getpid():
            self._start_anew()
        with self.making:
            self._closed = True
        for lock in (*self._spools.values(), self._lock):
            lock.close()
        if self.feed is not None:
            self.feed.close()
