"""Publish: write whole into `tmp`, flush, claim keys and ids, flush, rename, flush.

No flush happens under the lock, except where a limit on what waits must hold too. A record is durable before its
message can be seen, and the message lies in `tmp`, also durable, before the record is made: a crash in between leaves
something that the next publisher of that key finishes.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress

from pabal import durable
from pabal.codec import Restatable
from pabal.errors import QueueFull, StoreClosed, TooLarge, Uncertain
from pabal.names import check_id
from pabal.store import Draft, Published, State
from pabal.stores.files import dedup
from pabal.stores.files.calls import rename_new, start_writing
from pabal.stores.files.dedup import First
from pabal.stores.files.finding import locate
from pabal.stores.files.leasing import listing_of
from pabal.stores.files.names import ceiled, digest, floored, native_base, plain_stem
from pabal.stores.files.spool import Root, Spool

_CHUNK = 200  # files written and flushed together, each with an open descriptor
_REMEMBERED = 10_000  # ids published of late
_GENERATED = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


class Parcel:
    """One draft on its way to its directory."""

    __slots__ = (
        "crc",
        "data",
        "draft",
        "due",
        "first",
        "id",
        "now",
        "path",
        "records",
        "spool",
        "state",
        "stem",
        "tag",
    )

    def __init__(self, root: Root, draft: Draft, data: bytes, now: float) -> None:
        self.draft, self.data, self.id = draft, data, draft.message.id
        self.spool = root.make(draft.queue)
        self.now, self.due = now, ceiled(now + draft.delay) if draft.delay > 0 else floored(now)
        self.state = State.DELAYED if draft.delay > 0 else State.READY
        if root.layout.mirror and isinstance(root.codec, Restatable):
            self.data = root.codec.restate(data, self.state, at=now)
        self.crc = zlib.crc32(self.data)
        self.records = dedup.records_of(self.spool, draft, now)
        self.first: First | None = None
        self.stem = "" if root.names.native else plain_stem(root.layout.stem(draft.message))
        self.tag = dedup.new_tag()
        self.path = f"{self.spool.tmp}/{self.tag}~{self.name(root, 0)}"

    @property
    def as_first(self) -> First:
        return First(self.id, self.tag, digest(self.stem, 10) if self.stem else "")

    def name(self, root: Root, stamp: int) -> str:
        extension = root.names.extension
        if root.names.native:
            base = native_base(self.draft.message, self.id, self.due, stamp=stamp, crc=self.crc, own=True)
            return f"{base}{extension}"
        delay = f"~a0~d{self.due:x}" if self.draft.delay > 0 else ""
        return f"{self.stem}{delay}{extension}"


def publish(root: Root, drafts: Sequence[Draft]) -> list[Published]:
    """Store the drafts; see the contract."""
    parcels = pack(root, drafts)
    _look_for_first(root, parcels)
    fresh = [parcel for parcel in parcels if parcel.first is None]
    _check_room(root, fresh)
    stage(fresh)
    try:
        with _room_kept(root, parcels):
            _claim(root, fresh)
            _sure(root, parcels, _reveal)
    except StoreClosed as exc:  # by another thread, in the middle
        raise _uncertain(parcels, exc) from exc
    _sure(root, parcels, _flush)
    _remember(fresh)
    return [Published(p.first.id, duplicate=True) if p.first else Published(p.id) for p in parcels]


def _sure(root: Root, parcels: list[Parcel], step: Callable[[Root, list[Parcel]], None]) -> None:
    try:
        step(root, parcels)
    except OSError as exc:
        raise _uncertain(parcels, root.fault(exc, "publishing")) from exc


def _uncertain(parcels: list[Parcel], why: object) -> Uncertain:
    ids = tuple(parcel.id for parcel in parcels)
    return Uncertain(f"{why}; it may have been stored: repeat with the same id", ids)


def _remember(parcels: list[Parcel]) -> None:
    for parcel in parcels:
        if not parcel.draft.given_id:
            if len(parcel.spool.published) >= _REMEMBERED:
                parcel.spool.published.clear()
            parcel.spool.published.add(parcel.id)


def pack(root: Root, drafts: Iterable[Draft]) -> list[Parcel]:
    """Encode the drafts and check what can be refused, before anything is written."""
    now = root.clock.now()
    encoded = []
    for draft in drafts:
        check_id(draft.message.id)
        data = root.codec.encode(draft.message, queue=draft.queue)
        if len(data) > draft.terms.max_bytes:
            raise TooLarge(f"{draft.terms.max_bytes} bytes at most in {draft.queue}; the document has {len(data)}")
        encoded.append((draft, data))
    return [Parcel(root, draft, data, now) for draft, data in encoded]


def _look_for_first(root: Root, parcels: list[Parcel]) -> None:
    """Find what is there already, within the batch too, without the lock: `_claim` looks again for the rest."""
    now, batch = root.now(), dict[str | tuple[Spool, str], First]()
    for parcel in parcels:
        marks: list[str | tuple[Spool, str]] = [(parcel.spool, parcel.id), *(path for path, _ in parcel.records)]
        parcel.first = next((batch[mark] for mark in marks if mark in batch), None)
        parcel.first = parcel.first or dedup.first_of(parcel.records, now) or made_here(root, parcel)
        if parcel.first is None:
            batch.update(dict.fromkeys(marks, parcel.as_first))


def made_here(root: Root, parcel: Parcel) -> First | None:
    """Find the message of an id that we made, which has no record: by name."""
    # Looked for only if it may be there: it comes back as given (after Uncertain), or this process has published it.
    suspect = _GENERATED.fullmatch(parcel.id) if parcel.draft.given_id else parcel.id in parcel.spool.published
    return First(parcel.id, "") if suspect and locate(root, parcel.spool, parcel.id) else None


def _check_room(root: Root, parcels: list[Parcel]) -> None:
    coming: dict[Spool, list[Parcel]] = {}
    for parcel in parcels:
        if parcel.draft.terms.max_waiting:
            coming.setdefault(parcel.spool, []).append(parcel)
    for spool, some in coming.items():
        most = some[0].draft.terms.max_waiting
        with spool:
            listing = listing_of(root, spool)
            listing.refresh()
            waiting = listing.count_all()
        if waiting + len(some) > most:
            raise QueueFull(
                f"{most} waiting messages at most in {spool.name}; {waiting} are there, {len(some)} more came"
            )


def _room_kept(root: Root, parcels: list[Parcel]) -> ExitStack:
    """Where a queue has a limit, hold the locks from the last count until the messages can be seen."""
    fresh = [parcel for parcel in parcels if parcel.first is None]
    with ExitStack() as locks:
        if any(parcel.draft.terms.max_waiting for parcel in fresh):
            # All of them, in one order: whoever holds two at once does so here.
            for spool in sorted({parcel.spool for parcel in parcels}, key=lambda spool: spool.name):
                locks.enter_context(spool)
            try:
                _check_room(root, fresh)
            except BaseException:
                discard(parcel.path for parcel in fresh)
                raise
        return locks.pop_all()


def stage(parcels: Sequence[Parcel]) -> None:
    """Write every parcel whole and flushed to its path; on failure none is left."""
    done: list[str] = []
    try:
        for start in range(0, len(parcels), _CHUNK):
            _write(parcels[start : start + _CHUNK], done)
    except BaseException:
        discard(done)
        raise


def _write(parcels: Sequence[Parcel], done: list[str]) -> None:
    open_files: list[int] = []
    try:
        for parcel in parcels:
            fd = durable.write_new(parcel.path, parcel.data)
            open_files.append(fd)
            done.append(parcel.path)
            os.utime(fd, (parcel.now, parcel.now))  # from here it waits
        if len(open_files) > 1:
            for fd in open_files:
                start_writing(fd)
        for fd in open_files:
            durable.sync(fd)
    finally:
        for fd in open_files:
            os.close(fd)


def discard(paths: Iterable[str]) -> None:
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


def _claim(root: Root, parcels: list[Parcel]) -> None:
    now, keyed = root.now(), [parcel for parcel in parcels if parcel.records]
    claimed: list[Parcel] = []
    try:
        for spool in dict.fromkeys(parcel.spool for parcel in keyed):
            with spool:
                for parcel in keyed:
                    if parcel.spool is spool:
                        os.lstat(parcel.path)  # a check may have taken it for a leftover: then nothing may promise it
                        parcel.first = dedup.claim(parcel.records, parcel.as_first, now)
                        claimed.append(parcel)
    except OSError:
        for parcel in claimed:
            if parcel.first is None:
                with parcel.spool:
                    dedup.release([path for path, _ in parcel.records])
        discard(parcel.path for parcel in parcels)
        raise
    discard(parcel.path for parcel in keyed if parcel.first is not None)


def _reveal(root: Root, parcels: list[Parcel]) -> None:
    for spool in dict.fromkeys(parcel.spool for parcel in parcels):
        some = [parcel for parcel in parcels if parcel.spool is spool]
        if any(parcel.records for parcel in some):
            spool.sync([spool.dedup])
        others = {parcel.first.tag for parcel in some if parcel.first} - {
            parcel.tag for parcel in some if not parcel.first
        }
        if others:
            rescue(root, spool, others)
        _move(root, spool, [parcel for parcel in some if parcel.first is None])


def _flush(root: Root, parcels: list[Parcel]) -> None:
    for spool in dict.fromkeys(parcel.spool for parcel in parcels):
        some = [parcel for parcel in parcels if parcel.spool is spool]
        # Of a duplicate too: that the first is there must be as sure as if it were ours.
        spool.sync(spool.waiting if any(p.first for p in some) else [spool.dirs[p.state] for p in some])


def _move(root: Root, spool: Spool, parcels: list[Parcel]) -> None:
    if any(parcel.draft.message.group for parcel in parcels):
        with spool:
            for parcel in parcels:
                stamp = spool.next_stamp(root.clock.now()) if parcel.draft.message.group else 0
                _move_one(root, parcel, stamp)
    else:
        for parcel in parcels:
            _move_one(root, parcel, 0)


def _move_one(root: Root, parcel: Parcel, stamp: int) -> None:
    target = f"{parcel.spool.dirs[parcel.state]}/{parcel.name(root, stamp)}"
    try:
        if root.names.native:
            os.rename(parcel.path, target)
        else:
            rename_new(parcel.path, target)
    except FileExistsError:
        parcel.first = parcel.as_first  # a plain name says which message it is
        discard([parcel.path])
    except FileNotFoundError:
        if not parcel.records or not os.path.isdir(os.path.dirname(target)):
            raise
        if locate(root, parcel.spool, parcel.id) is None:
            with parcel.spool:
                dedup.release(dedup.own_of(parcel.records, parcel.tag))
            raise
        # Else somebody with the same key was quicker to finish this for us.


def rescue(root: Root, spool: Spool, tags: set[str]) -> None:
    """Finish for publishers that have claimed their records and not yet, or never, moved their message."""
    for name in os.listdir(spool.tmp):
        mark, _, final = name.partition("~")
        slot = root.names.parse(final)
        if slot is None or mark not in tags:
            continue
        with spool:
            state = State.DELAYED if slot.due > root.now() else State.READY
            if slot.group:
                final = root.names.stamped(slot, spool.next_stamp(root.clock.now()))
            with suppress(FileNotFoundError, FileExistsError):
                rename_new(f"{spool.tmp}/{name}", f"{spool.dirs[state]}/{final}")
