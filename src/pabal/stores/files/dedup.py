"""Who was first: one record per dedup key and per given id, a symlink with `<expires ms>~<id>~<tag>[~<stem>]` as text.

The record of a key counts until it expires, that of an id as long as its message is there and then until it expires.
The tag names one act of publishing. Its message lies in `tmp/<tag>~<name>` from before the record is made until after
the record is durable; so whoever finds a record whose message is still there can finish what its publisher began.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from typing import NamedTuple

from pabal.ids import new_token
from pabal.store import Draft, Terms
from pabal.stores.files.names import ceiled
from pabal.stores.files.spool import Spool

_BY_KEY, _BY_ID, _GONE = "k", "i", "g"  # the first letter of a record's name; gone: the message of an id was purged

CARRIED = "m"  # begins the tag of a message that comes from another store; others are hexadecimal


class First(NamedTuple):
    """The message that a record stands for, the act that published it, and a hash of its plain name if it has one."""

    id: str
    tag: str
    stem: str = ""


def new_tag() -> str:
    return new_token()[:10]


def records_of(spool: Spool, draft: Draft, now: float) -> list[tuple[str, int]]:
    """Name the records that this draft needs, each with the instant at which it expires."""
    found, expires = [], ceiled(now + draft.terms.dedup_window)
    if draft.message.dedup_key:
        found.append((_path(spool, _BY_KEY, draft.message.dedup_key), expires))
    if draft.given_id:
        found.append((_path(spool, _BY_ID, draft.message.id), expires))
    return found


def keys_of(records: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return those records that are for dedup keys."""
    return [record for record in records if _kind(record[0]) == _BY_KEY]


def claim_id(spool: Spool, first: First, at: float) -> bool:
    """Make the record of an id for a plain name; False if another name was first. With the lock held."""
    found = claim([(_path(spool, _BY_ID, first.id), ceiled(at + Terms().dedup_window))], first, ceiled(at))
    return found is None or found.stem == first.stem


def forget_id(spool: Spool, id: str) -> None:
    """Note that the message of an id is about to go: from here on its record expires."""
    with suppress(FileNotFoundError):
        os.rename(_path(spool, _BY_ID, id), _path(spool, _GONE, id))


def first_of(records: list[tuple[str, int]], now: int) -> First | None:
    """Return the message that one of these records stands for, if it still counts."""
    for path, _ in records:
        found = _read(path, now)
        if found is not None:
            return found
    return None


def claim(records: list[tuple[str, int]], first: First, now: int) -> First | None:
    """Make the records of a message unless another was first, which is returned then. With the lock held.

    Records with the same tag are its own: whoever finishes for another makes only what is missing.
    """
    found = [_read(path, now) for path, _ in records]
    for other in found:
        if other is not None and other.tag != first.tag:
            return other
    made: list[str] = []
    try:
        for (path, expires), own in zip(records, found, strict=True):
            if own is not None:
                continue
            with suppress(FileNotFoundError):
                os.unlink(path)
            os.symlink("~".join(filter(None, (f"{expires:x}", *first))), path)
            made.append(path)
    except OSError:
        release(made)
        raise
    return None


def own_of(records: list[tuple[str, int]], tag: str) -> list[str]:
    """Return the paths of those records that this act of publishing made."""
    return [path for path, _ in records if (found := _read(path, 0)) is not None and found.tag == tag]


def forget(records: list[tuple[str, int]], id: str) -> set[str]:
    """Remove the records that an earlier message of this id has left, if none is on its way; return their tags.

    With the lock held.
    """
    found = {path: first for path, _ in records if (first := _read(path, 0)) is not None and first.id == id}
    tags = {first.tag for first in found.values()}
    by_id = [path for path in found if _kind(path) == _BY_ID]
    if any(map(os.path.lexists, by_id)) and not all(tag.startswith(CARRIED) for tag in tags):
        return set()  # it was published here, and is not seen yet
    release([*found, *map(_gone, by_id)])
    return tags


def free_of(records: list[tuple[str, int]], now: int) -> list[tuple[str, int]]:
    """Return the records that nobody has, and those for ids."""
    return [record for record in records if record not in keys_of(records) or _read(record[0], now) is None]


def release(paths: list[str]) -> None:
    """Remove records."""
    for path in paths:
        with suppress(FileNotFoundError):
            os.unlink(path)


def over(spool: Spool, names: list[str], now: int) -> list[str]:
    """Return the paths of the records among these whose window is over."""
    paths = [f"{spool.dedup}/{name}" for name in names if name.startswith((_BY_KEY, _GONE))]
    return [path for path in paths if _read(path, now) is None]


def sweep(spool: Spool, names: list[str], now: int) -> int:
    """Remove the records among these whose window is over. Takes the lock only to remove."""
    if not over(spool, names, now):
        return 0
    with spool:
        found = over(spool, names, now)
        release(found)
    return len(found)


def _path(spool: Spool, kind: str, key: str) -> str:
    return f"{spool.dedup}/{kind}{hashlib.sha256(key.encode()).hexdigest()}"


def _read(path: str, now: int) -> First | None:
    kind = _kind(path)
    try:
        expires, id, tag, *stem = os.readlink(path).split("~")
        ends = int(expires, 16)
    except (OSError, ValueError):  # none, or one that somebody else made
        return _read(_gone(path), now) if kind == _BY_ID else None
    return First(id, tag, *stem[:1]) if kind == _BY_ID or ends > now else None


def _kind(path: str) -> str:
    return os.path.basename(path)[0]


def _gone(path: str) -> str:
    folder, name = os.path.split(path)
    return f"{folder}/{_GONE}{name[1:]}"
