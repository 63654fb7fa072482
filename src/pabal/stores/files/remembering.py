"""What a document says of its order, kept with its file as an attribute: so that it is read once, not at every start.

It counts only for the very file that it was written for, as it was then: a copy, or a file that was written to since,
is read like one that nobody knows. Where the file system keeps no attributes, all files are.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from pabal.stores.files.dedup import First, claim_id, new_tag
from pabal.stores.files.groups import DocumentOrder
from pabal.stores.files.names import Slot, digest

if TYPE_CHECKING:
    from pabal.stores.files.root import Root
    from pabal.stores.files.spool import Spool

_NAME = "user.pabal.order"
_FORM = "1"


class Remembered(NamedTuple):
    """The order of a file, and what it was like; `taken`: it was also made sure that no other is the same message."""

    order: DocumentOrder
    about: os.stat_result
    taken: bool


def remember(file: int | str, order: DocumentOrder, *, taken: bool) -> None:
    """Keep the order with a file that is whole; if that cannot be, it is read again."""
    with suppress(OSError, UnicodeEncodeError):
        said = (order.priority, order.due, order.group, order.stamp, order.target, order.expires, order.id)
        words = (_FORM, _mark(os.stat(file)), int(taken), *said)
        os.setxattr(file, _NAME, " ".join(map(str, words)).encode())


class Unread:
    """Files of one queue that were never read here, and whose ids are claimed when they are leased. With its lock."""

    def __init__(self, root: Root, spool: Spool) -> None:
        self._root, self._spool = root, spool
        self._unclaimed: set[str] = set()
        self._refused: set[str] = set()

    def recall(self, directory: str, name: str, slot: Slot) -> Remembered | None:
        """Return the order of a plain file that need not be read."""
        found = recall(f"{directory}/{name}")
        if found is None or name in self._refused:
            return None
        if slot.attempt == 0 and not found.taken:
            self._unclaimed.add(name)
        # Delays stand in names: what is dated in the future, the clock having stepped back, does not wait for it.
        return found._replace(order=found.order._replace(due=min(found.order.due, self._root.now())))

    def keep(self, names: set[str]) -> None:
        """Forget all files but these."""
        self._unclaimed &= names
        self._refused &= names

    def is_first(self, name: str, stem: str, id: str) -> bool:
        """Claim the id of a file that is to be leased; False if another file is the same message."""
        if name not in self._unclaimed:
            return True
        self._unclaimed.discard(name)
        if claim_id(self._spool, First(id, new_tag(), digest(stem, 10)), self._root.clock.now()):
            return True
        self._refused.add(name)  # to be read, for its reason
        return False


def recall(path: str) -> Remembered | None:
    """Return what was kept with this file, if it is still true."""
    try:
        words = os.getxattr(path, _NAME, follow_symlinks=False).decode().split(" ")
        form, mark, taken, priority, due, group, stamp, target, expires, id = words
        about = os.lstat(path)
        if (form, mark) != (_FORM, _mark(about)):
            return None
        order = DocumentOrder(id, int(priority), int(due), group, int(stamp), target, int(expires))
    except (OSError, ValueError):
        return None
    return Remembered(order, about, taken == "1")


def _mark(about: os.stat_result) -> str:
    """Tell this file, as it is, from its copies and from what is written into it later."""
    return f"{about.st_ino}.{about.st_size}.{about.st_mtime_ns}.{about.st_nlink}"
