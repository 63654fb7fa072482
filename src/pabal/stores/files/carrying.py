"""Taking in messages from another store as they stood there: state, attempts, due time and failure.

A message goes the way of a published one, `tmp` first, with the name that its state has. The tag of its records tells
that it is carried: nobody but who carries it again finishes what a crash left, since only that one knows its state.

Only a message of the same id keeps one out. A dedup key that another has stays with that other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from pabal import jsontext
from pabal.errors import StoreRefused
from pabal.ids import is_ours
from pabal.message import Message
from pabal.names import check_id, check_name
from pabal.store import Draft, Entry, State, Terms
from pabal.stores.files import dedup
from pabal.stores.files.locks import FileLock
from pabal.stores.files.names import ID_PLACE, ceiled, native_base
from pabal.stores.files.parcels import Parcel
from pabal.stores.files.publishing import send
from pabal.stores.files.reading import why_path
from pabal.stores.files.root import Root
from pabal.stores.files.spool import Spool

_TOKEN = "moved"  # in the place of the token of a last lease


class Carried(Parcel):
    """One entry on its way to the directory of its state."""

    __slots__ = ("ending", "entry")

    def __init__(self, root: Root, queue: str, entry: Entry, window: float) -> None:
        self.entry = entry
        ended = entry.state in (State.DONE, State.DEAD)
        retried = f"~k{_TOKEN}" if entry.attempt or entry.failure else ""  # whoever leases it looks for the reason
        self.ending = f"~s{root.now():x}.{_TOKEN}" if ended else retried
        message = entry.message or Message(id=check_id(entry.id), body=None)
        draft = Draft(queue, message, given_id=not is_ours(entry.id), terms=Terms(dedup_window=window))
        super().__init__(root, draft, root.codec.encode(message, queue=queue), root.clock.now())
        self.state = entry.state
        self.tag = dedup.CARRIED + self.tag[1:]
        self.path = f"{self.spool.tmp}/{self.tag}~{self.final}"

    def name(self, root: Root, stamp: int) -> str:
        entry, message = self.entry, self.draft.message
        ended = entry.state in (State.DONE, State.DEAD)
        place = 0 if ended else stamp  # who has left a group has no place in its order
        base = native_base(message, entry.id, ceiled(entry.due_at), stamp=place, crc=self.crc, own=True)
        moving = f"~a{entry.attempt}{self.ending}" if self.ending else ""
        return f"{base}{moving}{root.names.extension}"

    def write_reason(self, root: Root) -> None:
        """Put the failure where it stands for a message in this state."""
        if self.entry.failure is not None:
            draft = f"{self.spool.tmp}/{dedup.new_tag()}~why"
            root.write_spare(draft, jsontext.pretty(self.entry.failure), synced=True)
            os.rename(draft, self._why(root))

    def _why(self, root: Root) -> str:
        if self.state in (State.DONE, State.DEAD):
            return f"{self.spool.dirs[self.state]}/{os.path.basename(self.path).partition('~')[2]}.why"
        return why_path(self.spool, self.id)


def carry(root: Root, queue: str, entries: Sequence[Entry], window: float) -> list[str]:
    """Store the entries that are not there yet; return the ids of these."""
    if not root.names.native:
        raise StoreRefused("only a spool with native names takes in messages from another store")
    check_name(queue)
    parcels = [Carried(root, queue, entry, window) for entry in entries]
    if not parcels:
        return []
    alone = FileLock(f"{parcels[0].spool.private}/.carrying")  # two that carry the same would both find it missing
    try:
        with alone:
            return _carry(root, parcels)
    finally:
        alone.close()


def _carry(root: Root, parcels: Sequence[Carried]) -> list[str]:
    spool = parcels[0].spool
    here = _ids_in(spool)
    fresh = [parcel for parcel in parcels if parcel.id not in here]
    _make_way(root, fresh)
    for parcel in fresh:
        parcel.write_reason(root)
    if fresh:
        send(root, fresh)
    # Also for those that were there: who carried them may have died before the flush.
    spool.sync([*(spool.dirs[parcel.state] for parcel in parcels), spool.why])
    return [parcel.id for parcel in fresh if parcel.first is None]


def _ids_in(spool: Spool) -> set[str]:
    """Return the ids of all messages here, read from their names in one go: looking for each would take its square."""
    names = [name for _ in range(2) for path in spool.dirs.values() for name in os.listdir(path)]  # twice: some move
    # A reason without its message is what a crash left: the message is not here.
    return {name[ID_PLACE:].partition("~")[0] for name in names if not name.endswith(".why")}


def _make_way(root: Root, parcels: Sequence[Carried]) -> None:
    """Remove what earlier messages of these ids have left, and ask for no key that another has."""
    keys: set[str] = set()
    for parcel in parcels:
        with parcel.spool:
            _clear(parcel.spool, dedup.forget(parcel.records, parcel.id))
            free = dedup.free_of(parcel.records, root.now())
        parcel.records = [record for record in free if record[0] not in keys]
        keys.update(path for path, _ in parcel.records)


def _clear(spool: Spool, tags: set[str]) -> None:
    """Remove what somebody left who died while carrying the same message."""
    carried = tuple(f"{tag}~" for tag in tags if tag.startswith(dedup.CARRIED))
    for name in os.listdir(spool.tmp) if carried else ():
        if name.startswith(carried):
            with suppress(FileNotFoundError):
                os.unlink(f"{spool.tmp}/{name}")
