"""Takes back at once what a dead role had in hand. Only for the one consumer there is, whose lock proves it."""

from __future__ import annotations

from pabal.kingdom.home import Home
from pabal.store import FailureCode, Receipt, Settlement, State


def reclaim(home: Home, queue: str, target: str = "") -> int:
    """Judge what is in flight, all or what is addressed to `target`, as if its lease had run out; return how many."""
    own = home.queue(queue, target)
    settlements = []
    for entry in own.entries(State.INFLIGHT):
        if entry.message is None or (target and entry.message.target != target):
            continue
        failure = own.failure(FailureCode.LEASE_EXPIRED, "the lease ran out", entry.attempt, entry.failure)
        verdict = own.judge(entry.message, failure, delay=0.0)
        settlements.append(Settlement(Receipt(queue, entry.id, entry.token), verdict))
    if settlements:
        home.store.settle(settlements)
    return len(settlements)
