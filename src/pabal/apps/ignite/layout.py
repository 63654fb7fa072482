"""The folders of a team's mail: `queue/<agent>/` for waiting mail, `processed/` in it for mail that an agent holds.

Finished mail and the store's own files lie below `state/queues/<agent>/`, so that the files below `queue/` are the work
that is left. An agent that removes a file from `processed/` acknowledges the message.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pabal.clock import iso_stamp
from pabal.codec import Codec
from pabal.codecs.mime.codec import MimeCodec
from pabal.durable import replace_whole
from pabal.errors import DecodeError, InvalidName, PabalError
from pabal.ids import new_tag
from pabal.jsontext import storable
from pabal.message import Message
from pabal.names import check_name
from pabal.store import State
from pabal.stores.files import Names, Slot, safe_name
from pabal.stores.layout import admits

QUEUES = "queue"
PROCESSED = "processed"
DEAD_LETTERS = "dead_letter"
LEGACY = (".yaml", ".yml")
_SHARED = {State.READY: "", State.DELAYED: "", State.INFLIGHT: f"/{PROCESSED}"}


@dataclass(frozen=True)
class IgniteLayout:
    """`queue/<agent>/<type>_<microseconds>.mime`."""

    codec: Codec = MimeCodec()
    native: bool = False
    mirror: bool = True
    removal_acks: bool = True
    portable: bool = True  # paths are typed into terminals and read by models

    def directory(self, queue: str, state: State) -> str:
        if state in _SHARED:
            return f"{QUEUES}/{queue}{_SHARED[state]}"
        return f"{self.private(queue)}/{state}"

    def private(self, queue: str) -> str:
        return f"state/queues/{queue}"

    def queues(self, root: Path) -> list[str]:
        try:
            with os.scandir(root / QUEUES) as entries:
                return [entry.name for entry in entries if _is_queue(entry)]
        except FileNotFoundError:
            return []

    def stem(self, message: Message) -> str:
        """Return `<type>_<16 digits>`, with a hash of the id where the time alone would not make it unique.

        `Workspace.stamp` gives each message a microsecond of its own, never a whole millisecond.
        """
        stamp = round(message.created_at * 1_000_000)
        kind = message.type.replace("/", "-") or "message"
        if stamp % 1000:
            return f"{kind}_{stamp:016}"
        return f"{kind}_{stamp:016}-{sha256(message.id.encode()).hexdigest()[:16]}"

    def admits(self, name: str) -> bool:
        return admits(name) and not name.endswith(LEGACY)  # files of the old form are converted to messages first


class Folders:
    """The folders of one workspace, as absolute paths, and the names of the files in them."""

    layout = IgniteLayout()
    names = Names(native=False, extension=layout.codec.extension, portable=layout.portable)

    def __init__(self, root: Path) -> None:
        self.root = root

    def queue(self, agent: str) -> str:
        return f"{self.root}/{QUEUES}/{agent}"

    def directory(self, agent: str, state: State) -> str:
        return f"{self.root}/{self.layout.directory(agent, state)}"

    def processed(self, agent: str) -> str:
        return self.directory(agent, State.INFLIGHT)

    def private(self, agent: str, part: str) -> str:
        return f"{self.root}/{self.layout.private(agent)}/{part}"

    def held_names(self, agent: str) -> Iterator[tuple[str, Slot]]:
        """Go through the files of leased messages, as (name, slot)."""
        try:
            names = os.listdir(self.processed(agent))
        except FileNotFoundError:
            return
        for name in names:
            slot = self.names.parse(name)
            if slot is not None and slot.leased:
                yield name, slot

    def admitted_names(self, agent: str, state: State) -> Iterator[str]:
        """Go through the names of messages in the folder of a state."""
        try:
            names = os.listdir(self.directory(agent, state))
        except FileNotFoundError:
            return
        yield from (name for name in names if name != PROCESSED and self.layout.admits(name))

    def set_aside(self, agent: str, path: str, exc: PabalError, *, name: str = "") -> None:
        """Move a file that is no message to the corrupt ones, with the reason beside it."""
        target = f"{self.directory(agent, State.CORRUPT)}/{safe_name(name or os.path.basename(path))}"
        if os.path.lexists(target):
            target += f"~{new_tag()}"  # another corrupt file of that name keeps its place
        reason = exc.reason if isinstance(exc, DecodeError) else f"{exc.code}: {exc}"
        replace_whole(Path(f"{target}.why"), storable(f"{reason}\n").encode(), synced=False)
        with suppress(FileNotFoundError):
            os.rename(path, target)


def files_in(folder: str) -> list[str]:
    """Return the names of everything in a folder that is no folder itself; none if there is no such folder."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def iso_time(at: float) -> str:
    """Write an instant as ISO 8601 in UTC, to the second."""
    return iso_stamp(at, timespec="seconds", utc="+00:00")


def _is_queue(entry: os.DirEntry[str]) -> bool:
    try:
        check_name(entry.name)
    except InvalidName:
        return False
    return entry.is_dir(follow_symlinks=False)
