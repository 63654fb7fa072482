"""Foreign files: whatever another program moved among the waiting ones, read once and given its place.

In the native layout a foreign file gets a native name, with the id that its document gives, else its stem, else a new
one. A duplicate, by key or by an id in its document, goes to the done ones with its reason. A file that is no message
is left alone until it has not been written for two seconds: its writer may still be at it.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from pabal import durable, jsontext
from pabal.errors import DecodeError, PabalError
from pabal.message import Message
from pabal.store import Draft, Failure, FailureCode, State
from pabal.stores.files import dedup
from pabal.stores.files.calls import rename_new
from pabal.stores.files.dedup import First
from pabal.stores.files.listing import Listing
from pabal.stores.files.names import Slot, digest, floored, native_base, plain_stem
from pabal.stores.files.reading import UNREADABLE, check_regular, id_of_stem, order_of, read_whole, set_aside
from pabal.stores.files.remembering import remember
from pabal.stores.files.root import Root
from pabal.stores.files.spool import Spool

PATIENCE = 2.0  # seconds
_FLUSHED = 200  # files flushed together, each with an open descriptor
_RECALLED = 1000  # files whose order need not be read, placed under one lock
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Found(NamedTuple):
    """A foreign file that is a message."""

    directory: str
    name: str
    data: bytes
    written_at: float
    message: Message

    @property
    def path(self) -> str:
        return f"{self.directory}/{self.name}"


def take_in(root: Root, spool: Spool, listing: Listing) -> bool:
    """Read what is new; True if something has found its place. Takes the lock for each file."""
    names = list(listing.strangers)
    moved = False
    for start in range(0, len(names), _RECALLED):
        with spool:
            moved |= _recall(root, spool, listing, names[start : start + _RECALLED])
    names = list(listing.strangers)
    flushed: dict[str, os.stat_result] = {}
    for number, name in enumerate(names):
        if number % _FLUSHED == 0 and len(names) > 1:
            flushed = _flush(spool, names[number : number + _FLUSHED])
        seen = listing.strangers.pop(name, None)  # before it is looked at: it may come again meanwhile
        if seen is None:
            continue  # another thread is at it
        stays = True
        try:
            placed = _take_one(root, spool, listing, name, seen, flushed.get(name))
            stays, moved = placed is None, moved or bool(placed)
        finally:
            if stays:
                listing.strangers.setdefault(name, seen)
    if moved:
        spool.sync(spool.waiting)
    return moved


def _recall(root: Root, spool: Spool, listing: Listing, names: Sequence[str]) -> bool:
    """Give those files their place whose order was kept with them; True if there were any. With the lock held."""
    found = False
    for name in names:
        slot = None if root.names.native else root.names.parse(name)
        if slot is None:
            continue
        for directory in spool.waiting:
            known = listing.unread.recall(directory, name, slot)
            if known is not None and listing.strangers.pop(name, None) is not None:
                listing.orders.learn(slot.base, known.order, known.about)
                listing.arrive(name, directory)
                found = True
    return found


def _flush(spool: Spool, names: Sequence[str]) -> dict[str, os.stat_result]:
    """Flush many files at once, for alone each would wait for the disk; return what each was like before."""
    fds: list[int] = []
    flushed: dict[str, os.stat_result] = {}
    try:
        for name in names:
            with suppress(OSError):
                path = f"{spool.waiting[0]}/{name}"
                about = os.lstat(path)
                if stat.S_ISREG(about.st_mode):  # opening a FIFO would wake its writer
                    fds.append(os.open(path, _READ))
                    flushed[name] = about
        durable.sync_all(fds)
        return flushed
    finally:
        for fd in fds:
            os.close(fd)


def _take_one(
    root: Root, spool: Spool, listing: Listing, name: str, seen: float, flushed: os.stat_result | None
) -> bool | None:
    """Give a file its place; False if there is nothing to be placed, None if it is to be looked at again."""
    directory = next((path for path in spool.waiting if os.path.lexists(f"{path}/{name}")), "")
    try:
        about = os.lstat(f"{directory}/{name}") if directory else None
        if about is None or (stat.S_ISDIR(about.st_mode) and not root.names.native):
            return False  # gone, or a directory of the application's own
        try:
            found = _read(root, about, directory, name, flushed=flushed is not None and _are_same(about, flushed))
        except UNREADABLE as exc:
            if isinstance(exc, DecodeError) and _is_young(root, about, seen):
                return None
            return _refuse(root, spool, about, directory, name, exc)
        return _place(root, spool, listing, about, found)
    except (FileNotFoundError, FileExistsError):
        return False  # somebody was quicker, or there is one of that name


def _read(root: Root, about: os.stat_result, directory: str, name: str, *, flushed: bool) -> Found:
    path = f"{directory}/{name}"
    check_regular(about)  # before it is opened, for opening a FIFO would wake its writer
    data, written_at = read_whole(path)
    try:
        message = root.codec.decode(data, id=_default_id(root, name), at=written_at)
    except (PabalError, OSError):
        raise
    except Exception as exc:  # whatever it is, the other files are served
        raise DecodeError(f"{type(exc).__name__}: {exc}", data) from exc
    if not flushed:
        fd = os.open(path, _READ)
        try:
            durable.sync(fd)
        finally:
            os.close(fd)
    return Found(directory, name, data, written_at, message)


def _is_same(about: os.stat_result, path: str) -> bool:
    """Say whether a file is still the one that was read. Its writer may use the same name for the next."""
    return _are_same(about, os.lstat(path))


def _are_same(one: os.stat_result, other: os.stat_result) -> bool:
    return all(
        getattr(one, part) == getattr(other, part)
        for part in ("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")
    )


def _default_id(root: Root, name: str) -> str:
    slot = None if root.names.native else root.names.parse(name)
    return id_of_stem(slot.base if slot is not None else plain_stem(name.removesuffix(root.names.extension)))


def _place(root: Root, spool: Spool, listing: Listing, about: os.stat_result, found: Found) -> bool | None:
    with spool:
        if not _is_same(about, found.path):
            return None
        if root.names.native:
            _give_name(root, spool, found)
        else:
            _give_order(root, spool, listing, about, found)
    return True


def _give_name(root: Root, spool: Spool, found: Found) -> None:
    message, now, tag = found.message, root.now(), dedup.new_tag()
    records = dedup.records_of(spool, Draft(spool.name, message), root.clock.now())
    id, first = message.id, dedup.claim(records, First(message.id, tag), now)
    if first is not None:
        id = root.ids()
        by_key = dedup.keys_of(records)
        if dedup.first_of(by_key, now) or root.codec.decode(found.data, id=id, at=found.written_at).id != id:
            _drop(root, spool, found, _native(root, found, id, 0), first)
            return
        # Only the name of its file was taken, by an earlier message that had no id either.
        dedup.claim(by_key, First(id, tag), now)
    stamp = spool.next_stamp(root.clock.now()) if message.group else 0
    slot = _native(root, found, id, stamp)
    root.move(found.path, f"{spool.dirs[State.READY]}/{slot.base}{slot.extension}")


def _native(root: Root, found: Found, id: str, stamp: int) -> Slot:
    due = min(floored(found.written_at), root.now())
    base = native_base(found.message, id, due, stamp=stamp, crc=zlib.crc32(found.data), own=False)
    slot = root.names.parse(f"{base}{root.names.extension}")
    assert slot is not None
    return slot


def _give_order(root: Root, spool: Spool, listing: Listing, about: os.stat_result, found: Found) -> None:
    slot = root.names.parse(found.name)
    if slot is None:
        extension = root.names.extension if found.name.endswith(root.names.extension) else ""
        better = f"{plain_stem(found.name.removesuffix(extension))}{extension}"
        if os.path.lexists(f"{found.directory}/{better}"):
            better = f"{plain_stem(f'{better.removesuffix(extension)}-{dedup.new_tag()}')}{extension}"
        rename_new(found.path, f"{found.directory}/{better}")
        found, slot = found._replace(name=better), root.names.parse(better)
        assert slot is not None
    order = order_of(root, found.message)
    listing.orders.learn(slot.base, order, about)
    if slot.attempt == 0:
        own = First(found.message.id, dedup.new_tag(), digest(slot.base, 10))
        records = dedup.records_of(spool, Draft(spool.name, found.message), root.clock.now())
        first = dedup.claim(records, own, root.now())
        if first is not None and first.stem != own.stem:
            _drop(root, spool, found, slot, first)
            return
    remember(found.path, order, taken=True)
    listing.arrive(found.name, found.directory)


def _drop(root: Root, spool: Spool, found: Found, slot: Slot, first: First) -> None:
    target = f"{spool.dirs[State.DONE]}/{slot.base}~a0~s{root.now():x}.{first.tag or 'first'}{slot.extension}"
    failure = Failure(FailureCode.DUPLICATE, f"{first.id} was first", root.clock.now())
    root.write_spare(f"{target}.why", jsontext.pretty(failure), synced=False)
    root.move(found.path, target)


def _is_young(root: Root, about: os.stat_result, seen: float) -> bool:
    age = root.clock.now() - about.st_mtime
    # A file dated in the future is given as long from when it was first seen.
    return age < PATIENCE and root.clock.boot() - seen < PATIENCE


def _refuse(root: Root, spool: Spool, about: os.stat_result, directory: str, name: str, exc: PabalError) -> bool | None:
    with spool:
        if not _is_same(about, f"{directory}/{name}"):
            return None
        set_aside(root, spool, directory, name, exc)
    return True
