"""File system calls beyond `os`: file locks, two renames, safe reads, refused places.

`FileLock` and `locked` exclude threads and processes by flock(2). `exchange` and `rename_new` are the two uses of
renameat2(2). `read_whole` reads a file that another program may have written. `private` opens a file for writing, never
through a link. `require_local` refuses network file systems, `require_own` what belongs to another user. `mounts` reads
the table of mounts.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import resource
import stat
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pabal.errors import (
    DecodeError,
    LinkedFile,
    NotARegularFile,
    StoreBusy,
    StoreClosed,
    StoreRefused,
    TooLarge,
    UnsafeFile,
)
from pabal.policy.policy import LARGEST_MAX_BYTES

PATIENCE = 30.0  # seconds that a writer waits for a lock
_TRY = fcntl.LOCK_EX | fcntl.LOCK_NB
LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def open_into(fds: list[int], path: str | Path, flags: int, mode: int = 0o600) -> int:
    """Open a file and add its descriptor to a list, in one step as far as Python's signal handlers see it.

    A handler may raise after any call that Python code makes. `fd = os.open(…)` would lose the descriptor then. The
    caller makes `map(os.close, fds)` before, and passes it to `close_all` in a `finally` or `except` clause.
    """
    fds.extend(map(os.open, (path,), (flags | os.O_CLOEXEC,), (mode,)))
    return fds[-1]


# Closes descriptors, given `map(os.close, fds)`: one call of C, inside which no signal handler runs.
close_all: Callable[[Iterator[None]], object] = partial(deque, maxlen=0)


@contextmanager
def locked(path: str | Path) -> Iterator[int]:
    """Hold the lock of a file, created if it is missing, and yield its descriptor. For locks that are taken rarely."""
    fds: list[int] = []
    closing = map(os.close, fds)
    try:
        fd = open_into(fds, path, LOCK_FLAGS)
        wait_for_lock(fd, str(path))
        try:
            yield fd
        finally:
            with suppress(OSError):  # a child that was forked meanwhile keeps the file open, and with it the lock
                fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        close_all(closing)


_waiting = threading.local()


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Let this thread wait only so long for each lock that it takes inside the block."""
    before: float | None = getattr(_waiting, "seconds", None)
    _waiting.seconds = seconds
    try:
        yield
    finally:
        _waiting.seconds = before


def _patience() -> float:
    seconds: float | None = getattr(_waiting, "seconds", None)
    return PATIENCE if seconds is None else seconds


def wait_for_lock(fd: int, path: str) -> None:
    """Take the lock of an open file; raise StoreBusy that names its holder if it is not to be had in time."""
    # flock(2) has no time limit. A holder needs less than a millisecond, unless it is stopped or its disk is slow: a
    # thread that waits in turn, as `sql.writer_lock` has for its one file, would take longer to wake than the lock.
    deadline, pause = time.monotonic() + _patience(), 0.0001
    while True:
        try:
            fcntl.flock(fd, _TRY)
            return
        except BlockingIOError as exc:
            if time.monotonic() > deadline:
                raise busy(_patience(), path) from exc
        time.sleep(pause)
        pause = min(pause * 1.5, 0.005)


def busy(seconds: float, *paths: str | Path) -> StoreBusy:
    """Return the error for a lock of these files that was not to be had in time; it names the holder."""
    found = dict.fromkeys(pid for pid, _ in _held_locks(paths))
    others = [pid for pid in found if pid != str(os.getpid())] or found  # else another thread of this process
    holders = " and ".join(map(_process, others)) or "another process"
    return StoreBusy(f"{holders} has held {paths[0]} for {seconds:g} s: continue or end it, then repeat")


def lock_holders(paths: Iterable[str | Path], table: Path = Path("/proc/locks")) -> list[str]:
    """Return the other processes that hold locks of these files at this moment, each with its name and its start."""
    return [f"{_process(pid)} holds {path}" for pid, path in _held_locks(paths, table) if pid != str(os.getpid())]


def _held_locks(paths: Iterable[str | Path], table: Path = Path("/proc/locks")) -> list[tuple[str, str | Path]]:
    """Return the number of each process that holds a lock of one of these files, and the file."""
    known, places = mounts(), dict[str, str | Path]()
    for path in paths:
        with suppress(OSError):
            mount = mount_of(path, known)
            # Not st_dev: btrfs gives another one to each subvolume.
            places[f"{mount.device if mount else ''}:{os.stat(path).st_ino}"] = path
    found = []
    with suppress(OSError):
        for line in table.read_text().splitlines():
            _, kind, _, access, pid, place, *_ = line.split()
            if kind != "->" and access == "WRITE" and place in places:
                found.append((pid, places[place]))
    return found


