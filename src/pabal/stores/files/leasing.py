"""Lease, extend, take over, and when to look again: a lease is one rename that adds attempt, token and deadline."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from pabal.ids import new_token
from pabal.store import Lease, Outcome, Receipt, State
from pabal.stores.files.feed import Feed
from pabal.stores.files.finding import find_lease, order_in, slots_in
from pabal.stores.files.intake import PATIENCE, take_in
from pabal.stores.files.listing import Listing
from pabal.stores.files.names import Slot, booted, ceiled, digest, tokened
from pabal.stores.files.reading import UNREADABLE, learn, read_failure, read_message, set_aside, why_path
from pabal.stores.files.restating import restate
from pabal.stores.files.root import Root
from pabal.stores.files.spool import Held, Spool

JUDGING_SECONDS = 5.0  # how long who takes over a message may hold it
_LAST_DEADLINE = 16**10 - 1


def listing_of(root: Root, spool: Spool) -> Listing:
    """Return what this process knows of the waiting messages. With the lock held."""
    if spool.listing is None:
        spool.listing = Listing(root, spool, feed_of(root), partial(learn, root, spool))
    return spool.listing


def feed_of(root: Root) -> Feed:
    """Return the store's watch on its directories, made when it is first needed."""
    with root.making:
        if root.feed is None:
            root.feed = Feed()
        return root.feed


def look(root: Root, spool: Spool) -> Listing:
    """Catch up with the directories and take in what others put there."""
    with spool:
        listing = listing_of(root, spool)
        listing.refresh()
    while listing.strangers and take_in(root, spool, listing):
        with spool:
            listing.refresh()
    return listing


def lease(root: Root, queue: str, limit: int, seconds: float, consumer: str, token: str) -> list[Lease]:
    """Lease what comes next; see the contract."""
    spool = root.spool(queue)
    if spool is None:
        return []
    if token and (held := _held_by(root, spool, token)):
        return held
    token, target = token or new_token(), digest(consumer) if consumer else ""
    leases: list[Lease] = []
    met: set[str] = set()  # strangers that were looked at and stay: they are left to their writers
    while len(leases) < limit:
        with spool:
            listing = listing_of(root, spool)
            listing.refresh()
            fresh = listing.strangers.keys() - met
            taken = [] if fresh else _take(root, spool, listing, limit - len(leases), token, seconds, target)
        if fresh:
            # Where some have found their place, another file may come by the name of one of these.
            met |= fresh & listing.strangers.keys() if take_in(root, spool, listing) else fresh
            continue
        leases += _read_all(root, spool, taken, token)
        if not taken and not listing.strangers.keys() - met:
            break
    return leases


def _take(
    root: Root, spool: Spool, listing: Listing, limit: int, token: str, seconds: float, target: str
) -> list[Held]:
    taken: list[Held] = []
    term = _term(root, token, seconds)
    while len(taken) < limit:
        found = listing.pop(target)
        if found is None:
            break
        name, slot = found
        leased = root.names.leased(slot, slot.attempt + 1, term)
        while not root.names.native and os.path.lexists(f"{spool.inflight}/{leased}"):
            seconds += 0.001  # another file of this name was taken a moment ago: neither may replace the other
            leased = root.names.leased(slot, slot.attempt + 1, term := _term(root, token, seconds))
        if not _begin(root, spool, name, leased):
            listing.gone(name)
            continue
        if slot.group or not root.names.native:
            listing.leased(name, leased)
        taken.append(Held(leased, slot, slot.attempt + 1, slot.token != ""))
    return taken


def _term(root: Root, token: str, seconds: float) -> str:
    deadline = min(ceiled(root.clock.boot() + seconds), _LAST_DEADLINE)
    return f"{tokened(token)}.{booted(root.clock.boot_id)}.{deadline:x}"


def _begin(root: Root, spool: Spool, name: str, leased: str) -> bool:
    for directory in spool.waiting:
        try:
            root.move(f"{directory}/{name}", f"{spool.inflight}/{leased}")
        except FileNotFoundError:
            continue
        return True
    return False


