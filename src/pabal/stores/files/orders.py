"""What the documents of plain names say of their order, by stem, each together with the file that it was read from.

An application uses its names again: what is known of a file does not count for the next one of that name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from pabal.stores.files.groups import DocumentOrder
from pabal.stores.files.names import Slot


class _Known(NamedTuple):
    order: DocumentOrder
    inode: int
    size: int
    written_ns: int


class Orders:
    """The orders of one queue's plain files, as far as they are known."""

    def __init__(self, extension: str) -> None:
        self._extension = extension
        self._known: dict[str, _Known] = {}

    def __len__(self) -> int:
        return len(self._known)

    def learn(self, stem: str, order: DocumentOrder, about: os.stat_result) -> None:
        """Keep an order. `about` is of before the file was read: what has its name afterwards may be another."""
        self._known[stem] = _Known(order, about.st_ino, about.st_size, about.st_mtime_ns)

    def of(self, slot: Slot) -> DocumentOrder | None:
        known = self._known.get(slot.base)
        return None if known is None else known.order.at(slot)

    def forget(self, stem: str) -> None:
        self._known.pop(stem, None)

    def keep(self, names: Iterable[str]) -> None:
        """Forget all that is not of these names."""
        stems = set(map(self._stem, names))
        self._known = {stem: known for stem, known in self._known.items() if stem in stems}

    def of_another(self, directory: str, name: str) -> str:
        """Return the stem of a name that is there if what is known of it is of another file, else nothing."""
        stem = self._stem(name)
        known = self._known.get(stem)
        if known is None:
            return ""
        try:
            about = os.lstat(f"{directory}/{name}")
        except FileNotFoundError:
            return stem
        # A name that the store gave is of a file that came back or came due, and was dated anew for it.
        same = "~" in name or about.st_mtime_ns == known.written_ns
        return "" if same and (about.st_ino, about.st_size) == (known.inode, known.size) else stem

    def _stem(self, name: str) -> str:
        """Take the stem from a name, which need not be parsed for it."""
        stem, marked, _ = name.partition("~")
        return stem if marked else stem.removesuffix(self._extension)
