"""Carry messages over from another store with their state, attempts, due time and failure.

A carried message is published like any other, through `tmp`, with the name of its state. The tag of its records marks
it as carried: after a crash only a process that carries it again finishes it, since no other knows its state. Only a
message of the same id keeps it out. A dedup key that another message has stays with that message.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence, Set

from pabal.errors import StoreRefused
from pabal.filesystem import locked
from pabal.ids import is_ours, new_token
from pabal.message import Message
from pabal.names import check_id, check_name
from pabal.store import Draft, Entry, State, Terms
from pabal.stores.files import dedup
from pabal.stores.files.names import ID_PLACE, ceil_ms, native_base
from pabal.stores.files.publish import EncodedDraft, discard, publish
from pabal.stores.files.queue_directory import QueueDirectory
from pabal.stores.files.read import LiveMessages
from pabal.stores.files.root import Carried, Root

_TOKEN = "moved"  # in the place of the token of the last lease
_MARK_BYTES = 64  # more than a mark has


class CarriedEntry(EncodedDraft):
    """An entry of another store as a file: with the state and the name that it had there."""

    def __init__(self, root: Root, queue: str, entry: Entry, window: float) -> None:
        message = entry.message or Message(id=check_id(entry.id), body=None)
        draft = Draft(queue, message, given_id=not is_ours(entry.id), terms=Terms(dedup_window=window))
        super().__init__(root, draft, root.codec.encode(message, queue=queue), root.clock.now())
        self.state, self.failure = entry.state, entry.failure
        marks = ""
        if entry.state in (State.DONE, State.DEAD):
            marks = f"~a{entry.attempt}~s{root.now():x}.{_TOKEN}"
            self.records = dedup.without_unique(self.records)
        elif entry.attempt or entry.failure:
            marks = f"~a{entry.attempt}~k{_TOKEN}"  # its next consumer looks for the reason
        base = native_base(message, entry.id, ceil_ms(entry.due_at), stamp=0, crc=self.crc, own=True)
        self.final = f"{base}{marks}{root.names.extension}"
        self.tag = dedup.CARRIED + self.tag[1:]
        self.path = f"{self.queue.tmp}/{self.tag}~{self.final}"


def carry(root: Root, name: str, entries: Sequence[Entry], window: float) -> list[str]:
    """Store the entries that are not there yet; return their ids."""
    if not root.names.native:
        raise StoreRefused("only a file store with native names takes messages from another store")
    check_name(name)
    carried = [CarriedEntry(root, name, entry, window) for entry in entries]
    if not carried:
        return []
    queue = carried[0].queue
    path = f"{queue.private}/.carrying"
    with locked(path) as fd:  # two processes that carry the same would both find it missing
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise IsADirectoryError(errno.EISDIR, "not a plain file", path)
        here = _here(root, queue, fd, {each.id for each in carried})
        fresh = [each for each in carried if each.id not in here]
        here.update(each.id for each in fresh)
        _make_way(root, fresh)
        if fresh:
            publish(root, fresh)
        # Also for those that were there: the process that carried them may have died before the flush.
        queue.sync([*(queue.dirs[each.state] for each in carried), queue.why])
        return [each.id for each in fresh if each.first is None]


def _here(root: Root, queue: QueueDirectory, fd: int, ids: Set[str]) -> set[str]:
    """Return the ids of all messages of a queue, by the listing of an earlier batch if that is sure to show these ids.

    It is if no other handle has carried since, which would have left its mark in the lock file, and if none of these
    ids was there then or has a record by now, as a message that was published with its id has.
    """
    last = root.carried
    if last is not None and last.queue is queue and os.pread(fd, _MARK_BYTES, 0) == last.mark:
        if last.ids.isdisjoint(ids) and not any(dedup.is_known(queue, id) for id in ids):
            return last.ids
    mark = new_token().encode()
    os.pwrite(fd, mark, 0)
    root.carried = Carried(queue, mark, _ids_in(queue))
    return root.carried.ids


def _ids_in(queue: QueueDirectory) -> set[str]:
    """Return the ids of all messages of a queue, from their names: to look for each would list as often."""
    names = [name for _ in range(2) for path in queue.dirs.values() for name in os.listdir(path)]  # twice: some move
    # A reason without its message was left by a crash: that message is not here.
    return {name[ID_PLACE:].partition("~")[0] for name in names if not name.endswith(".why")}


def _make_way(root: Root, carried: Sequence[CarriedEntry]) -> None:
    """Remove the records of earlier messages of these ids, and claim no key that another message has."""
    keys: set[str] = set()
    for each in carried:
        with each.queue:
            tags = dedup.forget(each.records, each.id)
            # A process that died while it carried the same message has left it in `tmp`.
            left = tuple(f"{tag}~" for tag in tags if tag.startswith(dedup.CARRIED))
            if left:
                discard(f"{each.queue.tmp}/{name}" for name in os.listdir(each.queue.tmp) if name.startswith(left))
            free = dedup.free_of(each.records, root.now(), LiveMessages(root, each.queue))
        each.records = [record for record in free if record[0] not in keys]
        keys.update(path for path, _ in each.records)
