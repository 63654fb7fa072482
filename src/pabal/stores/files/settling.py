"""Settle without follow-ups: one rename out of `inflight`, its reason put in place before it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from pabal import jsontext
from pabal.store import Dead, Done, Failure, Outcome, Retry, Settlement, State, Verdict
from pabal.stores.files.dedup import new_tag
from pabal.stores.files.finding import find_lease, find_settled, locate
from pabal.stores.files.names import ceiled
from pabal.stores.files.reading import why_path
from pabal.stores.files.restating import restate
from pabal.stores.files.root import Root
from pabal.stores.files.spool import Held, Spool

_WHERE: dict[type[Verdict], tuple[State, ...]] = {
    Done: (State.DONE,),
    Dead: (State.DEAD,),
    Retry: (State.READY, State.DELAYED),
}


class Move:
    """Where a verdict takes the file that a receipt holds, and the reason that goes before it."""

    __slots__ = ("draft", "held", "id", "name", "state")

    def __init__(self, root: Root, id: str, held: Held, verdict: Verdict) -> None:
        self.id, self.held, self.draft = id, held, ""
        if type(verdict) is Retry:
            due = ceiled(root.clock.now() + verdict.delay) if verdict.delay > 0 else root.now()
            self.name = root.names.waiting(held.name, due)
            self.state = State.DELAYED if verdict.delay > 0 else State.READY
        else:
            self.name = root.names.settled(held.name, root.now())
            self.state = State.DONE if type(verdict) is Done else State.DEAD

    def why(self, spool: Spool) -> str:
        """Say where its reason stands: beside what is settled, apart from what still moves."""
        if self.state in (State.DONE, State.DEAD):
            return f"{spool.dirs[self.state]}/{self.name}.why"
        return why_path(spool, self.id)


def settle(root: Root, spool: Spool, settlements: Sequence[Settlement], *, durable: bool) -> list[Outcome]:
    """Apply verdicts without follow-ups to messages of one queue."""
    moves = [prepare(root, spool, settlement, synced=durable) for settlement in settlements]
    with spool:
        applied = [move is not None and _apply(root, spool, move) for move in moves]
    for settlement, move, done in zip(settlements, moves, applied, strict=True):
        if move is not None:
            tidy(root, spool, settlement, move, applied=done)
    if durable:
        spool.sync({spool.dirs[move.state] for move in moves if move is not None} | {spool.inflight, spool.why})
    return [
        Outcome.APPLIED if done else _settle_late(root, spool, settlement, durable, known=move is not None)
        for settlement, move, done in zip(settlements, moves, applied, strict=True)
    ]


def _settle_late(root: Root, spool: Spool, settlement: Settlement, durable: bool, *, known: bool) -> Outcome:
    # The name we knew was wrong: another process may have extended the lease.
    if known and find_lease(root, spool, settlement.receipt) is not None:
        return settle(root, spool, [settlement], durable=durable)[0]
    return settled_before(root, spool, settlement)


def find_move(root: Root, spool: Spool, settlement: Settlement) -> Move | None:
    """Find the file that a receipt holds and where its verdict takes it."""
    receipt, verdict = settlement
    held = spool.held.get((receipt.id, receipt.token)) or find_lease(root, spool, receipt)
    return None if held is None else Move(root, receipt.id, held, verdict)


def prepare(root: Root, spool: Spool, settlement: Settlement, *, synced: bool) -> Move | None:
    """Find the file and write what goes before it; None if the receipt holds nothing."""
    verdict, move = settlement.verdict, find_move(root, spool, settlement)
    if move is None:
        return None
    if verdict.failure is not None:
        move.draft = f"{spool.tmp}/{new_tag()}~why"
        root.write_spare(move.draft, jsontext.pretty(verdict.failure), synced=synced)
    if root.layout.mirror:
        restate(root, spool, spool.inflight, move.held.name, move.state, _words(verdict.failure))
    return move


def _words(failure: Failure | None) -> str:
    return "" if failure is None else failure.reason or failure.code


def _apply(root: Root, spool: Spool, move: Move) -> bool:
    source = f"{spool.inflight}/{move.held.name}"
    try:
        if move.draft and os.path.lexists(source):  # nobody else moves it while we hold the lock
            root.move(move.draft, move.why(spool))
        if move.state in (State.READY, State.DELAYED):
            date(root, source)
        root.move(source, f"{spool.dirs[move.state]}/{move.name}")
    except FileNotFoundError:
        return False
    return True


def date(root: Root, path: str) -> None:
    """Give a file that comes to wait the time from which that is counted."""
    now = root.clock.now()
    os.utime(path, (now, now))


def tidy(root: Root, spool: Spool, settlement: Settlement, move: Move, *, applied: bool) -> None:
    """Forget what is no longer true once a verdict was applied, or was not."""
    receipt, verdict = settlement
    spool.held.pop((receipt.id, receipt.token), None)
    if not applied:
        if move.draft:
            remove(move.draft)
        return
    waits = move.state in (State.READY, State.DELAYED)
    if verdict.failure is None if waits else move.held.failed:
        remove(why_path(spool, receipt.id))
    if not root.names.native and spool.listing is not None and move.state is State.DONE:
        spool.listing.orders.forget(move.held.slot.base)
    if move.held.slot.group or not root.names.native:
        spool.ring()  # the next of its group can be leased


def remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def settled_before(root: Root, spool: Spool, settlement: Settlement) -> Outcome:
    """Tell a verdict that is repeated from one that comes too late."""
    receipt, verdict = settlement
    if find_settled(root, spool, receipt, _WHERE[type(verdict)]):
        return Outcome.REPEATED
    if root.layout.removal_acks and type(verdict) is Done and locate(root, spool, receipt.id) is None:
        return Outcome.APPLIED
    return Outcome.LOST
