"""The word in the document: layouts with `mirror` keep each message's state in its own document.

The directory is the truth. The edited document takes the place of the old one by exchanging the two files, which fails
if the file is no longer there: a lease that is gone changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from pabal import durable
from pabal.errors import DecodeError
from pabal.store import State
from pabal.stores.files.calls import exchange
from pabal.stores.files.dedup import new_tag
from pabal.stores.files.reading import UNREADABLE, read_whole
from pabal.stores.files.root import Root
from pabal.stores.files.spool import Spool


def restate(root: Root, spool: Spool, directory: str, name: str, state: State, reason: str = "") -> bool:
    """Write the state into a document; False if the file is not there."""
    path = f"{directory}/{name}"
    try:
        data, _ = read_whole(path)
        edited = restated(root, data, state, reason)
        if edited == data:
            return True
        draft = f"{spool.tmp}/{new_tag()}~restated"
        root.write_spare(draft, edited, synced=True)
        try:
            exchange(draft, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(draft)
    except FileNotFoundError:
        return False
    except UNREADABLE:
        pass  # no document to write into, which is found out when it is read
    return True


def restate_all(root: Root, spool: Spool, names: Sequence[tuple[str, State]]) -> None:
    """Write their states into documents in flight, their flushes shared; those that are not there are left out."""
    drafts: list[tuple[str, str, int]] = []
    try:
        for name, state in names:
            with suppress(FileNotFoundError, *UNREADABLE):
                data, _ = read_whole(f"{spool.inflight}/{name}")
                edited = restated(root, data, state)
                if edited != data:
                    draft = f"{spool.tmp}/{new_tag()}~restated"
                    drafts.append((draft, f"{spool.inflight}/{name}", durable.write_new(draft, edited)))
        durable.sync_all([fd for _, _, fd in drafts])
        for draft, path, _ in drafts:
            with suppress(FileNotFoundError):
                exchange(draft, path)
    finally:
        for draft, _, fd in drafts:
            os.close(fd)
            with suppress(FileNotFoundError):
                os.unlink(draft)


def restated(root: Root, data: bytes, state: State, reason: str = "") -> bytes:
    """Return the document with its state; as it is where it has no place for one."""
    if root.restating is None:
        return data
    try:
        return root.restating.restate(data, state.value, at=root.clock.now(), reason=reason)
    except DecodeError:
        return data