def _process(pid: str) -> str:
    """Return a process as text: its number, its name, whether it is stopped, and its start."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        started = time.localtime(os.stat(f"/proc/{pid}").st_ctime)
    except OSError:
        return f"process {pid}"
    stopped = ", stopped" if rest.split()[0] in "tT" else ""
    return f"process {pid} ({name}{stopped}, runs since {time.strftime('%Y-%m-%d %H:%M:%S', started)})"


def kept_open() -> int:
    """Return how many files a store may keep open that it does not need now: 64, or an eighth of what is allowed."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 64 if allowed == resource.RLIM_INFINITY else min(64, allowed // 8)


class IdleLocks(dict["FileLock", None]):
    """The locks of one store whose files are open while nothing holds them, the last used at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.most = kept_open()

    def trim(self, most: int) -> None:
        """Close the files of those that were used longest ago."""
        for lock in list(self)[: max(0, len(self) - most)]:
            lock.close_idle()

    def make_room(self) -> None:
        """Close them all, and keep fewer from now on: this process has no descriptors left."""
        self.most = min(self.most, len(self) // 2)
        self.trim(0)


class FileLock:
    """A lock in a file, as a context manager. The thread that holds it may enter again.

    A flock belongs to the open file, which a forked child shares: a child that lives on would keep the lock of a parent
    that died. So a child closes its descriptors at once and opens the file again when it needs it. A signal handler may
    raise between any two steps in here: `let_go` then frees everything that the thread still holds.
    """

    def __init__(self, path: str, idle: IdleLocks | None = None) -> None:
        """Create the lock of a file. `idle`: the locks of one store whose files are open."""
        self._path = path
        self._idle = IdleLocks() if idle is None else idle
        self._threads = threading.RLock()  # knows its holder by itself, whatever is raised in between
        self._depth = 0
        self._fd = -1
        self._closed = False
        _locks.add(self)

    def __enter__(self) -> None:
        if not self._threads.acquire(blocking=False) and not self._threads.acquire(timeout=_patience()):
            raise busy(_patience(), self._path)
        if self._depth == 0:
            try:
                fd = self._fd if self._fd >= 0 and not self._closed else self.open()
                try:
                    fcntl.flock(fd, _TRY)
                except BlockingIOError:
                    wait_for_lock(fd, self._path)
            except (OSError, StoreClosed, StoreBusy):
                self._threads.release()
                raise
        self._depth += 1

    def __exit__(self, *exc: object) -> None:
        self._depth -= 1
        try:
            if self._depth == 0:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
                idle = self._idle  # the file stays open for the next time; those used longest ago are closed
                idle.pop(self, None)
                idle[self] = None
                if len(idle) > idle.most:
                    idle.trim(idle.most)
        finally:
            self._threads.release()

    def close_idle(self) -> None:
        """Close the file, unless the lock is held."""
        if not self._threads.acquire(blocking=False):
            return  # another thread uses it
        try:
            if self._depth == 0:
                self._idle.pop(self, None)
                self._drop()
        finally:
            self._threads.release()

    def open(self) -> int:
        """Return the descriptor of the file, opened if necessary. Only where no other thread can hold the lock."""
        if self._closed:
            raise StoreClosed("this store is closed")
        if self._fd < 0:
            try:
                self._open()
            except OSError as exc:
                if exc.errno not in (errno.EMFILE, errno.ENFILE) or not self._idle:
                    raise
                self._idle.make_room()
                self._open()
        return self._fd

    def _open(self) -> None:
        fds: list[int] = []
        closing = map(os.close, fds)
        with _opening:
            try:
                open_into(fds, self._path, LOCK_FLAGS)
                self._fd = fds[0]
            except BaseException:
                close_all(closing)
                raise

    def let_go(self) -> None:
        """Free the lock if this thread holds it, however often it entered."""
        if not self._threads.acquire(blocking=False):
            return  # another thread holds it
        self._depth = 0
        if self._fd >= 0:
            with suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        with suppress(RuntimeError):  # released as often as it was acquired
            while True:
                self._threads.release()

    def close(self) -> None:
        """Close the file once no thread holds the lock; later attempts to enter raise StoreClosed."""
        with self._threads:
            self._closed = True
            self._idle.pop(self, None)
            self._drop()

    def leave_to_parent(self) -> None:
        """Forget, in a forked child, the descriptor and the threads, which are those of the parent."""
        self._threads, self._depth = threading.RLock(), 0
        self._idle.pop(self, None)
        self._drop()

    def _drop(self) -> None:
        if self._fd >= 0:
            try:
                os.close(self._fd)
            except OSError:
                pass
            finally:
                self._fd = -1


_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()
_opening = threading.Lock()  # held while a lock file is opened, and through a fork: a child knows every descriptor


def _in_child() -> None:
    for lock in list(_locks):
        lock.leave_to_parent()
    _opening.release()


os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_in_child)


_libc = ctypes.CDLL(None, use_errno=True)
_CURRENT_DIRECTORY = -100  # AT_FDCWD
_NOREPLACE, _EXCHANGE = 1, 2


def exchange(one: str, other: str) -> None:
    """Exchange the names of two files in one step; FileNotFoundError if either is missing."""
    _renameat2(one, other, _EXCHANGE)


def rename_new(source: str, target: str) -> None:
    """Rename a file, never over another one: FileExistsError if the target exists."""
    try:
        _renameat2(source, target, _NOREPLACE)
    except OSError as exc:
        if exc.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        # The file system does not know that flag: make a second name, then remove the first.
        os.link(source, target, follow_symlinks=False)
        os.unlink(source)


def remove(*paths: str) -> None:
    """Remove files that may be gone already."""
    for path in paths:
        with suppress(FileNotFoundError):
            os.unlink(path)


def _renameat2(source: str, target: str, flags: int) -> None:
    call = getattr(_libc, "renameat2", None)
    if call is None:
        raise OSError(errno.ENOSYS, "this system has no renameat2")
    if call(_CURRENT_DIRECTORY, os.fsencode(source), _CURRENT_DIRECTORY, os.fsencode(target), flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), source, None, target)


_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SPECIAL = frozenset({errno.ELOOP, errno.ENXIO, errno.ENODEV})  # a symlink, a socket or FIFO, a device without driver
NO_FILE = _SPECIAL | {errno.EISDIR}  # the errors of opening something that is not a plain file for writing
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})
_LIMIT = LARGEST_MAX_BYTES
_REPLACED = 20  # times that a reader opens a file anew because another took its place
UNREADABLE = (DecodeError, UnsafeFile, TooLarge)  # the errors of reading and decoding a message


def read_whole(path: str | Path, *, links: bool = False) -> tuple[bytes, float]:
    """Return the bytes of a regular file that another program may have written, and the time of its last change.

    Raise UnsafeFile or TooLarge for anything that must not be read as a message; a FIFO or a device is never waited
    for. With `links`, symlinks are followed and the file may have several names.
    """
    for _ in range(_REPLACED):
        if (found := _read_once(path, links)) is not None:
            return found
    raise FileNotFoundError(errno.ENOENT, f"replaced {_REPLACED} times just as it was opened", path)


def _read_once(path: str | Path, links: bool) -> tuple[bytes, float] | None:
    """As above; None if the file was removed after it was opened: another one may be in its place."""
    fds: list[int] = []
    closing = map(os.close, fds)
    try:
        try:
            fd = open_into(fds, path, _READ & ~os.O_NOFOLLOW if links else _READ)
        except OSError as exc:
            if exc.errno in _SPECIAL:
                raise NotARegularFile("a symlink, socket or device is never opened as a message") from exc
            if exc.errno in _FORBIDDEN:
                raise UnsafeFile(f"cannot be read: {exc.strerror}") from exc
            raise
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_size > _LIMIT or about.st_nlink != 1 and not links:
            if about.st_nlink == 0:
                return None
            check_regular(about)
        data = os.read(fd, about.st_size + 1)
        if len(data) != about.st_size:  # it grows or shrinks, or is larger than one read returns
            data = _read_rest(fd, data)
        return data, about.st_mtime
    finally:
        close_all(closing)


def _read_rest(fd: int, data: bytes) -> bytes:
    parts, size = [data], len(data)
    while size <= _LIMIT and (data := os.read(fd, min(_LIMIT + 1 - size, 1 << 20))):
        parts.append(data)
        size += len(data)
    if size > _LIMIT:
        raise TooLarge(f"{_LIMIT} bytes at most; it grew while it was read")
    return b"".join(parts)


def check_regular(about: os.stat_result) -> None:
    """Raise UnsafeFile or TooLarge unless this is a regular file with one name that is not too large."""
    if not stat.S_ISREG(about.st_mode):
        raise NotARegularFile(f"only a plain file is read; found {stat.filemode(about.st_mode)[0]!r}")
    if about.st_size > _LIMIT:
        raise TooLarge(f"{_LIMIT} bytes at most; found {about.st_size}")
    if about.st_nlink != 1:
        raise LinkedFile(f"nlink {about.st_nlink}: another name of this file may be used to change it")


def read_plain(path: str | Path) -> bytes:
    """Return the bytes of a document that an operator or another process wrote; OSError if it is not a plain file."""
    try:
        return read_whole(path, links=True)[0]
    except (UnsafeFile, TooLarge) as exc:
        cause = exc.__cause__
        code = errno.EFBIG if isinstance(exc, TooLarge) else errno.EINVAL
        raise cause if isinstance(cause, OSError) else OSError(code, str(exc), str(path)) from exc


def private(path: str | os.PathLike[str], flags: int) -> int:
    """Open or make a file for us alone, never through a symlink. The `opener` of `open(path, "ab", opener=private)`."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def touch(path: str | os.PathLike[str]) -> None:
    """Make an empty file if it is missing, and wake its watchers. The reader of a FIFO is not waited for."""
    os.close(private(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK))


