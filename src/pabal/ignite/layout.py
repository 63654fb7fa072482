"""Where the mail of a team lies: `queue/<agent>/` for what waits, `processed/` in it for what an agent has in hand.

What is over, and what is the store's own, lies below `state/queues/<agent>/`, so that whoever counts the files below
`queue/` counts what is still to be done. A file that its reader removes from `processed/` is done.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pabal.codec import Codec
from pabal.codecs.mime.codec import MimeCodec
from pabal.errors import InvalidName
from pabal.message import Message
from pabal.names import check_name
from pabal.store import State
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
        """Return `<type>_<16 digits>`, with a mark of the id where the time alone would not make it unique.

        `Workspace.stamp` gives each message a microsecond of its own, never a whole millisecond.
        """
        stamp = round(message.created_at * 1_000_000)
        kind = message.type.replace("/", "-") or "message"
        if stamp % 1000:
            return f"{kind}_{stamp:016}"
        return f"{kind}_{stamp:016}-{sha256(message.id.encode()).hexdigest()[:16]}"

    def admits(self, name: str) -> bool:
        return admits(name) and not name.endswith(LEGACY)  # what is in the old form is turned into messages first


def _is_queue(entry: os.DirEntry[str]) -> bool:
    try:
        check_name(entry.name)
    except InvalidName:
        return False
    return entry.is_dir(follow_symlinks=False)
