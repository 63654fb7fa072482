"""Settle many with follow-ups at once: a folder for each, as in `follow_ups`, made and finished with shared flushes.

What lies on the disk at any moment is what settling one by one could have left, so whoever meets a folder can finish
it. What cannot be settled so, because its lease has another name by now, is left to be settled alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple, TypeAlias

from pabal import durable, jsontext
from pabal.store import Outcome, Receipt, Settlement
from pabal.stores.files import follow_ups
from pabal.stores.files.follow_ups import INPUT, PLAN, Plan
from pabal.stores.files.parcels import Parcel
from pabal.stores.files.publishing import made_here
from pabal.stores.files.restating import restate_all
from pabal.stores.files.root import Root
from pabal.stores.files.settling import Move, find_move, tidy
from pabal.stores.files.spool import Spool

_OPEN = 300  # files at a time: of each settlement its folder, its plan and what follows from it

_Item: TypeAlias = tuple[Settlement, Sequence[Parcel]]


class _Case(NamedTuple):
    settlement: Settlement
    move: Move
    folder: str
    plan: Plan
    parcels: Sequence[Parcel]


def settle_all(root: Root, spool: Spool, items: Sequence[_Item]) -> list[Outcome]:
    """Apply verdicts with follow-ups to messages of one queue."""
    outcomes: list[Outcome] = []
    for chunk in _chunks(items):
        done = _settle_chunk(root, spool, chunk)
        for settlement, parcels in chunk:
            if settlement.receipt in done:
                done.remove(settlement.receipt)  # the same receipt again in one call is a repetition
                outcomes.append(Outcome.APPLIED)
            else:
                outcomes.append(follow_ups.settle_with(root, spool, settlement, parcels))
    return outcomes


def _chunks(items: Sequence[_Item]) -> Iterator[list[_Item]]:
    """Take as many at a time as may have their files open together; one alone has its own way if these are more."""
    chunk: list[_Item] = []
    files = 0
    for item in items:
        needed = len(item[1]) + 2
        if chunk and files + needed > _OPEN:
            yield chunk
            chunk, files = [], 0
        chunk.append(item)
        files += needed
    yield chunk


def _settle_chunk(root: Root, spool: Spool, items: Sequence[_Item]) -> set[Receipt]:
    """Settle what can be settled together; return the receipts."""
    plain: dict[Receipt, _Item] = {}
    for item in items:
        if item[0].verdict.failure is None:
            plain.setdefault(item[0].receipt, item)
    cases = [case for item in plain.values() if (case := _case(root, spool, *item)) is not None]
    if len(cases) < 2:
        return set()
    if root.layout.mirror:
        root.spare(partial(restate_all, root, spool, [(case.move.held.name, case.move.state) for case in cases]))
    with ExitStack() as opened:
        fds = root.spare(lambda: _stage(root, cases, opened))
        with spool:
            committed = [case for case in cases if _commit(root, spool, case)]
        durable.sync_all([fds[case.folder] for case in committed])
    root.spare(lambda: follow_ups.complete(root, [(case.folder, case.plan) for case in committed]))
    for case in committed:
        tidy(root, spool, case.settlement, case.move, applied=True)
    settled = {case.settlement.receipt for case in committed}
    for case in cases:
        if case.settlement.receipt not in settled:
            follow_ups.remove(case.folder)
    return settled


def _case(root: Root, spool: Spool, settlement: Settlement, parcels: Sequence[Parcel]) -> _Case | None:
    move = find_move(root, spool, settlement)
    if move is None:
        return None
    fresh = [parcel for parcel in parcels if made_here(root, parcel) is None]
    folder = follow_ups.folder_of(root, settlement.receipt)
    for number, parcel in enumerate(fresh):
        parcel.path = f"{folder}/{number}~{parcel.final}"
    return _Case(settlement, move, folder, follow_ups.plan_of(spool.name, move, fresh), fresh)


def _stage(root: Root, cases: Sequence[_Case], opened: ExitStack) -> dict[str, int]:
    """Make the folders with all that belongs in them, durably; return a descriptor of each, open until the end."""
    folders: dict[str, int] = {}
    now = root.clock.now()
    with ExitStack() as written:
        fds: list[int] = []
        for case in cases:
            _make(case.folder)
            files = [(parcel.path, parcel.data) for parcel in case.parcels]
            for path, data in (*files, (f"{case.folder}/{PLAN}", jsontext.pretty(case.plan))):
                fds.append(durable.write_new(path, data))
                written.callback(os.close, fds[-1])
                os.utime(fds[-1], (now, now))  # from here an output waits
            os.utime(case.folder, (now, now))
            folders[case.folder] = os.open(case.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, folders[case.folder])
        durable.sync_all([*fds, *folders.values()])
    durable.sync_dir(root.settling)
    return folders


def _make(folder: str) -> None:
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:  # of an attempt that found no room
        follow_ups.remove(folder)
        os.mkdir(folder, 0o700)


def _commit(root: Root, spool: Spool, case: _Case) -> bool:
    try:
        root.move(f"{spool.inflight}/{case.move.held.name}", f"{case.folder}/{INPUT}")
    except FileNotFoundError:
        return False
    return True