ANYBODY = -1  # an owner: whoever it is


def require_own(path: str | os.PathLike[str], owner: int | None = None, *, links: bool = False) -> None:
    """Raise StoreRefused if this belongs to another user than us or root, or is a symlink. It may be missing.

    `owner` is one more user whose files are accepted, or ANYBODY, who may also use symlinks. With `links` the path is
    one that the caller was given: a symlink is followed, and its target is judged.
    """
    try:
        about = os.stat(path) if links else os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    if owner == ANYBODY:
        return
    if stat.S_ISLNK(about.st_mode):
        raise StoreRefused(
            f"{path} is a symbolic link, and the store keeps its own files there: remove the link, or add owner=any to"
            " the URL if everybody who can write there is trusted"
        )
    if about.st_uid not in (os.geteuid(), 0, owner):
        user, expected = user_name(about.st_uid), " or ".join(dict.fromkeys((user_name(os.geteuid()), "root")))
        raise StoreRefused(
            f"{path} belongs to {user}, who can read and change it; expected {expected}: run it as {user}, or add"
            f" owner={user} to the URL if that user is trusted"
        )


def user_name(uid: int) -> str:
    """Return the name of a user, or the number of one without a name."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")  # as the kernel writes a space, tab, newline or backslash in the name of a mount
_NETWORK = frozenset(
    "9p afs ceph cifs coda fuse.sshfs fuse.glusterfs fuse.s3fs fuse.rclone gfs2 glusterfs lustre ncpfs nfs nfs4 ocfs2 "
    "smb3 smbfs vboxsf".split()
)


def require_local(path: Path) -> None:
    """Raise StoreRefused where locks and flushes do not hold: on Windows and on network file systems."""
    if sys.platform == "win32":
        raise StoreRefused("Windows is not supported: use Linux, or WSL with a path on its own disk")
    kind = file_system(path)
    if kind in _NETWORK:
        raise StoreRefused(f"{path} is on a {kind} file system, where locks and flushes do not hold: use a local disk")


def is_read_only(path: str | Path) -> bool:
    """Return whether nothing can be written to the file system that holds the path, or not through this mount."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def file_system(path: str | Path, table: Path = _MOUNTS) -> str:
    """Return the type of the file system that holds the path, or '' if the system does not say."""
    found = mount_of(path, mounts(table))
    return found.kind if found else ""


class Mount(NamedTuple):
    """A mounted file system: its mount point, its type, and its device as /proc/locks has it."""

    place: str
    kind: str
    device: str


def mounts(table: Path = _MOUNTS) -> list[Mount]:
    """Return what is mounted, in the order in which it was mounted; nothing if the system does not say."""
    try:
        lines = os.fsdecode(table.read_bytes()).split("\n")  # the only character that cannot be in a name
    except OSError:
        return []
    found = []
    for line in filter(None, lines):
        _, _, device, _, place, *rest = line.split(" ")
        numbers = "{:02x}:{:02x}".format(*map(int, device.split(":")))
        place = _OCTAL.sub(lambda code: chr(int(code[1], 8)), place)
        found.append(Mount(place, rest[rest.index("-") + 1], numbers))
    return found


def mount_of(path: str | Path, known: Iterable[Mount]) -> Mount | None:
    """Return the mount that holds the path."""
    place = f"{os.path.realpath(path)}/"
    holding = [mount for mount in known if place.startswith(f"{mount.place.rstrip('/')}/")]
    # A later mount on the same directory hides the earlier one.
    return max(reversed(holding), key=lambda mount: len(mount.place), default=None)
