"""Uses a file again that was read and is not needed any more, instead of removing it and making another.

A file system looks long for a fresh inode where many were freed lately: making a file can cost more than a commit. So
each client's request and answer files go round between it and the manager. A file only ever carries requests of one
client, or answers to one client: who still has an old one open can see and spoil nothing but its own.

Spare files and drafts lie in a folder of their own, where nobody listens: only whole files are heard to arrive.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from pabal.durable import write_new
from pabal.ids import new_token

SPARE = ".spare"  # the folder, within that of a client's answers
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def put(path: str, data: bytes, *, folder: str, kind: str) -> None:
    """Put a whole file in place, of a spare one of its kind if there is one."""
    draft = f"{folder}/{SPARE}/{new_token()}.tmp"
    try:
        if not any(_write_over(spare, draft, data) for spare in _spares(folder, kind)):
            _write_first(draft, data, f"{folder}/{SPARE}")
        os.rename(draft, path)
    except OSError:
        with suppress(OSError):  # not there; what is would take up room on a full disk
            os.unlink(draft)
        raise


def _write_first(draft: str, data: bytes, spares: str) -> None:
    try:
        os.close(write_new(draft, data))
    except FileNotFoundError:
        with suppress(FileExistsError):  # another thread was faster
            os.mkdir(spares, 0o700)
        os.close(write_new(draft, data))


def keep(path: str, *, folder: str, kind: str) -> None:
    """Keep a file for another time, or remove it if enough are kept already."""
    with suppress(OSError):  # gone, or not ours to move
        for spare in _spares(folder, kind):
            if not os.path.lexists(spare):
                os.rename(path, spare)
                return
        os.unlink(path)


def _spares(folder: str, kind: str) -> tuple[str, str]:
    # Two: a client that asks again at once does so before the manager has given the last file back.
    return f"{folder}/{SPARE}/{kind}-1", f"{folder}/{SPARE}/{kind}-2"


def _write_over(spare: str, draft: str, data: bytes) -> bool:
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
