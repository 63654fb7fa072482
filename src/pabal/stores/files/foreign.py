"""Foreign files: files that another program moved among the waiting ones, read once and given their place.

In the native layout a foreign file gets a native name, with the id in its document, else its stem, else a new id. A
duplicate, by dedup key or by an id in its document, goes to the done ones with its reason. A file that is not a message
is left alone until it has not been written to for two seconds: its writer may not have finished.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from pabal import durable, jsontext
from pabal.errors import DecodeError
from pabal.filesystem import UNREADABLE, check_regular, close_all, open_into, read_whole, rename_new
from pabal.ids import new_tag
from pabal.message import Message
from pabal.store import Draft, Failure, FailureCode, State
from pabal.stores.files import dedup
from pabal.stores.files.dedup import First
from pabal.stores.files.index import Index
from pabal.stores.files.names import Slot, digest, floor_ms, native_base
from pabal.stores.files.order import order_of, remember
from pabal.stores.files.queue_directory import QueueDirectory
from pabal.stores.files.read import LiveMessages, decode, id_of_stem, order_in, set_aside
from pabal.stores.files.root import Root
from pabal.stores.files.settlement_folder import read_plan

PATIENCE = 2.0  # seconds
_FLUSHED = 200  # files flushed together, each with an open descriptor
_SUSPECTS, _SUSPECT_BYTES = 1000, 8 << 20  # files that may be duplicates, compared together with all that is there
_RECALLED = 1000  # files placed under one lock because their order need not be read
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Found(NamedTuple):
    """A foreign file that is a message."""

    directory: str
    name: str
    data: bytes
    about: os.stat_result  # from before it was read
    message: Message

    @property
    def path(self) -> str:
        return f"{self.directory}/{self.name}"


def take_in(root: Root, queue: QueueDirectory, index: Index) -> bool:
    """Read the foreign files that the index has met; True if one was given its place. Takes the lock for each file."""
    names = list(index.foreign)
    moved = False
    for start in range(0, len(names), _RECALLED):
        with queue:
            moved |= _recall(root, queue, index, names[start : start + _RECALLED])
    names = list(index.foreign)
    flushed: dict[str, os.stat_result] = {}
    suspects: list[Found] = []
    for number, name in enumerate(names):
        if number % _FLUSHED == 0 and len(names) > 1:
            flushed = _flush(queue, names[number : number + _FLUSHED])
        seen = index.foreign.pop(name, None)  # before it is looked at: the name may arrive again meanwhile
        if seen is None:
            continue  # another thread has taken it
        stays = True
        try:
            placed = _take_one(root, queue, index, name, seen, flushed.get(name))
            if isinstance(placed, Found):
                suspects.append(placed)
                placed = False
            stays, moved = placed is None, moved or bool(placed)
        finally:
            if stays:
                index.foreign.setdefault(name, seen)
        if len(suspects) >= _SUSPECTS or sum(len(found.data) for found in suspects) > _SUSPECT_BYTES:
            moved |= _judge(root, queue, index, suspects)
    if suspects:
        moved |= _judge(root, queue, index, suspects)
    if moved:
        queue.sync(queue.waiting)
    return moved


def _recall(root: Root, queue: QueueDirectory, index: Index, names: Sequence[str]) -> bool:
    """Place the files whose order was kept with them; True if there were any. With the lock held."""
    found = False
    for name in names:
        slot = None if root.names.native else root.names.parse(name)
        if slot is None:
            continue
        for directory in queue.waiting:
            known = index.unread.recall(directory, name, slot)
            if known is not None and index.foreign.pop(name, None) is not None:
                index.place(name, directory, known.order, known.about)
                found = True
    return found


def _flush(queue: QueueDirectory, names: Sequence[str]) -> dict[str, os.stat_result]:
    """Flush many files at once, since each alone would wait for the disk; return the status of each before."""
    fds: list[int] = []
    closing = map(os.close, fds)
    flushed: dict[str, os.stat_result] = {}
    try:
        for name in names:
            with suppress(OSError):
                path = f"{queue.waiting[0]}/{name}"
                about = os.lstat(path)
                if stat.S_ISREG(about.st_mode):  # to open a FIFO would wake its writer
                    open_into(fds, path, _READ)
                    flushed[name] = about
        durable.sync_all(fds)
        return flushed
    finally:
        close_all(closing)


def _take_one(
    root: Root, queue: QueueDirectory, index: Index, name: str, seen: float, flushed: os.stat_result | None
) -> bool | Found | None:
    """Place a file; False if there is nothing to place, None if it must be looked at again.

    A file that may be a duplicate is returned, for `_judge`.
    """
    directory = next((path for path in queue.waiting if os.path.lexists(f"{path}/{name}")), "")
    try:
        about = os.lstat(f"{directory}/{name}") if directory else None
        if about is None or (stat.S_ISDIR(about.st_mode) and not root.names.native):
            return False  # gone, or a directory of the application
        try:
            found = _read(root, about, directory, name, flushed=flushed is not None and _is_same(about, flushed))
        except UNREADABLE as exc:
            if isinstance(exc, DecodeError) and _is_young(root, about, seen):
                return None
            with queue:
                if not _is_same(about, os.lstat(f"{directory}/{name}")):
                    return None
                set_aside(root, queue, directory, name, exc)
            return True
        with queue:
            if not _is_same(about, os.lstat(found.path)):
                return None
            suspect = _place(root, queue, index, found)
        return True if suspect is None else suspect
    except (FileNotFoundError, FileExistsError):
        return False  # another process was quicker, or there is a file of that name


def _read(root: Root, about: os.stat_result, directory: str, name: str, *, flushed: bool) -> Found:
    path = f"{directory}/{name}"
    check_regular(about)  # before it is opened, for to open a FIFO would wake its writer
    data, _ = read_whole(path)
    slot = None if root.names.native else root.names.parse(name)
    stem = slot.base if slot is not None else root.names.stem(name.removesuffix(root.names.extension))
    message = decode(root, data, id=id_of_stem(stem), at=about.st_mtime)
    if not flushed:
        fds: list[int] = []
        closing = map(os.close, fds)
        try:
            durable.sync(open_into(fds, path, _READ))
        finally:
            close_all(closing)
    return Found(directory, name, data, about, message)


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    """Say whether a file is still the one that was read. Its writer may use the same name for the next."""
    parts = ("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")
    return all(getattr(one, part) == getattr(other, part) for part in parts)


def _is_young(root: Root, about: os.stat_result, seen: float) -> bool:
    # A file dated in the future gets the same time from when it was first seen.
    return root.clock.now() - about.st_mtime < PATIENCE and root.clock.boot() - seen < PATIENCE


def _judge(root: Root, queue: QueueDirectory, index: Index, suspects: list[Found]) -> bool:
    """Place the files that are no duplicates, drop the others, and clear the list; True if there were any."""
    moved = False
    for found in suspects:
        index.add_foreign(found.name)  # until it is judged
    with queue:
        present = PresentMessages(root, queue)
        for found in suspects:
            try:
                if _is_same(found.about, os.lstat(found.path)):
                    index.foreign.pop(found.name, None)
                    _place(root, queue, index, found, present)
                    moved = True
            except (FileNotFoundError, FileExistsError):
                pass  # another process was quicker, or there is a file of that name
    suspects.clear()
    return moved


class PresentMessages:
    """The messages that a queue has in some folder, by id, or by a hash of the stem if names are plain.

    A corrupt file is no message: the same message, mended, may come again.
    """

    def __init__(self, root: Root, queue: QueueDirectory) -> None:
        self._root, self._queue = root, queue
        self.live = LiveMessages(root, queue)
        self._known: set[str] = set()
        self._placed: set[tuple[str, str]] = set()
        # Plain names, by stem: a name may be that of another message by now.
        self._files: dict[str, list[tuple[str, str, Slot]]] = {}
        for name in os.listdir(queue.tmp):
            self._add(name.partition("~")[2])
        for state in (State.READY, State.DELAYED, State.INFLIGHT, State.DEAD, State.DONE):
            for name in os.listdir(queue.dirs[state]):
                self._add(name, queue.dirs[state])
        for each in os.listdir(root.settling):
            plan = read_plan(f"{root.settling}/{each}")
            for name in [] if plan is None else [plan["name"], *(o["file"].partition("~")[2] for o in plan["outputs"])]:
                self._add(name)

    def _add(self, name: str, directory: str = "") -> None:
        slot = self._root.names.parse(name) if not name.endswith(".why") else None
        if slot is None:
            return
        mark = slot.id if self._root.names.native else digest(slot.base, 10)
        if directory and not self._root.names.native:
            self._files.setdefault(mark, []).append((directory, name, slot))
        else:
            self._known.add(mark)

    def add(self, first: First) -> None:
        """Note that a file was given its place."""
        self._placed.add((first.id, first.stem))
        self.live.add(first.id)

    def __contains__(self, first: object) -> bool:
        if not isinstance(first, First):
            return False
        if (first.stem or first.id) in self._known or (first.id, first.stem) in self._placed:
            return True
        return any(self._may_be(first.id, *file) for file in self._files.get(first.stem, ()))

    def _may_be(self, id: str, directory: str, name: str, slot: Slot) -> bool:
        order = order_in(self._root, self._queue, directory, name, slot)
        return order.id == id if order is not None else os.path.lexists(f"{directory}/{name}")


def _claim(
    root: Root,
    queue: QueueDirectory,
    found: Found,
    records: list[dedup.Record],
    own: First,
    present: PresentMessages | None,
) -> First | None:
    """Make the records of a file; return the message that was first, if there is one. Without the messages that are
    present, one that had a unique key may have it still.
    """
    if present is None:
        return dedup.claim(records, own, root.now(), lambda other: True)
    alive = partial(present.live, but=found.path)
    first = dedup.adopt(records, own, root.now(), present.__contains__, alive)
    if first is None:
        present.add(own)
    return first


def _place(
    root: Root, queue: QueueDirectory, index: Index, found: Found, present: PresentMessages | None = None
) -> Found | None:
    """Give a file its place, or drop it as a duplicate; return it if this needs the messages that are present."""
    return (_give_name if root.names.native else _give_order)(root, queue, index, found, present)


def _give_name(
    root: Root, queue: QueueDirectory, index: Index, found: Found, present: PresentMessages | None
) -> Found | None:
    message, now, tag = found.message, root.now(), new_tag()
    records = dedup.records_of(queue, Draft(queue.name, message), root.clock.now())
    id, first = message.id, _claim(root, queue, found, records, First(message.id, tag), present)
    if first is not None:
        if present is None:
            return found
        id = root.ids()
        by_key = dedup.keys_of(records)
        if (
            dedup.first_of(by_key, now, present.live)
            or decode(root, found.data, id=id, at=found.about.st_mtime).id != id
        ):
            _drop(root, queue, found, _native(root, found, id, 0), first, present)
            return None
        # Only the name of its file was taken, by an earlier message that had no id either.
        dedup.claim(by_key, First(id, tag), now, present.live)
        present.add(First(id, tag))
    stamp = queue.next_stamp(root.clock.now()) if message.group else 0
    slot = _native(root, found, id, stamp)
    root.move(found.path, f"{queue.dirs[State.READY]}/{slot.base}{slot.extension}")
    return None


def _native(root: Root, found: Found, id: str, stamp: int) -> Slot:
    due = min(floor_ms(found.about.st_mtime), root.now())
    base = native_base(found.message, id, due, stamp=stamp, crc=zlib.crc32(found.data), own=False)
    slot = root.names.parse(f"{base}{root.names.extension}")
    assert slot is not None
    return slot


def _give_order(
    root: Root, queue: QueueDirectory, index: Index, found: Found, present: PresentMessages | None
) -> Found | None:
    slot = root.names.parse(found.name)
    if slot is None:
        extension = root.names.extension if found.name.endswith(root.names.extension) else ""
        better = f"{root.names.stem(found.name.removesuffix(extension))}{extension}"
        if os.path.lexists(f"{found.directory}/{better}"):
            better = f"{root.names.stem(f'{better.removesuffix(extension)}-{new_tag()}')}{extension}"
        rename_new(found.path, f"{found.directory}/{better}")
        about = os.lstat(f"{found.directory}/{better}")
        slot = root.names.parse(better)
        assert slot is not None
        message = decode(root, found.data, id=id_of_stem(slot.base), at=about.st_mtime)  # its id may be from its stem
        found = found._replace(name=better, about=about, message=message)
    order = order_of(root, found.message)
    if slot.is_new:
        own = First(found.message.id, new_tag(), digest(slot.base, 10))
        records = dedup.records_of(queue, Draft(queue.name, found.message), root.clock.now())
        first = _claim(root, queue, found, records, own, present)
        if first is not None and (first.id, first.stem) != (own.id, own.stem):
            if present is None:
                return found
            _drop(root, queue, found, slot, first, present)
            return None
    remember(found.path, queue.name, slot.base, order, claimed=True)
    index.place(found.name, found.directory, order, found.about)
    return None


def _drop(root: Root, queue: QueueDirectory, found: Found, slot: Slot, first: First, present: PresentMessages) -> None:
    """Move a duplicate to the done ones, after its reason."""
    done = queue.dirs[State.DONE]
    name = f"{slot.base}~a0~s{root.now():x}.{first.tag or 'first'}{slot.extension}"
    target = f"{done}/{root.free_name(name, done)}"
    failure = Failure(FailureCode.DUPLICATE, f"{first.id} was first", root.clock.now())
    root.write_small(f"{target}.why", jsontext.pretty(failure), synced=False)
    root.move(found.path, target)
    present.live.drop(found.directory, found.name)
