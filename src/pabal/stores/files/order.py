"""The lease order of messages, and how it is known for plain names, which do not say it.

A native name carries the order (`Slot`). The order of a plain name is read from its document once (`DocumentOrder`).
Each process keeps the orders that it has read (`KnownOrders`), and an attribute of the file keeps it for other
processes (`remember`, `recall`). The attribute counts only for the very file that it was written for, unchanged: a
copy, or a file that was written to or given another stem or queue since, is read again. So are all files where the
file system has no attributes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pabal.ids import new_tag
from pabal.message import Message
from pabal.stores.files.dedup import First, claim_id
from pabal.stores.files.names import Slot, ceil_ms, digest, floor_ms

if TYPE_CHECKING:
    from pabal.stores.files.queue_directory import QueueDirectory
    from pabal.stores.files.root import Root

_ATTRIBUTE = "user.pabal.order"
_FORM = "2"
_WORDS = 11  # form, identity, place, whether it was claimed, and an order


class DocumentOrder(NamedTuple):
    """The lease order and the consumer of a message with a plain name, from its document."""

    id: str
    priority: int = 0
    due: int = 0
    group: str = ""
    stamp: int = 0
    target: str = ""
    expires: int = 0

    def at(self, slot: Slot) -> DocumentOrder:
        """Return the order under the current name of the file: a retry has another due time, a revival no expiry."""
        order = self._replace(due=slot.due) if slot.due else self
        return order._replace(expires=0) if slot.revived else order


Order: TypeAlias = Slot | DocumentOrder


def order_of(root: Root, message: Message) -> DocumentOrder:
    """Return the order that a document gives to a plain name."""
    created = round(message.created_at, 6)  # as the document says it
    return DocumentOrder(
        id=message.id,
        priority=message.priority,
        due=min(floor_ms(created), root.now()),
        group=digest(message.group) if message.group else "",
        stamp=round(created * 1_000_000),
        target=digest(message.target) if message.target else "",
        expires=0 if message.expires_at is None else ceil_ms(message.expires_at),
    )


class _Known(NamedTuple):
    order: DocumentOrder
    inode: int
    size: int
    written_ns: int


class KnownOrders:
    """The orders that this process has read, by the names of files, each with the file that it was read from.

    An application may use a name again: the order of one file does not count for the next file of that name. Nor is it
    known under the new name of a file that another process renamed: that is recalled from its attribute, or read.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def __len__(self) -> int:
        return len(self._known)

    def learn(self, name: str, order: DocumentOrder, about: os.stat_result) -> None:
        """Keep an order. `about` is from before the file was read: afterwards its name may be that of another file."""
        self._known[name] = _Known(order, about.st_ino, about.st_size, about.st_mtime_ns)

    def of(self, name: str, slot: Slot) -> DocumentOrder | None:
        """Return the order of a file by its name and the parts of that name."""
        known = self._known.get(name)
        return None if known is None else known.order.at(slot)

    def rename(self, name: str, new: str) -> None:
        """Note that this process has renamed a file."""
        if (known := self._known.pop(name, None)) is not None:
            self._known[new] = known

    def forget(self, name: str) -> None:
        """Forget whose name this was."""
        self._known.pop(name, None)

    def keep(self, names: Iterable[str]) -> None:
        """Forget the orders of all other names."""
        self._known = {name: self._known[name] for name in names if name in self._known}

    def of_another(self, directory: str, name: str) -> bool:
        """Say whether the known order of a name is that of another file."""
        known = self._known.get(name)
        if known is None:
            return False
        try:
            about = os.lstat(f"{directory}/{name}")
        except FileNotFoundError:
            return True
        # A name with marks of the store is of a file that came back or came due: its time was set again for that.
        same = "~" in name or about.st_mtime_ns == known.written_ns
        return not same or (about.st_ino, about.st_size) != (known.inode, known.size)


class Remembered(NamedTuple):
    """The order in a file's attribute, and its status. `claimed`: no other file is the same message, as was checked."""

    order: DocumentOrder
    about: os.stat_result
    claimed: bool


def remember(file: int | str, queue: str, stem: str, order: DocumentOrder, *, claimed: bool) -> None:
    """Keep the order of a whole file in its attribute; if that fails, other processes read the file."""
    with suppress(OSError, UnicodeEncodeError):
        fields = (order.priority, order.due, order.group, order.stamp, order.target, order.expires, order.id)
        words = (_FORM, _identity(os.stat(file)), _place(queue, stem), int(claimed), *fields)
        os.setxattr(file, _ATTRIBUTE, " ".join(map(str, words)).encode())


def recall(root: Root, queue: str, stem: str, path: str) -> Remembered | None:
    """Return the order in a file's attribute, if the file has not changed since."""
    found = _attribute(path)
    if found is None or found[0][2] != _place(queue, stem):
        return None
    (_, _, _, claimed, priority, due, group, stamp, target, expires, id), about = found
    try:
        # Delays stand in names: a due time in the future only means that the clock stepped back.
        when = min(int(due), root.now())
        order = DocumentOrder(id, int(priority), when, group, int(stamp), target, int(expires))
    except ValueError:
        return None
    return Remembered(order, about, claimed == "1")


def set_time(root: Root, path: str) -> None:
    """Set the time of a file that begins to wait: its age is counted from here. Its attribute still counts."""
    found = None if root.names.native else _attribute(path)
    now = root.clock.now()
    os.utime(path, (now, now))
    if found is not None:
        (form, _, *words), _ = found
        with suppress(OSError):
            os.setxattr(path, _ATTRIBUTE, " ".join((form, _identity(os.lstat(path)), *words)).encode())


def _attribute(path: str) -> tuple[list[str], os.stat_result] | None:
    """Return the words of a file's attribute and its status; None if it has none or has changed since."""
    try:
        words = os.getxattr(path, _ATTRIBUTE, follow_symlinks=False).decode().split(" ")
        about = os.lstat(path)
    except (OSError, ValueError):
        return None
    return (words, about) if len(words) == _WORDS and words[:2] == [_FORM, _identity(about)] else None


def _identity(about: os.stat_result) -> str:
    """Tell this file, as it is now, from its copies and from later versions of it."""
    return f"{about.st_ino}.{about.st_size}.{about.st_mtime_ns}.{about.st_nlink}"


def _place(queue: str, stem: str) -> str:
    """Return a hash of where an order counts: the id may come from the stem, and keys are claimed in the queue."""
    return digest(f"{queue}/{stem}", 16)


class UnreadFiles:
    """Files of a queue that this process never read: their ids are claimed when they are leased. With the lock held."""

    def __init__(self, root: Root, queue: QueueDirectory) -> None:
        self._root, self._queue = root, queue
        self._unclaimed: set[str] = set()
        self._refused: set[str] = set()

    def recall(self, directory: str, name: str, slot: Slot) -> Remembered | None:
        """Return the order of a plain file that need not be read."""
        found = recall(self._root, self._queue.name, slot.base, f"{directory}/{name}")
        if found is None or name in self._refused:
            return None
        if slot.is_new and not found.claimed:
            self._unclaimed.add(name)
        return found

    def keep(self, names: set[str]) -> None:
        """Forget all other files."""
        self._unclaimed &= names
        self._refused &= names

    def is_first(self, name: str, stem: str, id: str) -> bool:
        """Claim the id of a file that is about to be leased; False if another file is the same message."""
        if name not in self._unclaimed:
            return True
        self._unclaimed.discard(name)
        if claim_id(self._queue, First(id, new_tag(), digest(stem, 10)), self._root.clock.now()):
            return True
        self._refused.add(name)  # to be read, and set aside with its reason
        return False
