"""Run a handler over a queue until nothing is left, as a worker would in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pabal.queues.delivery import Delivery
from pabal.queues.queue import Queue
from pabal.queues.worker import worker
from pabal.testing.clock import ManualClock

_ROUNDS = 1000


def drain(queue: Queue[Any], handler: Callable[[Delivery[Any]], object], *, clock: ManualClock | None = None) -> int:
    """Run the handler on every message until the queue is empty; return how often it returned without an error.

    With a clock, time is moved to the next retry or delayed message instead of being waited for, until every message is
    done or dead. Without one, messages that are not due yet stay.
    """
    handled = 0
    for _ in range(_ROUNDS):
        handled += worker(queue, handler).run(wait=0)
        due = queue.store.next_due(queue.name)
        if clock is None or due is None:
            return handled
        clock.advance(max(due, 0.001))
    raise AssertionError(
        f"{queue.name} is not empty after {_ROUNDS} rounds: its handler publishes or fails without end"
    )
