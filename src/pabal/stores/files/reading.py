"""Files to messages: read whole and safely, check, decode; what cannot be read is set aside with its reason."""

from __future__ import annotations

import errno
import os
import stat
import zlib
from contextlib import suppress

from pabal import jsontext
from pabal.errors import DecodeError, LinkedFile, NotARegularFile, PabalError, TooLarge, UnsafeFile
from pabal.ids import new_token
from pabal.message import Message, lasting
from pabal.names import check_id
from pabal.policy import LARGEST_MAX_BYTES
from pabal.store import Failure, FailureCode, State
from pabal.stores.files.groups import DocumentOrder
from pabal.stores.files.names import Slot, ceiled, digest, floored, plain_stem
from pabal.stores.files.root import Root
from pabal.stores.files.spool import Spool

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SPECIAL = frozenset({errno.ELOOP, errno.ENXIO, errno.ENODEV})  # a symlink, a socket or FIFO, a device without driver
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})
UNREADABLE = (DecodeError, UnsafeFile, TooLarge)
_LIMIT = LARGEST_MAX_BYTES


def read_whole(path: str) -> tuple[bytes, float]:
    """Return the bytes of a regular file that has one name only, and when it was last written."""
    try:
        fd = os.open(path, _READ)
    except OSError as exc:
        if exc.errno in _SPECIAL:
            raise NotARegularFile("a symlink, socket or device is never opened as a message") from exc
        if exc.errno in _FORBIDDEN:
            raise UnsafeFile(f"cannot be read: {exc.strerror}") from exc
        raise
    try:
        about = os.fstat(fd)
        if about.st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "removed just as it was opened", path)
        check_regular(about)
        return _read(fd, about.st_size), about.st_mtime
    finally:
        os.close(fd)


def check_regular(about: os.stat_result) -> None:
    """Raise UnsafeFile unless this is a plain file with one name and of a size that a message can have."""
    if not stat.S_ISREG(about.st_mode):
        raise NotARegularFile(f"only plain files are messages; found {stat.filemode(about.st_mode)[0]!r}")
    if about.st_nlink != 1:
        raise LinkedFile(f"nlink {about.st_nlink}: another name of this file may be used to change it")
    if about.st_size > _LIMIT:
        raise TooLarge(f"{_LIMIT} bytes at most; found {about.st_size}")


def _read(fd: int, size: int) -> bytes:
    data = os.read(fd, size + 1)
    if len(data) == size:
        return data
    parts = [data]
    while (room := _LIMIT + 1 - sum(map(len, parts))) > 0 and (data := os.read(fd, min(room, 1 << 20))):
        parts.append(data)
    if sum(map(len, parts)) > _LIMIT:
        raise TooLarge(f"{_LIMIT} bytes at most; it grew while it was read")
    return b"".join(parts)


def read_message(root: Root, path: str, slot: Slot) -> Message:
    """Read the message in a file, revived or not. Raise DecodeError, UnsafeFile or TooLarge if there is none."""
    message = _read_document(root, path, slot)
    if slot.revived or root.names.native:
        return lasting(message, slot.expires or None)
    return message


def _read_document(root: Root, path: str, slot: Slot) -> Message:
    data, written_at = read_whole(path)
    if slot.crc < 0:
        return root.codec.decode(data, id=id_of_stem(slot.id), at=written_at)
    found = zlib.crc32(data)
    if found != slot.crc:
        raise DecodeError(f"ChecksumMismatch: crc32 is {found:08x}, not {slot.crc:08x}: the file was changed", data)
    return root.codec.decode(data, id=slot.id, at=written_at, own=slot.own)


def id_of_stem(stem: str) -> str:
    """Return the id that a message without one gets from its file's stem."""
    try:
        return check_id(stem)
    except PabalError:
        return f"file-{digest(stem, 20)}"


def order_of(root: Root, message: Message) -> DocumentOrder:
    """Return what a document says about the order of a plain name."""
    created = floored(message.created_at)
    return DocumentOrder(
        id=message.id,
        priority=message.priority,
        due=min(created, root.now()),
        group=digest(message.group) if message.group else "",
        stamp=created,
        target=digest(message.target) if message.target else "",
        expires=0 if message.expires_at is None else ceiled(message.expires_at),
    )


def learn(root: Root, spool: Spool, directory: str, name: str, slot: Slot) -> DocumentOrder | None:
    """Read the document of a plain name for its order, and remember that."""
    path = f"{directory}/{name}"
    try:
        about = os.lstat(path)  # before it is read: what is there afterwards may be another
        message = _read_document(root, path, slot)
    except (FileNotFoundError, *UNREADABLE):
        return None
    order = order_of(root, message)
    if spool.listing is not None and not slot.settled:
        spool.listing.orders.learn(slot.base, order, about)
    return order.at(slot)


def set_aside(root: Root, spool: Spool, directory: str, name: str, exc: PabalError) -> None:
    """Move a file that is no message to the corrupt ones, its reason before it. With the lock held."""
    target = _corrupt_name(root, spool, name)
    why = f"{spool.dirs[State.CORRUPT]}/{target}.why"
    text = exc.reason if isinstance(exc, DecodeError) else f"{exc.code}: {exc}"
    root.write_spare(why, f"{text}\n".encode("utf-8", "replace"), synced=False)
    now = root.clock.now()
    os.utime(why, (now, now))  # from here its age is counted
    try:
        root.move(f"{directory}/{name}", f"{spool.dirs[State.CORRUPT]}/{target}")
    except FileNotFoundError:
        with suppress(FileNotFoundError):
            os.unlink(why)


def _corrupt_name(root: Root, spool: Spool, name: str) -> str:
    slot = root.names.parse(name)
    stem, extension = (slot.base, slot.extension) if slot is not None else (plain_stem(name), "")
    if slot is None or os.path.lexists(f"{spool.dirs[State.CORRUPT]}/{stem}{extension}"):
        stem += f"~{new_token()}"  # another bad file of that name keeps its place
    return f"{stem}{extension}"


def failure_of_text(text: str, at: float) -> Failure:
    """Read the reason file of a corrupt message."""
    code, colon, reason = text.strip().partition(": ")
    return Failure(code, reason, at) if colon else Failure(FailureCode.CORRUPT, text.strip(), at)


def read_failure(path: str) -> Failure | None:
    """Read a reason file that the store wrote for a retried, dead or dropped message."""
    try:
        with open(path, "rb") as file:
            return Failure(**jsontext.decode(file.read()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def why_path(spool: Spool, id: str) -> str:
    """Say where the last failure of a message lies while it waits or is in flight."""
    return f"{spool.why}/{id}.why"
