"""Revive what is dead, purge what is old, sweep the dedup records: in slices, and no directory listed in vain."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from heapq import nsmallest
from itertools import islice

from pabal.store import State
from pabal.stores.files import dedup
from pabal.stores.files.browsing import corrupt_names, waiting
from pabal.stores.files.finding import order_in, slots_in
from pabal.stores.files.leasing import look
from pabal.stores.files.names import Slot, floored
from pabal.stores.files.reading import why_path
from pabal.stores.files.restating import restate
from pabal.stores.files.root import NO_ROOM, Root
from pabal.stores.files.settling import date, remove
from pabal.stores.files.spool import Spool

_REMEMBERED = 100_000  # of the oldest settled names, so that a large directory is listed rarely
_SWEEP_SLICE = 1000
_SWEEP_EVERY = 10.0  # seconds


def revive(root: Root, queue: str, ids: Sequence[str]) -> list[str]:
    """Make dead messages ready again."""
    spool = root.spool(queue)
    if spool is None:
        return []
    wanted, dead = dict.fromkeys(ids), {}
    for name, slot in slots_in(root, spool, State.DEAD):
        order = order_in(root, spool, spool.dirs[State.DEAD], name, slot)
        if order is not None and order.id in wanted:
            dead[order.id] = name, slot
    with spool:
        revived = {id: _revive_one(root, spool, *dead[id]) for id in wanted if id in dead}
    spool.sync([*spool.waiting, spool.dirs[State.DEAD]])
    if root.layout.mirror:
        for name in filter(None, revived.values()):
            restate(root, spool, spool.dirs[State.READY], name, State.READY)
    return [id for id, name in revived.items() if name]


def _revive_one(root: Root, spool: Spool, name: str, slot: Slot) -> str:
    stamp = spool.next_stamp(root.clock.now()) if slot.group else 0
    source, revived = f"{spool.dirs[State.DEAD]}/{name}", root.names.revived(slot, root.now(), stamp)
    try:
        date(root, source)
        root.move(source, f"{spool.dirs[State.READY]}/{revived}")
    except FileNotFoundError:
        return ""
    remove(f"{source}.why")
    return revived


class Purging:
    """What this process knows of the oldest settled messages of a queue's state."""

    def __init__(self) -> None:
        self.oldest: deque[tuple[int, str]] = deque()  # settled at, name
        self.none_before = 0  # nothing was settled before this instant, as of the last listing


def purge(root: Root, queue: str, state: State, age: float, limit: int, ids: Sequence[str] | None = None) -> int:
    """Remove what has been in a state for long enough."""
    spool = root.spool(queue)
    if spool is None or state is State.INFLIGHT:
        return 0
    before = root.now() - round(age * 1000)
    wanted = None if ids is None else frozenset(ids)
    if state in (State.DONE, State.DEAD):
        with spool.tending:
            if wanted is not None:
                return _purge_some(root, spool, state, before, limit, wanted)
            return _purge_settled(root, spool, state, before, limit)
    if state is State.CORRUPT:
        return _purge_corrupt(root, spool, before, limit, wanted)
    return _purge_waiting(root, spool, state, before, limit, wanted)


def _purge_some(root: Root, spool: Spool, state: State, before: int, limit: int, wanted: frozenset[str]) -> int:
    rows = [(name, slot) for name, slot in slots_in(root, spool, state) if slot.settled <= before]
    if not root.names.native:
        # A plain name is most often that of its id: others are read only for ids that are not found so.
        named = [row for row in rows if row[1].base in wanted]
        rows = named if len({slot.base for _, slot in named}) == len(wanted) else rows
    removed = 0
    for name, slot in rows:
        if removed < limit:
            order = order_in(root, spool, spool.dirs[state], name, slot)
            if order is not None and order.id in wanted:
                removed += _remove_settled(root, spool, state, name)
    return removed


def _purge_settled(root: Root, spool: Spool, state: State, before: int, limit: int) -> int:
    known = spool.purging.setdefault(state, Purging())
    if known.none_before > root.now():  # the clock was ahead: what was settled since comes before what is known
        known = spool.purging[state] = Purging()
    marker, removed = f"{spool.dedup}/.{state.value}", 0
    while removed < limit and before >= max(known.none_before, _marked(marker, root.now())):
        if not known.oldest:
            if not _list_oldest(root, spool, state, known):
                break
        while known.oldest and known.oldest[0][0] <= before and removed < limit:
            removed += _remove_settled(root, spool, state, known.oldest.popleft()[1])
        if known.oldest:
            known.none_before = known.oldest[0][0]
            if known.none_before > before or removed >= limit:
                break
    if removed:
        _mark(marker, known.none_before)
    return removed