def _read_all(root: Root, spool: Spool, taken: list[Held], token: str) -> list[Lease]:
    """Read what was taken. What cannot be read is set aside; what somebody took over by now is left out."""
    leases = []
    for held in taken:
        path = f"{spool.inflight}/{held.name}"
        try:
            message = read_message(root, path, held.slot)
        except FileNotFoundError:
            continue
        except UNREADABLE as exc:
            with spool:
                set_aside(root, spool, spool.inflight, held.name, exc)
            continue
        if root.layout.mirror and not restate(root, spool, spool.inflight, held.name, State.INFLIGHT):
            continue
        due = held.slot.due
        if not root.names.native:
            order = order_in(root, spool, spool.inflight, held.name, held.slot)
            due = order.due if order is not None else due
        id = held.slot.id if root.names.native else message.id
        spool.hold(id, token, held)
        failure = read_failure(why_path(spool, id)) if held.failed else None
        leases.append(Lease(Receipt(spool.name, id, token), message, held.attempt, due / 1000, failure))
    return leases


def _held_by(root: Root, spool: Spool, token: str) -> list[Lease]:
    mark = tokened(token)
    rows = slots_in(root, spool, State.INFLIGHT)
    held = sorted(Held(name, slot, slot.attempt) for name, slot in rows if slot.token == mark)
    leases = _read_all(root, spool, held, token)
    return leases if root.names.native else sorted(leases, key=lambda lease: lease.receipt.id)


def extend(root: Root, receipts: Sequence[Receipt], seconds: float) -> list[Outcome]:
    """Let leases end later or sooner; see the contract."""
    return [_extend_one(root, receipt, seconds) for receipt in receipts]


def _extend_one(root: Root, receipt: Receipt, seconds: float) -> Outcome:
    spool = root.spool(receipt.queue)
    if spool is None:
        return Outcome.LOST
    term = _term(root, receipt.token, seconds)
    with spool:
        held = spool.held.pop((receipt.id, receipt.token), None)
        if held is None or not os.path.lexists(f"{spool.inflight}/{held.name}"):
            held = find_lease(root, spool, receipt)
        if held is None:
            return Outcome.LOST
        longer = root.names.leased(held.slot, held.attempt, term)
        root.move(f"{spool.inflight}/{held.name}", f"{spool.inflight}/{longer}")
        spool.hold(receipt.id, receipt.token, held._replace(name=longer))
    return Outcome.APPLIED


def expired(root: Root, queue: str, limit: int) -> list[Lease]:
    """Take over what ran out; see the contract."""
    spool = root.spool(queue)
    if spool is None:
        return []
    token = new_token()
    listing = look(root, spool)
    with spool:
        listing.refresh()
        taken = _take_lapsed(root, spool, limit, token)
        taken += _take_outlived(root, spool, listing, limit - len(taken), token)
    return _read_all(root, spool, taken, token)


def _lapsed(root: Root, slot: Slot) -> bool:
    return slot.boot != booted(root.clock.boot_id) or slot.deadline <= root.boot()


def _take_lapsed(root: Root, spool: Spool, limit: int, token: str) -> list[Held]:
    taken: list[Held] = []
    term = _term(root, token, JUDGING_SECONDS)
    for name, slot in slots_in(root, spool, State.INFLIGHT):
        if len(taken) >= limit:
            break
        if _lapsed(root, slot):
            over = root.names.leased(slot, slot.attempt, term)
            with suppress(FileNotFoundError):
                root.move(f"{spool.inflight}/{name}", f"{spool.inflight}/{over}")
                taken.append(Held(over, slot, slot.attempt))
    return taken


def _take_outlived(root: Root, spool: Spool, listing: Listing, limit: int, token: str) -> list[Held]:
    taken: list[Held] = []
    now, term = root.now(), _term(root, token, JUDGING_SECONDS)
    while len(taken) < limit and (name := listing.pop_expired(now)) is not None:
        slot = root.names.parse(name)
        if slot is not None and _begin(root, spool, name, over := root.names.leased(slot, slot.attempt, term)):
            listing.leased(name, over)
            taken.append(Held(over, slot, slot.attempt))
    return taken


def next_due(root: Root, queue: str) -> float | None:
    """Say when to look again; see the contract."""
    spool = root.spool(queue)
    if spool is None:
        return None
    with spool:
        listing = listing_of(root, spool)
        listing.refresh()
        change = listing.next_change()
        leases = [slot for _, slot in slots_in(root, spool, State.INFLIGHT)]
    waits = [] if change is None else [change / 1000 - root.clock.now()]
    waits += [0.0 if _lapsed(root, slot) else slot.deadline / 1000 - root.clock.boot() for slot in leases]
    if listing.strangers:
        waits.append(PATIENCE)
    return max(0.0, min(waits)) if waits else None
