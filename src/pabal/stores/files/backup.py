"""Back up and restore a file store while it is in use.

Files are copied twice. The first time nobody waits, and the copies are what they are. The second time all queues are
locked, so that no message changes its state: the names are then as they are at one moment, also for settlements with
follow-ups in other queues, and only files that are new are copied. A file is never written again under the same inode
number, time and size.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import TypeAlias

from pabal.filesystem import is_read_only, private, wait_for_lock
from pabal.stores.archive import ArchiveWriter, Kept, Progress, extract
from pabal.stores.files.root import Root

FILES = "files"
_BALLAST = ".ballast"

_Version: TypeAlias = tuple[int, int, int]


def backup(root: Root, archive: ArchiveWriter) -> None:
    """Add all files and folders of the store to a backup."""
    copies = _Copies(root, archive.scratch)
    copies.copy_all()
    with ExitStack() as locks:
        # Always in this order: two backups at once must not wait for each other.
        for name in sorted(root.layout.queues(Path(root.path))):
            queue = root.find(name)
            if queue is not None and is_read_only(queue.private):
                _lock_to_read(locks, f"{queue.private}/.lock")
            elif queue is not None:
                locks.enter_context(queue)
        folders, found = copies.copy_all()
    for folder in folders:
        archive.add_folder(f"{FILES}/{folder}")
    for name, (copy, mtime) in found.items():
        archive.add_file(f"{FILES}/{name}", copy, mtime)


def _lock_to_read(locks: ExitStack, path: str) -> None:
    """Take the lock of a queue that cannot be written to here: another mount of its files may be writable."""
    with suppress(FileNotFoundError):
        fd = private(path, os.O_RDONLY | os.O_NONBLOCK)
        locks.callback(os.close, fd)
        wait_for_lock(fd, path)


def restore(root: Path, source: Path, progress: Progress) -> Kept:
    """Make a file store from a backup."""
    return extract(source, "file", {FILES: root.absolute()}, progress)


class _Copies:
    """Copies of the files below a root, under numbers."""

    def __init__(self, root: Root, scratch: Path) -> None:
        self._root = root.path
        # Settlements first: what leaves them meanwhile is found in a queue.
        self._first = os.path.basename(root.settling)
        self._scratch = scratch
        self._done: dict[_Version, Path] = {}
        self._numbers = count()

    def copy_all(self) -> tuple[list[str], dict[str, tuple[Path, float]]]:
        """Copy what is not copied yet; return the folders, and by the name of each file its copy and its time."""
        folders, found = list[str](), dict[str, tuple[Path, float]]()
        for name, about in self._walk(""):
            if stat.S_ISDIR(about.st_mode):
                folders.append(name)
            elif stat.S_ISREG(about.st_mode) and name != _BALLAST:
                with suppress(FileNotFoundError):
                    found[name] = self._copy(name), about.st_mtime
        return folders, found

    def _copy(self, name: str) -> Path:
        with open(f"{self._root}/{name}", "rb", opener=private) as source:
            about = os.fstat(source.fileno())
            version = about.st_ino, about.st_mtime_ns, about.st_size
            copy = self._done.get(version)
            # The file of a lock holds a number and is written in place.
            if copy is None or os.path.basename(name) == ".lock":
                copy = self._scratch / str(next(self._numbers))
                with open(copy, "wb", opener=private) as target:
                    shutil.copyfileobj(source, target, 1 << 20)
                self._done[version] = copy
            return copy

    def _walk(self, folder: str) -> Iterator[tuple[str, os.stat_result]]:
        with suppress(FileNotFoundError):
            names = sorted(os.listdir(f"{self._root}/{folder}"), key=lambda name: (name != self._first, name))
            for name in names:
                path = f"{folder}/{name}" if folder else name
                with suppress(FileNotFoundError):
                    about = os.stat(f"{self._root}/{path}", follow_symlinks=False)
                    yield path, about
                    if stat.S_ISDIR(about.st_mode):
                        yield from self._walk(path)
