"""Layouts: the directory of each state of a queue, and how the files in it are named and encoded."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pabal.codec import Codec
from pabal.codecs.json import JsonCodec
from pabal.errors import InvalidInput, InvalidName
from pabal.message import Message
from pabal.names import check_name
from pabal.store import State


class Layout(Protocol):
    """How an application arranges its files.

    All directories of a root are on one file system. Ready and delayed may share a directory; no other states may.
    """

    @property
    def codec(self) -> Codec: ...

    @property
    def native(self) -> bool:
        """True if names carry the lease order. If not, names are plain and the order is read from the documents."""
        ...

    @property
    def mirror(self) -> bool:
        """True if documents contain their state: the codec is Restatable, and names are plain, without checksum."""
        ...

    @property
    def removal_acks(self) -> bool:
        """True if a file in flight that another program removes counts as done."""
        ...

    @property
    def portable(self) -> bool:
        """True if a plain name from outside with other than letters, digits, `_`, `.` and `-` is replaced by a hash."""
        ...

    def directory(self, queue: str, state: State) -> str:
        """Return the directory of the files of a state, relative to the root."""
        ...

    def private(self, queue: str) -> str:
        """Return the directory of the store's own files (tmp, dedup, why, settings.json ...), relative to the root."""
        ...

    def queues(self, root: Path) -> list[str]:
        """Return the names of the queues that exist."""
        ...

    def stem(self, message: Message) -> str:
        """Return the stem of the plain name of a message that is published here."""
        ...

    def admits(self, name: str) -> bool:
        """Say whether a foreign file of this name, found among the waiting ones, is meant as a message."""
        ...


@dataclass(frozen=True, kw_only=True)
class NativeLayout:
    """`<queue>/<state>/`, with the lease order in the names. The directories of the states may have other names."""

    ready: str = "ready"
    delayed: str = "delayed"
    inflight: str = "inflight"
    dead: str = "dead"
    done: str = "done"
    corrupt: str = "corrupt"
    meta: str = ""  # the folder of the store's own files, one folder per queue in it; if empty they lie with the queue
    codec: Codec = JsonCodec()
    native: bool = True
    mirror: bool = False
    removal_acks: bool = False
    portable: bool = False

    def __post_init__(self) -> None:
        names = [getattr(self, state.value) for state in State]
        for name in names:
            check_name(name, "directory")
        if self.meta:
            check_name(self.meta, "directory")
        if len({*names, "tmp", "dedup", "why"}) < len(names) + 3:
            raise InvalidInput(f"each state needs a directory of its own, not tmp, dedup or why; found {names}")

    def directory(self, queue: str, state: State) -> str:
        if queue == self.meta:
            raise InvalidName(f"{queue} is the folder of the store's own files: no queue can have this name")
        return f"{queue}/{getattr(self, state.value)}"

    def private(self, queue: str) -> str:
        return f"{self.meta}/{queue}" if self.meta else queue

    def queues(self, root: Path) -> list[str]:
        entries = (entry for entry in os.scandir(root) if entry.name != self.meta)
        return [entry.name for entry in entries if _is_queue(entry, [getattr(self, state.value) for state in State])]

    def stem(self, message: Message) -> str:
        return message.id

    def admits(self, name: str) -> bool:
        return admits(name)


def admits(name: str) -> bool:
    """Say whether a name is that of a message: not of a hidden file, nor of one that is still being written."""
    return not name.startswith(".") and not name.endswith((".tmp", ".why"))


def _is_queue(entry: "os.DirEntry[str]", states: Sequence[str]) -> bool:
    """Say whether this is a queue. One folder is enough: programs that copy trees may leave out empty ones."""
    try:
        check_name(entry.name)
    except InvalidName:
        return False
    return entry.is_dir(follow_symlinks=False) and any(os.path.isdir(f"{entry.path}/{state}") for state in states)
