"""Layouts: where each state of a queue lies below the root, and how the files in it are named and written."""

import os
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
    """What an application says about its files.

    All directories of a root are on one file system. Ready and delayed may share a directory; no others may.
    """

    @property
    def codec(self) -> Codec: ...

    @property
    def native(self) -> bool:
        """Names carry all that orders messages. If not, names are plain and the order is read from the documents."""
        ...

    @property
    def mirror(self) -> bool:
        """Documents say their state: the codec is Restatable, and names are plain, for a checksum would not last."""
        ...

    @property
    def removal_acks(self) -> bool:
        """A file that somebody else removes while it is in flight counts as done."""
        ...

    def directory(self, queue: str, state: State) -> str:
        """Say where the files of a state are, relative to the root."""
        ...

    def private(self, queue: str) -> str:
        """Say where the store keeps what is its own (tmp, dedup, why, .lock, settings.json), relative to the root."""
        ...

    def queues(self, root: Path) -> list[str]:
        """Name the queues that exist."""
        ...

    def stem(self, message: Message) -> str:
        """Choose the stem of a plain name for a message that is published here."""
        ...

    def admits(self, name: str) -> bool:
        """Say whether a file of this name, found among the waiting ones, is meant as a message."""
        ...


@dataclass(frozen=True, kw_only=True)
class NativeLayout:
    """`<queue>/<state>/`, with all that orders messages in their names. The directories may be called otherwise."""

    ready: str = "ready"
    delayed: str = "delayed"
    inflight: str = "inflight"
    dead: str = "dead"
    done: str = "done"
    corrupt: str = "corrupt"
    meta: str = ""  # below it lies what is the store's own, each queue's in a folder of its name; else with the queue
    codec: Codec = JsonCodec()
    native: bool = True
    mirror: bool = False
    removal_acks: bool = False

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
            raise InvalidName(f"{queue} is the folder of what is the store's own: no queue can be called so")
        return f"{queue}/{getattr(self, state.value)}"

    def private(self, queue: str) -> str:
        return f"{self.meta}/{queue}" if self.meta else queue

    def queues(self, root: Path) -> list[str]:
        entries = (entry for entry in os.scandir(root) if entry.name != self.meta)
        return [entry.name for entry in entries if _is_queue(entry, self.ready)]

    def stem(self, message: Message) -> str:
        return message.id

    def admits(self, name: str) -> bool:
        return admits(name)


def admits(name: str) -> bool:
    """Leave hidden files and those that somebody is still writing alone."""
    return not name.startswith(".") and not name.endswith((".tmp", ".why"))


def _is_queue(entry: "os.DirEntry[str]", ready: str) -> bool:
    try:
        check_name(entry.name)
    except InvalidName:
        return False
    return entry.is_dir(follow_symlinks=False) and os.path.isdir(f"{entry.path}/{ready}")
