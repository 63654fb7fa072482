"""The only place where files are made durable: write whole, fsync, rename, fsync the directory.

A failed fsync is final: the kernel has dropped the pages and will say yes next time. So it is never tried again on the
same file, unless all of it was written again; the caller gives the file up.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from pabal.errors import StoreFailed, StoreFull

BALLAST_BYTES = 8 << 20
_MANY, _AT_ONCE = 32, 16  # flushes worth threads of their own, and how many
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_sync_file = getattr(fcntl, "F_FULLFSYNC", None)
_LONGEST = 64 << 20  # bytes of what is read as one document


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn OSError into StoreFull or StoreFailed that say what was being done."""
    try:
        yield
    except OSError as exc:
        if exc.errno in _NO_ROOM:
            raise StoreFull(f"no room left while {doing}: free some space and repeat") from exc
        raise StoreFailed(f"{exc.strerror or exc} while {doing}; reopen the store and repeat") from exc


def sync(fd: int) -> None:
    """Flush a file or directory to the disk itself."""
    if _sync_file is None:
        os.fsync(fd)
    else:
        fcntl.fcntl(fd, _sync_file)


# Flushes what a file holds, without times that nobody reads back.
sync_data: Callable[[int], None] = os.fdatasync if _sync_file is None else sync


def sync_all(fds: Sequence[int]) -> None:
    """Flush many files, all of them on their way to the disk at once."""
    if len(fds) > 1 and hasattr(os, "posix_fadvise"):
        for fd in fds:
            # Asked to let go of the pages, the kernel begins to write them out and does not wait.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if len(fds) < _MANY:
        _sync_each(fds)
        return
    # Flushes that wait for the disk at the same time share its answer.
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(_sync_each, [fds[start::_AT_ONCE] for start in range(_AT_ONCE)]):
            pass


def _sync_each(fds: Sequence[int]) -> None:
    for fd in fds:
        sync(fd)


def sync_dir(path: str | Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)


def write_new(path: str | Path, data: bytes, *, mode: int = 0o600) -> int:
    """Write a whole new file and return its descriptor, not yet synced. On failure nothing is left."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    except BaseException:
        os.close(fd)
        with suppress(OSError):
            os.unlink(path)
        raise
    return fd


def write_whole(path: str | Path, data: bytes, *, mode: int = 0o600, synced: bool = True) -> None:
    """Write a whole new file, durable but for its name. On failure nothing is left."""
    fd = write_new(path, data, mode=mode)
    try:
        if synced:
            sync(fd)
    except OSError:
        with suppress(OSError):
            os.unlink(path)
        raise
    finally:
        os.close(fd)


def replace_whole(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Put a file in place of another so that a crash leaves the old or the new, whole and durable."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with suppress(FileNotFoundError):
        draft.unlink()
    write_whole(draft, data, mode=mode)
    os.rename(draft, path)
    sync_dir(path.parent)


def read_plain(path: Path) -> bytes:
    """Return what is in a plain file of a moderate size; OSError for all else: no FIFO or device is waited for."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(
                errno.EINVAL, f"only a plain file is read; found {stat.filemode(about.st_mode)[0]!r}", str(path)
            )
        if about.st_size > _LONGEST:
            raise OSError(errno.EFBIG, f"{_LONGEST} bytes at most; found {about.st_size}", str(path))
        return file.read(_LONGEST)


def make_dirs(path: Path, *, mode: int = 0o700) -> None:
    """Make a directory and its parents, each durable in its own parent."""
    if path.is_dir():
        return
    make_dirs(path.parent, mode=mode)
    try:
        path.mkdir(mode=mode)
    except FileExistsError:
        return
    try:
        sync_dir(path.parent)
    except OSError:
        path.rmdir()  # else the next call would find it and take it for durable
        raise


class Ballast:
    """A file of real blocks that can be given up so that work already taken in can be finished on a full disk."""

    def __init__(self, path: Path, size: int = BALLAST_BYTES) -> None:
        self._path = path
        self._size = size

    @property
    def present(self) -> bool:
        return self._path.exists()

    def restore(self) -> None:
        """Make the ballast if there is room for it twice over; quietly do without if not."""
        if self._path.exists():
            return
        room = os.statvfs(self._path.parent)
        if room.f_bavail * room.f_frsize < 2 * self._size:
            return
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with suppress(OSError):
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, self._size)
                os.rename(draft, self._path)
            except OSError:
                os.unlink(draft)
            finally:
                os.close(fd)

    def release(self) -> bool:
        """Give up the ballast; False if it was already gone."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        return True
