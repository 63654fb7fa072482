"""What became of a file that an agent had in hand, read from the names in the folders, and the words put into it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum

from pabal.codecs.mime.head import edited
from pabal.errors import InvalidInput
from pabal.ignite.papered import PaperedStore
from pabal.ignite.workspace import Workspace
from pabal.store import Done, Receipt, Settlement, State
from pabal.stores.files.calls import exchange
from pabal.stores.files.dedup import new_tag
from pabal.stores.files.reading import UNREADABLE, read_whole


class Fate(StrEnum):
    HELD = "held"
    MOVING = "moving"
    RETRY = "retry"
    DONE = "done"
    DEAD = "dead"
    REMOVED = "removed"


def fate_of(workspace: Workspace, receipt: Receipt) -> Fate:
    """Say where the message of a receipt is, by its token, which every name carries that it gets after the lease."""
    if workspace.papered is not None:
        return _fate_in_store(workspace.papered, receipt)
    root, layout = workspace.root, workspace.layout
    places = (
        (layout.directory(receipt.queue, State.INFLIGHT), Fate.HELD),
        (".settling", Fate.MOVING),  # before the rest: from there it goes on
        (layout.directory(receipt.queue, State.READY), Fate.RETRY),
        (layout.directory(receipt.queue, State.DONE), Fate.DONE),
        (layout.directory(receipt.queue, State.DEAD), Fate.DEAD),
    )
    for folder, fate in places:
        if any(receipt.token in name for name in os.listdir(root / folder)):
            return fate
    return Fate.REMOVED


def _fate_in_store(store: PaperedStore, receipt: Receipt) -> Fate:
    entry = store.find(receipt.queue, receipt.id)
    if entry is None or entry.state is State.DONE:
        return Fate.DONE
    if entry.state is State.DEAD:
        return Fate.DEAD
    if entry.token != receipt.token:
        return Fate.RETRY
    if store.papers.path(receipt) is not None:
        return Fate.HELD
    store.settle([Settlement(receipt, Done())])  # its paper was there, and its reader has removed it
    return Fate.REMOVED


def mark(workspace: Workspace, queue: str, path: str, changes: Mapping[str, str | None]) -> None:
    """Put words into the headers of a file in hand, if it is still there. They tell, and decide nothing."""
    draft = f"{workspace.root}/{workspace.layout.private(queue)}/tmp/{new_tag()}~restated"
    with suppress(OSError, InvalidInput, *UNREADABLE):
        text = edited(read_whole(path)[0], changes)
        try:
            with open(draft, "xb") as file:
                file.write(text)
            os.chmod(draft, 0o600)
            exchange(draft, path)  # fails if the file is gone: then nothing is said of it
        finally:
            os.unlink(draft)
