"""Reads a claimed request file as something that a stranger wrote: once, whole, and only if it is what it should be."""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

from pabal.errors import LinkedFile, NotARegularFile, TooLarge, UnsafeFile, UnsafeMode, WrongOwner

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SPECIAL = frozenset({errno.ELOOP, errno.ENXIO, errno.ENODEV})  # a symlink, a socket or FIFO, a device without driver
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})


class RequestFile(NamedTuple):
    """The bytes of a file, who owns it and when it was last written."""

    data: bytes
    owner: int
    written_at: float


def read_request_file(path: str, owners: frozenset[int], limit: int) -> RequestFile:
    """Read a file that one of these users wrote; raise UnsafeFile or TooLarge, or FileNotFoundError."""
    try:
        fd = os.open(path, _READ)
    except OSError as exc:
        if exc.errno in _SPECIAL:
            raise NotARegularFile("a symlink, socket or device is never opened as a request") from exc
        if exc.errno in _FORBIDDEN:
            raise UnsafeFile("cannot be read: mode 0640 and a group that the manager is in are expected") from exc
        raise
    try:
        about = os.fstat(fd)
        _check(about, owners, limit)
        return RequestFile(_read(fd, about.st_size, limit), about.st_uid, about.st_mtime)
    finally:
        os.close(fd)


def _check(about: os.stat_result, owners: frozenset[int], limit: int) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise NotARegularFile(f"only plain files are requests; found {stat.filemode(about.st_mode)[0]!r}")
    if about.st_nlink != 1:
        raise LinkedFile(f"nlink {about.st_nlink}: another name of this file may be used to change it")
    if about.st_uid not in owners:
        raise WrongOwner(f"the file belongs to uid {about.st_uid}, which is no client here")
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnsafeMode(f"mode {stat.S_IMODE(about.st_mode):04o}: others may write to it; 0600 or 0644 is expected")
    if about.st_size > limit:
        raise TooLarge(f"a request file has {limit} bytes at most; found {about.st_size}")


def _read(fd: int, size: int, limit: int) -> bytes:
    """Read to the end once: the writer may still hold the file open, so only these bytes count."""
    data = os.read(fd, size + 1)
    if len(data) == size:
        return data
    parts, total = [data], len(data)
    while total <= limit and (data := os.read(fd, min(limit + 1 - total, 1 << 20))):
        parts.append(data)
        total += len(data)
    if total > limit:
        raise TooLarge(f"a request file has {limit} bytes at most; it grew while it was read")
    return b"".join(parts)
