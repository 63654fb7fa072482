"""Publish: write whole into `tmp`, flush, claim keys and ids, flush, rename, flush.

No flush happens under the lock, except where a limit on what waits must hold too. A record is durable before its
message can be seen, and the message lies in `tmp`, also durable, before the record is made: a crash in between leaves
something that the next publisher of that key finishes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress

from pabal.errors import QueueFull, StoreClosed, Uncertain
from pabal.ids import is_ours
from pabal.store import Draft, Published, State
from pabal.stores.files import dedup
from pabal.stores.files.calls import rename_new
from pabal.stores.files.dedup import First
from pabal.stores.files.finding import locate
from pabal.stores.files.leasing import listing_of
from pabal.stores.files.parcels import Parcel, discard, pack, stage
from pabal.stores.files.root import Root
from pabal.stores.files.spool import Spool

_REMEMBERED = 10_000  # ids published of late


def publish(root: Root, drafts: Sequence[Draft]) -> list[Published]:
    """Store the drafts; see the contract."""
    return send(root, pack(root, drafts))


def send(root: Root, parcels: Sequence[Parcel]) -> list[Published]:
    """Bring parcels to their directories, durably, and say for each whether it was there already."""
    parcels = list(parcels)
    _look_for_first(root, parcels)
    fresh = [parcel for parcel in parcels if parcel.first is None]
    limited = any(parcel.draft.terms.max_waiting for parcel in fresh)
    if limited:
        _check_room(root, fresh)
    stage(fresh)
    try:
        with _room_kept(root, parcels) if limited else nullcontext():
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
    suspect = is_ours(parcel.id) if parcel.draft.given_id else parcel.id in parcel.spool.published
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
    """Hold the locks from the last count until the messages can be seen."""
    fresh = [parcel for parcel in parcels if parcel.first is None]
    with ExitStack() as locks:
        # All of them, in one order: whoever holds two at once does so here.
        for spool in sorted({parcel.spool for parcel in parcels}, key=lambda spool: spool.name):
            locks.enter_context(spool)
        try:
            _check_room(root, fresh)
        except BaseException:
            discard(parcel.path for parcel in fresh)
            raise
        return locks.pop_all()


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


def _by_queue(parcels: list[Parcel]) -> dict[Spool, list[Parcel]]:
    found: dict[Spool, list[Parcel]] = {}
    for parcel in parcels:
        found.setdefault(parcel.spool, []).append(parcel)
    return found


def _reveal(root: Root, parcels: list[Parcel]) -> None:
    for spool, some in _by_queue(parcels).items():
        if any(parcel.records for parcel in some):
            spool.sync([spool.dedup])
        fresh = [parcel for parcel in some if parcel.first is None]
        if len(fresh) < len(some):
            others = {parcel.first.tag for parcel in some if parcel.first} - {parcel.tag for parcel in fresh}
            if others:
                rescue(root, spool, others)
        _move(root, spool, fresh)


def _flush(root: Root, parcels: list[Parcel]) -> None:
    for spool, some in _by_queue(parcels).items():
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
    target = f"{parcel.spool.dirs[parcel.state]}/{parcel.name(root, stamp) if stamp else parcel.final}"
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
        if slot is None or mark not in tags or mark.startswith(dedup.CARRIED):
            continue  # of a carried message only who carries it knows the state
        with spool:
            state = State.DELAYED if slot.due > root.now() else State.READY
            if slot.group:
                final = root.names.stamped(slot, spool.next_stamp(root.clock.now()))
            with suppress(FileNotFoundError, FileExistsError):
                rename_new(f"{spool.tmp}/{name}", f"{spool.dirs[state]}/{final}")
