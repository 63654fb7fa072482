"""Where is it: look for one message by its id, or for the lease that a token holds, in the directories themselves."""

from __future__ import annotations

import os
from collections.abc import Iterator

from pabal.store import Receipt, State
from pabal.stores.files.groups import Order
from pabal.stores.files.names import Slot, tokened
from pabal.stores.files.reading import learn
from pabal.stores.files.root import Root
from pabal.stores.files.spool import Held, Spool

# In the order in which messages move, so that one on its way is not missed.
_SEARCHED = (State.READY, State.DELAYED, State.INFLIGHT, State.DEAD, State.DONE, State.CORRUPT)


def order_in(root: Root, spool: Spool, directory: str, name: str, slot: Slot) -> Order | None:
    """Return the order of a file; plain ones are read if they are not yet known."""
    if root.names.native:
        return slot
    known = spool.listing.orders.of(slot) if spool.listing is not None else None
    if known is not None and not slot.settled:  # what is over may have had the name of one that is not
        return known
    return learn(root, spool, directory, name, slot)


def slots_in(root: Root, spool: Spool, state: State) -> Iterator[tuple[str, Slot]]:
    """Go through the files of a state that carry the store's marks, as (name, slot)."""
    for name in os.listdir(spool.dirs[state]):
        slot = root.names.parse(name)
        if slot is not None and _belongs(state, slot):
            yield name, slot


def _belongs(state: State, slot: Slot) -> bool:
    # An application may keep files of its own in the directories of a plain layout.
    if state is State.INFLIGHT:
        return slot.leased
    return slot.settled > 0 if state in (State.DONE, State.DEAD) else not slot.leased


def locate(root: Root, spool: Spool, id: str) -> tuple[State, str, Slot | None] | None:
    """Find a message by id: the state of its directory, its name there, and the slot if the name is ours."""
    for _ in range(2):  # one that was moved back while we looked is met the second time
        for state in _SEARCHED:
            found = _find_in(root, spool, state, id)
            if found is not None:
                return (state, *found)
    return None


def _find_in(root: Root, spool: Spool, state: State, id: str) -> tuple[str, Slot | None] | None:
    directory = spool.dirs[state]
    for name in os.listdir(directory):
        if root.names.native and not name.startswith(id, 18) and name != id:
            continue
        slot = root.names.parse(name)
        if state is State.CORRUPT:
            if (slot.id if slot is not None else name) == id and not name.endswith(".why"):
                return name, slot
        elif (
            slot is not None and _belongs(state, slot) and (directory not in spool.waiting or root.layout.admits(name))
        ):
            order = order_in(root, spool, directory, name, slot)
            if order is not None and order.id == id:
                return name, slot
    return None


def find_lease(root: Root, spool: Spool, receipt: Receipt) -> Held | None:
    """Find the file that a receipt holds, whatever its lease was extended to."""
    found = _find_by_token(root, spool, State.INFLIGHT, receipt)
    return None if found is None else Held(*found, found[1].attempt)


def find_settled(root: Root, spool: Spool, receipt: Receipt, states: tuple[State, ...]) -> bool:
    """Say whether the last lease of a message in one of these states was that of the receipt."""
    return any(_find_by_token(root, spool, state, receipt) is not None for state in states)


def _find_by_token(root: Root, spool: Spool, state: State, receipt: Receipt) -> tuple[str, Slot] | None:
    token, directory = tokened(receipt.token), spool.dirs[state]
    for name in os.listdir(directory):
        if token not in name or name.endswith(".why"):
            continue
        slot = root.names.parse(name)
        if slot is None or slot.token != token or not _belongs(state, slot):
            continue
        order = order_in(root, spool, directory, name, slot)
        if order is not None and order.id == receipt.id:
            return name, slot
    return None
