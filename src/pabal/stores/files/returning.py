"""Messages settled with follow-ups and perhaps to come back: each counts as held until its folder is finished."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pabal import jsontext
from pabal.stores.files.names import Slot

if TYPE_CHECKING:
    from pabal.stores.files.root import Root


class Returning:
    """The folders of one queue, and under which name what lies in each was held."""

    def __init__(self, root: Root, queue: str) -> None:
        self._root = root
        self._queue = queue
        self._names: dict[str, str] = {}  # by folder

    def note(self, id: str, token: str, name: str) -> bool:
        """Say whether what was held under this name lies in such a folder, and remember it."""
        prefix = f"{id}~{token}~"
        for each in os.listdir(self._root.settling):
            folder = f"{self._root.settling}/{each}"
            if each.startswith(prefix) and _unfinished(folder):
                self._names[folder] = name
                return True
        return False

    def hold(self, folder: str, name: str) -> None:
        self._names[folder] = name

    def finished(self) -> Iterator[str]:
        """Yield the names under which those were held that are in no folder any more."""
        for folder, name in list(self._names.items()):
            if not _unfinished(folder):
                del self._names[folder]
                yield name

    def reload(self) -> Iterator[tuple[str, str, Slot]]:
        """Forget all, and yield (folder, name, slot) of what is on its way back into this queue, for `hold`."""
        self._names.clear()
        for each in os.listdir(self._root.settling):
            folder = f"{self._root.settling}/{each}"
            try:
                with open(f"{folder}/plan.json", "rb") as file:
                    plan = jsontext.decode(file.read())
            except (OSError, ValueError):
                continue
            slot = self._root.names.parse(plan["name"])
            if plan["queue"] == self._queue and slot is not None and _unfinished(folder):
                yield folder, plan["name"], slot


def _unfinished(folder: str) -> bool:
    return os.path.lexists(f"{folder}/input")
