"""Uses a file again that was read and is not needed any more, instead of removing it and making another.

A file system looks long for a fresh inode where many were freed lately: making a file can cost more than a commit. So
each client's request and answer files go round between it and the manager. A file only ever carries requests of one
client, or answers to one client: who still has an old one open can see and spoil nothing but its own.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from pabal.durable import write_new

SPARE_ANSWER, SPARE_REQUEST = ".spare-answer", ".spare-request"
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def write_draft(draft: str, data: bytes, spare: str) -> None:
    """Write a whole file to be renamed into place, of the spare one if that is there."""
    if not _write_over(draft, data, spare):
        os.close(write_new(draft, data))


def keep(path: str, spare: str) -> None:
    """Keep a file for the next time, or remove it if one is kept already."""
    with suppress(OSError):  # gone, or not ours to move
        if os.path.lexists(spare):
            os.unlink(path)
        else:
            os.rename(path, spare)


def _write_over(draft: str, data: bytes, spare: str) -> bool:
    try:
        os.rename(spare, draft)  # first, so that nobody else takes it too
        fd = os.open(draft, _WRITE)
    except FileNotFoundError:
        return False
    except OSError:
        os.unlink(draft)
        return False
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1 or stat.S_IMODE(about.st_mode) != 0o600:
            os.unlink(draft)
            return False
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.ftruncate(fd, len(data))  # last: a file cut to nothing first would be flushed when it is closed
    finally:
        os.close(fd)
    return True