def _list_oldest(root: Root, spool: Spool, state: State, known: Purging) -> bool:
    """List a directory for what will have to go next; False if there is nothing."""
    now = root.now()
    rows = ((slot.settled, name) for name, slot in slots_in(root, spool, state))
    known.oldest = deque(nsmallest(_REMEMBERED, rows))
    known.none_before = known.oldest[0][0] if known.oldest else now
    _mark(f"{spool.dedup}/.{state.value}", known.none_before)
    return bool(known.oldest)


def _marked(marker: str, now: int) -> int:
    """Read what the last purge, of whatever process, found: nothing was settled before this instant."""
    try:
        instant = os.stat(marker).st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return 0
    return instant if instant <= now else 0  # one to come was left before the clock stepped back


def _mark(marker: str, instant: int) -> None:
    try:
        os.close(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as exc:
        if exc.errno in NO_ROOM:
            return  # what makes room needs none
        raise
    os.utime(marker, ns=(instant * 1_000_000, instant * 1_000_000))


def _remove_settled(root: Root, spool: Spool, state: State, name: str) -> int:
    path, slot = f"{spool.dirs[state]}/{name}", root.names.parse(name)
    if slot is None or not os.path.lexists(path):
        return 0
    _remove_file(root, spool, path, slot)
    remove(f"{path}.why")
    return 1


def _remove_file(root: Root, spool: Spool, path: str, slot: Slot) -> str:
    directory, name = os.path.split(path)
    order = order_in(root, spool, directory, name, slot)
    id = order.id if order is not None else slot.id
    dedup.forget_id(spool, id)  # before the file goes: else an id that is known to nobody would be refused for ever
    remove(path)
    return id


def _purge_waiting(
    root: Root, spool: Spool, state: State, before: int, limit: int, wanted: frozenset[str] | None
) -> int:
    look(root, spool)
    removed = 0
    rows = waiting(root, spool)
    with spool:
        for cursor, path, slot, found in rows:
            if wanted is not None and cursor.split("-", 2)[2] not in wanted:
                continue
            if removed < limit and found is state and os.path.lexists(path) and _written(path) <= before:
                remove(why_path(spool, _remove_file(root, spool, path, slot)))
                removed += 1
    return removed


def _purge_corrupt(root: Root, spool: Spool, before: int, limit: int, wanted: frozenset[str] | None) -> int:
    removed = 0
    for name in corrupt_names(spool):
        path, slot = f"{spool.dirs[State.CORRUPT]}/{name}", root.names.parse(name)
        if wanted is not None and (slot.id if slot is not None else name) not in wanted:
            continue
        if removed < limit and _written(f"{path}.why") <= before:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            with suppress(OSError):
                os.unlink(path)
            if not os.path.lexists(path):
                remove(f"{path}.why")
                removed += 1
    return removed


def _written(path: str) -> int:
    try:
        return floored(os.lstat(path).st_mtime)
    except FileNotFoundError:
        return 0


def sweep_records(root: Root, spool: Spool) -> None:
    """Remove a slice of the dedup records whose window is over; one process at a time goes through them."""
    with spool.tending:
        _sweep_slice(root, spool)


def _sweep_slice(root: Root, spool: Spool) -> None:
    marker, now = f"{spool.dedup}/.swept", root.now()
    if spool.sweeping is None:
        if now - _marked(marker, now) < _SWEEP_EVERY * 1000:
            return
        _mark(marker, now)
        spool.sweeping = _names(spool.dedup)
    some = list(islice(spool.sweeping, _SWEEP_SLICE))
    if len(some) < _SWEEP_SLICE:
        spool.sweeping.close()
        spool.sweeping = None  # what is left, or all if they are few, weighs nothing
    else:
        dedup.sweep(spool, some, now)


def _names(path: str) -> Generator[str, None, None]:
    with os.scandir(path) as entries:
        for entry in entries:
            yield entry.name
