"""The word in the document: layouts with `mirror` keep each message's state in its own document.

The directory is the truth. The edited document takes the place of the old one by exchanging the two files, which fails
if the file is no longer there: a lease that is gone changes nothing.
"""

from __future__ import annotations

import os
from contextlib import suppress

from pabal.codec import Restatable
from pabal.errors import DecodeError
from pabal.store import State
from pabal.stores.files.calls import exchange
from pabal.stores.files.dedup import new_tag
from pabal.stores.files.reading import read_whole
from pabal.stores.files.spool import Root, Spool


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
    return True


def restated(root: Root, data: bytes, state: State, reason: str = "") -> bytes:
    """Return the document with its state; as it is where it has no place for one."""
    if not isinstance(root.codec, Restatable):
        return data
    try:
        return root.codec.restate(data, state.value, at=root.clock.now(), reason=reason)
    except DecodeError:
        return data
