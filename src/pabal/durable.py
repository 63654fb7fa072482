"""The only place where files are made durable: write whole, fsync, rename, fsync the directory.

A failed fsync is final: the kernel has dropped the pages, and the next fsync would succeed without them. So no file is
flushed again after a failure; the caller gives it up and writes another.
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
from pabal.filesystem import close_all, open_into
from pabal.ids import new_token

BALLAST_BYTES = 8 << 20
_MANY, _AT_ONCE = 32, 16  # from so many files on they are flushed in threads, and the number of threads
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_full_fsync = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: its fsync does not reach the disk


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn an OSError into StoreFull or StoreFailed, whose text names the work that failed."""
    try:
        yield
    except OSError as exc:
        if exc.errno in NO_ROOM:
            raise StoreFull(f"no room left while {doing}: free some space and repeat") from exc
        raise StoreFailed(f"{exc.strerror or exc} while {doing}; reopen the store and repeat") from exc


def _sync_fully(fd: int) -> None:
    fcntl.fcntl(fd, _full_fsync)  # type: ignore[arg-type]  # only called where it is there


# Flush a file or a directory to the disk itself.
sync: Callable[[int], None] = os.fsync if _full_fsync is None else _sync_fully
# Flush the content of a file, without its times.
sync_data: Callable[[int], None] = os.fdatasync if _full_fsync is None else _sync_fully


def sync_all(fds: Sequence[int]) -> None:
    """Flush many files, all of them on their way to the disk at the same time."""
    if len(fds) > 1 and hasattr(os, "posix_fadvise"):
        for fd in fds:
            # Asked to drop the pages, the kernel starts to write them out and does not wait.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if len(fds) < _MANY:
        for fd in fds:
            sync(fd)
        return

    def flush_some(start: int) -> None:
        for fd in fds[start::_AT_ONCE]:
            sync(fd)

    # Flushes that wait at the same time share one answer of the disk.
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(flush_some, range(_AT_ONCE)):
            pass


def sync_dir(path: str | Path) -> None:
    """Make the names in a directory durable."""
    fds: list[int] = []
    closing = map(os.close, fds)
    try:
        sync(open_into(fds, path, os.O_RDONLY | os.O_DIRECTORY))
    finally:
        close_all(closing)


def write_new(path: str | Path, data: bytes, *, mode: int = 0o600) -> int:
    """Write a whole new file and return its descriptor, not yet flushed. On failure nothing is left."""
    fds: list[int] = []
    closing = map(os.close, fds)
    try:
        write_into(fds, path, data, mode=mode)
    except BaseException:
        close_all(closing)
        raise
    return fds[0]


def write_into(fds: list[int], path: str | Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write a whole new file, not yet flushed, and add its descriptor to a list. On failure nothing is left."""
    own: list[int] = []
    closing = map(os.close, own)
    try:
        fd = open_into(own, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    except BaseException:
        close_all(closing)
        if own:
            with suppress(OSError):
                os.unlink(path)
        raise
    fds.extend(own)


def write_whole(path: str | Path, data: bytes, *, mode: int = 0o600, synced: bool = True) -> None:
    """Write a whole new file, durable but for its name. On failure nothing is left."""
    fds: list[int] = []
    closing = map(os.close, fds)
    try:
        write_into(fds, path, data, mode=mode)
        if synced:
            sync(fds[0])
    except OSError:
        if fds:
            with suppress(OSError):
                os.unlink(path)
        raise
    finally:
        close_all(closing)


def replace_whole(path: Path, data: bytes, *, mode: int = 0o600, synced: bool = True) -> None:
    """Replace a file so that a crash leaves either the old or the new one, whole and, if `synced`, durable.

    A link of this name is replaced, never followed.
    """
    draft = path.with_name(f".{path.name[:200]}.{new_token()}.tmp")  # a name that nobody can guess and occupy
    write_whole(draft, data, mode=mode, synced=synced)
    try:
        os.rename(draft, path)
    except OSError:
        with suppress(OSError):
            os.unlink(draft)
        raise
    if synced:
        sync_dir(path.parent)


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
        path.rmdir()  # otherwise the next call would find it and take it for durable
        raise


class Ballast:
    """A file of allocated blocks, given up on a full disk so that messages already accepted can still be settled."""

    def __init__(self, path: Path, size: int = BALLAST_BYTES) -> None:
        self._path = path
        self._size = size

    @property
    def present(self) -> bool:
        """Whether it is there, whole: a crash may have left one that is too short."""
        try:
            about = os.lstat(self._path)
        except FileNotFoundError:
            return False
        return stat.S_ISREG(about.st_mode) and about.st_size >= self._size

    def restore(self) -> None:
        """Create the ballast if the disk has room for it twice over; otherwise do nothing."""
        if self.present:
            return
        room = os.statvfs(self._path.parent)
        if room.f_bavail * room.f_frsize < 2 * self._size:
            return
        with suppress(OSError):
            with suppress(FileNotFoundError):
                os.unlink(self._path)  # a link, or one that was not finished
            # Under its own name, which must be free: no draft is left behind, and no other file is ever written to.
            fd = write_new(self._path, b"")
            try:
                os.posix_fallocate(fd, 0, self._size)
            except OSError:
                os.unlink(self._path)
            finally:
                os.close(fd)

    def release(self) -> bool:
        """Give up the ballast; False if it was already gone."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        return True
