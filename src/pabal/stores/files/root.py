"""The directory that holds the queues of one store, as this process has it open, and the meaning of its errors."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pabal import durable, jsontext
from pabal.clock import Clock
from pabal.codec import Restatable
from pabal.errors import (
    InvalidInput,
    NameTaken,
    QueueDamaged,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreRefused,
)
from pabal.filesystem import FileLock, IdleLocks, patience, read_plain, remove, require_local, require_own
from pabal.ids import IdMaker
from pabal.names import check_name
from pabal.store import State
from pabal.stores.files.names import Names, floor_ms
from pabal.stores.files.queue_directory import NOT_WRITABLE, QueueDirectory
from pabal.stores.layout import Layout
from pabal.stores.original import refuse_tree

if TYPE_CHECKING:
    from pabal.stores.files.index import Feed

T = TypeVar("T")

FORMAT = 1
_ABOUT = "pabal.json"
DELETED = ".deleted"  # among the private files of a queue: it was deleted, and its folders are left
_READ_PATIENCE = 0.2  # seconds that a read waits for a lock
# Something else is where our files belong.
_OUT_OF_PLACE = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO})
_TEMPORARY = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOENT, errno.ENOMEM})  # the handle stays usable
DAMAGED_QUEUE = (OSError, StoreRefused)  # errors of one queue, if `is_of_queue` says so


def is_of_queue(exc: OSError | StoreRefused) -> bool:
    """Say whether an error is that of one queue, where something else is in place of its folders or files."""
    return isinstance(exc, StoreRefused) or exc.errno in _OUT_OF_PLACE


class Carried(NamedTuple):
    """What was in a queue when this handle listed it to carry messages over, and what it carried since.

    Some may be gone. `mark` is what the lock file of the carriers holds as long as no other handle carries.
    """

    queue: QueueDirectory
    mark: bytes
    ids: set[str]


class Root:
    """The root directory of a store: its layout, clock and codec, and its queues as this process knows them."""

    def __init__(self, path: Path, clock: Clock, layout: Layout, owner: int | None = None) -> None:
        require_local(path)
        require_own(path, owner, links=True)
        durable.make_dirs(path)
        self.path = os.path.abspath(path)
        self.owner = owner
        self.clock, self.layout, self.codec = clock, layout, layout.codec
        self.restatable = layout.codec if isinstance(layout.codec, Restatable) else None  # a slow question, asked once
        self.names = Names(native=layout.native, extension=layout.codec.extension, portable=layout.portable)
        self.ids = IdMaker(clock)
        self.settling = f"{self.path}/.settling"
        self.unfinished: dict[
            str, float
        ] = {}  # folders there without input: when they were seen first, on the boot clock
        self.stuck: dict[str, str] = {}  # folders there that cannot be finished, and why
        self.ballast = durable.Ballast(Path(self.path, ".ballast"))
        self.feed: Feed | None = None
        self.queues: dict[str, QueueDirectory] = {}  # those that this process has used
        self.carried: Carried | None = None  # of the queue that messages were carried to last
        self.opening = threading.Lock()  # held while a queue or the feed is added
        self.idle = IdleLocks()
        self._pid = self.usable_in = os.getpid()  # `usable_in` is 0 once the handle is closed or has failed
        self._failed: StoreError | None = None
        self._closed = False
        self._siblings: dict[str, tuple[tuple[int, ...], dict[str, str]]] = {}
        self._lock = FileLock(f"{self.path}/.lock", self.idle)  # for rare steps
        try:
            self._prepare()
        except BaseException:
            self._lock.let_go()
            self._lock.close()
            raise

    def make_dirs(self, paths: Iterable[str]) -> None:
        """Make directories below the root; raise StoreRefused where a link or a directory of another user is."""
        seen: set[str] = set()
        for path in paths:
            place = self.path
            for step in path.removeprefix(f"{self.path}/").split("/"):
                place = f"{place}/{step}"
                if place not in seen:
                    require_own(place, self.owner)
                    seen.add(place)
            durable.make_dirs(Path(path))

    def _prepare(self) -> None:
        """Make what is missing. A store that cannot be written to can still be read."""
        about = self.format_problem()
        if about is None and self.names.native:
            refuse_tree(Path(self.path))  # its other folders would be left as they are
        try:
            if about is None or not self.ballast.present:
                with self._lock:
                    if about is None:
                        self.write_format()
                    self.ballast.restore()
            self.make_dirs([self.settling])
        except OSError as exc:
            if exc.errno not in NOT_WRITABLE or about is None:
                raise

    def format_problem(self) -> str | None:
        """Return what is wrong with the file of the format, or an empty text; None if there is no such file.

        Raise StoreRefused for the format of another version, or a file of another program.
        """
        place = f"{self.path}/{_ABOUT}"
        try:
            found = jsontext.read(read_plain(place))
        except FileNotFoundError:
            return None
        except InvalidInput as exc:
            found, reason = {}, f"{exc.code}: {exc}"
        else:
            found, reason = found if isinstance(found, dict) else {}, "it does not say its format"
        number = found.get("format")
        if number == FORMAT:
            return ""
        # A damaged number cannot be told from a newer one, except by the text beside it.
        if type(number) is int and found.get("store", _store_text(number)) == _store_text(number):
            raise StoreRefused(f"{place} has format {number}; this version of pabal reads format {FORMAT}")
        if not os.path.isdir(self.settling):
            raise StoreRefused(f"{place} does not say its format: is this the root of a file store?")
        return reason

    def write_format(self) -> None:
        text = jsontext.pretty({"format": FORMAT, "store": _store_text(FORMAT)})
        durable.replace_whole(Path(self.path, _ABOUT), text)

    # The handle

    def check_usable(self) -> None:
        """Raise if this handle was closed or has failed; start afresh in a forked child."""
        if self._closed:
            raise StoreClosed("this store is closed")
        if self._failed is not None:
            raise StoreFailed(f"this handle failed before ({self._failed}): reopen the store") from self._failed
        if self._pid != os.getpid():
            self._start_afresh()

    def _start_afresh(self) -> None:
        # A child shares the inotify instance of its parent through the descriptor: it needs its own.
        feed = self.feed
        self.queues, self.feed, self.opening = {}, None, threading.Lock()
        self._pid = self.usable_in = os.getpid()
        if feed is not None:
            feed.leave_to_parent()

    def let_go(self) -> None:
        """Free the locks that this thread held when a call was broken off, and trust nothing that it left in memory."""
        for queue in list(self.queues.values()):
            queue.let_go()
            queue.mark_stale()
        self._lock.let_go()

    def fault(self, exc: OSError, doing: str) -> StoreError:
        """Return the error to raise for an OSError. After an I/O error this handle can no longer be used."""
        if exc.errno in durable.NO_ROOM:
            return StoreFull(f"no room left while {doing} in {self.path}: free some space and repeat")
        if is_of_queue(exc):
            return QueueDamaged(f"{exc} while {doing} in {self.path}: run `pabal doctor --repair`, or move it away")
        failed = StoreFailed(f"{exc} while {doing} in {self.path}; reopen the store and repeat")
        if exc.errno in (errno.EMFILE, errno.ENFILE):
            self.idle.make_room()
            failed = StoreFailed(f"too many open files while {doing}: raise the limit (ulimit -n) or close some")
        if exc.errno not in _TEMPORARY:
            self._failed, self.usable_in = failed, 0
        return failed

    def close(self) -> None:
        if self._pid != os.getpid():
            self._start_afresh()
        with self.opening:
            self._closed, self.usable_in = True, 0
        for lock in (*self.queues.values(), self._lock):
            lock.close()
        if self.feed is not None:
            self.feed.close()

    # Queues

    def find(self, name: str) -> QueueDirectory | None:
        """Return a queue that exists, or None."""
        found = self.queues.get(name)
        if found is None:
            check_name(name)
            states = State if self.layout.native else (State.READY,)  # else queues may share a folder
            if any(os.path.isdir(f"{self.path}/{self.layout.directory(name, state)}") for state in states):
                found = self._add(name, lambda: QueueDirectory(self, name, new=False))
        return found

    def make(self, name: str) -> QueueDirectory:
        """Return a queue, created if necessary."""
        found = self.queues.get(name)
        if found is None:
            found = self.find(name) or self._add(name, lambda: self._make(name))
            remove(f"{found.private}/{DELETED}")
        return found

    def _add(self, name: str, opened: Callable[[], QueueDirectory]) -> QueueDirectory:
        with self.opening:
            if self._closed:
                raise StoreClosed("this store is closed")
            if name not in self.queues:
                self.queues[name] = opened()
            return self.queues[name]

    def _make(self, name: str) -> QueueDirectory:
        with self._lock:
            place = f"{self.path}/{self.layout.directory(name, State.READY)}"
            while not os.path.isdir(parent := os.path.dirname(place)):
                place = parent
            siblings = self._names_in(parent)
            new = os.path.basename(place)
            other = siblings.setdefault(new.lower(), new)
            if other != new and os.path.isdir(f"{parent}/{other}"):
                raise NameTaken(f"queue {name} differs from {other} in case only: use that name or another")
            try:
                return QueueDirectory(self, name, new=True)
            finally:
                self._siblings[parent] = _version(parent), siblings

    def _names_in(self, directory: str) -> dict[str, str]:
        """Return the names in a directory by their lower case. It is listed only if it has changed. With the lock."""
        version = _version(directory)
        known = self._siblings.get(directory)
        if known is not None and known[0] == version:
            return known[1]
        return {name.lower(): name for name in os.listdir(directory)}

    # A full disk: messages that were accepted can still be leased and settled

    def despite_full_disk(self, work: Callable[[], T]) -> T:
        """Do some work for messages that were accepted: on a full disk, give up the ballast and try once more."""
        try:
            return work()
        except OSError as exc:
            if exc.errno not in durable.NO_ROOM:
                raise
        self.ballast.release()
        return work()

    def free_name(self, name: str, *directories: str) -> str:
        """Return a name with marks of the store, or the next one that no file in these directories has. With the lock
        held.

        Another file of the same plain name may have the same marks.
        """
        while not self.names.native and any(os.path.lexists(f"{each}/{name}") for each in directories):
            name = self.names.later(name)
        return name

    def move(self, source: str, target: str) -> None:
        """Rename, also where the directory has to grow for it on a full disk."""
        try:
            os.rename(source, target)
        except OSError as exc:
            if exc.errno not in durable.NO_ROOM:
                raise
            self.despite_full_disk(lambda: os.rename(source, target))

    def write_small(self, path: str, data: bytes, *, synced: bool) -> None:
        """Write a small file for a message that was accepted, also on a full disk."""
        remove(path)
        self.despite_full_disk(lambda: durable.write_whole(path, data, synced=synced))

    def restore_ballast(self) -> None:
        if not self.ballast.present:
            with self._lock:
                self.ballast.restore()

    # Reads, which neither wait for a writer nor need to write

    @contextmanager
    def as_far_as_possible(self) -> Iterator[None]:
        """Tidy up before a read: skipped if another process holds a lock, or nothing can be written here."""
        try:
            with patience(_READ_PATIENCE):
                yield
        except StoreBusy:
            pass
        except OSError as exc:
            if exc.errno not in NOT_WRITABLE:
                raise
        else:
            return
        for queue in list(self.queues.values()):
            queue.mark_stale()

    # Time

    def now(self) -> int:
        """Return the wall clock in milliseconds."""
        return floor_ms(self.clock.now())

    def boot(self) -> int:
        """Return the boot clock in milliseconds."""
        return floor_ms(self.clock.boot())


def _store_text(number: int) -> str:
    return f"pabal file store, format {number}"


def _version(directory: str) -> tuple[int, ...]:
    """Return numbers that change when an entry is made in a directory, also within one tick of its clock."""
    about = os.stat(directory)
    return about.st_mtime_ns, about.st_nlink, about.st_size
