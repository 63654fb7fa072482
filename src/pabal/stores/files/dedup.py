"""Deduplication: one record per dedup key, per unique key and per given id, a symlink with the text
`<expires ms>~<id>~<tag>[~<stem>]`.

The record of a dedup key counts until it expires. The record of a unique key counts as long as its message waits or is
in flight. The record of an id counts as long as its message exists, and then until it expires. A record that expires
later than any window is damaged, and counts as expired. The tag names one publish. The message lies in
`tmp/<tag>~<name>` from before its record is made until after the record is durable: so a process that finds a record
whose message is still there can finish that publish.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from pabal.filesystem import remove
from pabal.names import check_id
from pabal.policy.policy import LONGEST_WINDOW
from pabal.store import Draft, Terms
from pabal.stores.files.names import ceil_ms
from pabal.stores.files.queue_directory import QueueDirectory

_BY_KEY, _BY_ID, _UNIQUE, _GONE = (
    "k",
    "i",
    "u",
    "g",
)  # the first letter of a record's name; gone: the message of the id was purged
_LONGEST = ceil_ms(LONGEST_WINDOW + 86400)  # and what a clock may be set back
CARRIED = "m"  # the first letter of the tag of a message from another store; other tags are hexadecimal

Record = tuple[str, int]  # the path of a record, and when it expires


class First(NamedTuple):
    """The message that a record stands for, the tag of its publish, and the hash of its plain name if it has one."""

    id: str
    tag: str
    stem: str = ""


Alive: TypeAlias = Callable[[First], bool]  # says whether a message waits, is in flight, or is being published


def records_of(queue: QueueDirectory, draft: Draft, now: float) -> list[Record]:
    """Return the records that a draft needs."""
    found, expires = [], ceil_ms(now + draft.terms.dedup_window)
    if draft.message.dedup_key:
        found.append((_path(queue, _BY_KEY, draft.message.dedup_key), expires))
    if draft.message.unique and draft.failure is None:
        found.append((_path(queue, _UNIQUE, draft.message.unique), expires))
    if draft.given_id:
        found.append((_path(queue, _BY_ID, draft.message.id), expires))
    return found


def keys_of(records: list[Record]) -> list[Record]:
    """Return those records that are for keys, not for the id."""
    return [record for record in records if _kind(record[0]) != _BY_ID]


def without_unique(records: list[Record]) -> list[Record]:
    """Return those records that are not for a unique key: for a message that is done or dead."""
    return [record for record in records if _kind(record[0]) != _UNIQUE]


def claim_id(queue: QueueDirectory, first: First, at: float) -> bool:
    """Make the record of an id for a plain name; False if another name has it. With the lock held."""
    record = _path(queue, _BY_ID, first.id), ceil_ms(at + Terms().dedup_window)
    found = claim([record], first, ceil_ms(at), lambda other: True)
    return found is None or found.stem == first.stem


def is_known(queue: QueueDirectory, id: str) -> bool:
    """Say whether an id has a record of a message that was not purged."""
    return os.path.lexists(_path(queue, _BY_ID, id))


def forget_id(queue: QueueDirectory, id: str, stem: str = "") -> None:
    """Note that the message of an id is about to be removed: from now on its record expires.

    Unless that is the record of a file with a plain name of another stem: then a dropped copy is removed.
    """
    path = _path(queue, _BY_ID, id)
    first = _read(path, 0) if stem else None
    if first is None or first.stem in ("", stem):
        with suppress(FileNotFoundError):
            os.rename(path, _path(queue, _GONE, id))


def first_of(records: list[Record], now: int, alive: Alive) -> First | None:
    """Return the message that one of these records stands for, if that record still counts."""
    return next((found for path, _ in records if (found := _counting(path, now, alive)) is not None), None)


def claim(records: list[Record], first: First, now: int, alive: Alive) -> First | None:
    """Make the records of a message, unless another message was first: return that one. With the lock held.

    Records with the same tag are its own: a process that finishes the publish of another makes only the missing ones.
    """
    found = [_counting(path, now, alive, first.tag) for path, _ in records]
    for other in found:
        if other is not None and other.tag != first.tag:
            return other
    made: list[str] = []
    try:
        for (path, expires), own in zip(records, found, strict=True):
            if own is not None:
                continue
            remove(path)
            os.symlink("~".join(filter(None, (f"{expires:x}", *first))), path)
            made.append(path)
    except OSError:
        remove(*made)
        raise
    return None


def adopt(records: list[Record], first: First, now: int, exists: Callable[[First], bool], alive: Alive) -> First | None:
    """Make the records of a file that was found among the waiting ones; return the other message if it is a duplicate.

    A record that is another's counts only if that message is remembered as done or still `exists`. Otherwise the record
    was made for this very file, which came under another name since. With the lock held.
    """
    own: list[str] = []
    for path, _ in records:
        other = _counting(path, now, alive, first.tag)
        if other is not None and other.tag != first.tag:
            if _kind(path) == _UNIQUE or _is_gone(path, other) or exists(other):
                return other
            own.append(path)
    remove(*own)
    return claim(records, first, now, alive)


def own_of(records: list[Record], tag: str) -> list[str]:
    """Return the paths of the records that the publish with this tag made."""
    return [path for path, _ in records if (found := _read(path, 0)) is not None and found.tag == tag]


def forget(records: list[Record], id: str) -> set[str]:
    """Remove the records of an earlier message of this id, unless it is being published; return their tags.

    With the lock held.
    """
    found = {path: first for path, _ in records if (first := _read(path, 0)) is not None and first.id == id}
    tags = {first.tag for first in found.values()}
    by_id = [path for path in found if _kind(path) == _BY_ID]
    if any(map(os.path.lexists, by_id)) and not all(tag.startswith(CARRIED) for tag in tags):
        return set()  # it was published here, and cannot be seen yet
    remove(*found, *map(_gone, by_id))
    return tags


def free_of(records: list[Record], now: int, alive: Alive) -> list[Record]:
    """Return the records for ids, and those for keys that no message has."""
    return [record for record in records if _kind(record[0]) == _BY_ID or _counting(record[0], now, alive) is None]


def expired(queue: QueueDirectory, names: list[str], now: int, alive: Alive) -> list[str]:
    """Return the paths of those of the named records that have expired."""
    paths = [f"{queue.dedup}/{name}" for name in names if name.startswith((_BY_KEY, _UNIQUE, _GONE))]
    return [path for path in paths if _counting(path, now, alive) is None and not _is_young(path, now)]


def _is_young(path: str, now: int) -> bool:
    """Say whether the record of a unique key is inside its window: it may be used again soon."""
    with suppress(ValueError):
        return _kind(path) == _UNIQUE and now < _expiry(path) <= now + _LONGEST
    return False


def damaged(queue: QueueDirectory, names: list[str], now: int) -> list[str]:
    """Return those of the named records that end later than any window, or cannot be read: they do not count."""
    timed = (name for name in names if name.startswith((_BY_KEY, _GONE)))
    return [name for name in timed if _is_damaged(f"{queue.dedup}/{name}", now)]


def _is_damaged(path: str, now: int) -> bool:
    try:
        return _expiry(path) > now + _LONGEST
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True


def sweep(queue: QueueDirectory, names: list[str], now: int, look: Callable[[], Alive]) -> int:
    """Remove those of the named records that have expired. The lock is taken only to remove.

    `look` returns which messages are alive at this moment.
    """
    if not expired(queue, names, now, look()):
        return 0
    with queue:
        found = expired(queue, names, now, look())
        remove(*found)
    return len(found)


def forget_all(queue: QueueDirectory, tags: set[str]) -> None:
    """Remove the records of all messages but those that are published under these tags. With the lock held."""
    for name in os.listdir(queue.dedup):
        path = f"{queue.dedup}/{name}"
        if not name.startswith(".") and ((first := _read(path, 0)) is None or first.tag not in tags):
            remove(path)


def _path(queue: QueueDirectory, kind: str, key: str) -> str:
    return f"{queue.dedup}/{kind}{_hash(key)}"


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _counting(path: str, now: int, alive: Alive, tag: str = "") -> First | None:
    """Return the message of a record that still counts; one with this tag is that of the caller."""
    found = _read(path, now)
    if found is None or _kind(path) != _UNIQUE or found.tag == tag or alive(found):
        return found
    return None


def _read(path: str, now: int) -> First | None:
    kind = _kind(path)
    try:
        expires, id, tag, *stem = os.readlink(path).split("~")
        check_id(id)
        ends = int(expires, 16)
        if now and kind in (_BY_KEY, _GONE) and ends > now + _LONGEST:
            raise ValueError
    except (OSError, ValueError):  # missing, damaged, or made by another program
        return _read(_gone(path), now) if kind == _BY_ID else None
    return First(id, tag, *stem[:1]) if kind in (_BY_ID, _UNIQUE) or ends > now else None


def _expiry(path: str) -> int:
    return int(os.readlink(path).partition("~")[0], 16)


def _is_gone(path: str, first: First) -> bool:
    """Say whether the message of a record is remembered as done: its file was removed."""
    by_id = f"{os.path.dirname(path)}/{_BY_ID}{_hash(first.id)}"
    return not os.path.lexists(by_id) and os.path.lexists(_gone(by_id))


def _kind(path: str) -> str:
    return os.path.basename(path)[0]


def _gone(path: str) -> str:
    folder, name = os.path.split(path)
    return f"{folder}/{_GONE}{name[1:]}"
