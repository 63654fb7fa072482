"""Reads a claimed request file as untrusted input: opened once, read whole, and only if it is safe to read.

Where each client is a user of its own, the owner of the file is its sender, whatever the file states.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from typing import NamedTuple

from pabal.errors import LinkedFile, NotARegularFile, SenderMismatch, TooLarge, UnsafeFile, UnsafeMode, WrongOwner
from pabal.mailbox.protocol import Batch, Problem

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SPECIAL = frozenset({errno.ELOOP, errno.ENXIO, errno.ENODEV})  # a symlink, a socket or FIFO, a device without driver
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})


class FileContent(NamedTuple):
    """The bytes of a file, its owner, and when it was last written."""

    data: bytes
    owner: int
    written_at: float


def read_request_file(path: str, owners: frozenset[int], limit: int) -> FileContent:
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
        return FileContent(_read(fd, about.st_size, limit), about.st_uid, about.st_mtime)
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
    """Read to the end once. The writer may still have the file open, so only the bytes read here count."""
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


class Senders:
    """Which user is which client. With `clients` None, all clients run as the manager's own user."""

    def __init__(self, clients: Mapping[str, int] | None) -> None:
        self._clients = clients
        self.owners = frozenset({os.geteuid(), *(clients or {}).values()})  # users that may own a request file

    def client_of(self, owner: int) -> str:
        """Return the client of this user; empty if the user is no client, or may be any client."""
        return next((name for name, uid in (self._clients or {}).items() if uid == owner), "")

    def checked(self, batch: Batch, owner: int) -> Batch:
        """Return the batch if the file's owner may send as its client; else problems, addressed to the owner."""
        if self._clients is None or self._clients.get(batch.client, os.geteuid()) == owner:
            return batch
        mismatch = SenderMismatch(f"a file of uid {owner} cannot speak for client {batch.client!r:.80}")
        client = self.client_of(owner)
        return Batch(client, [Problem(each.id, client, mismatch) for each in batch.requests], batch.many)
