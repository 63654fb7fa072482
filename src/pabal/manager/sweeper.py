"""Sweeps all queues: leases that ran out, delays that ended, time to live, retention.

Each queue is asked when something is due, which costs one read. It is swept only if something is, and once a minute to
remove what is no longer kept.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pabal.clock import Clock
from pabal.connect import Connection
from pabal.errors import InvalidPolicy, PabalError, StoreFailed, Uncertain
from pabal.policy.policy import Policy
from pabal.queues.queue import Queue

log = logging.getLogger("pabal")

RETENTION_INTERVAL = 60.0  # seconds between two sweeps of a queue in which nothing is due


class Sweeper:
    """A task of the manager's loop. A new queue gets the default policy at its first sweep."""

    def __init__(self, connection: Connection, *, clock: Clock, interval: float) -> None:
        self._connection = connection
        self._clock = clock
        self._interval = interval
        self._queues: dict[str, Queue] = {}
        self._retained_at: dict[str, float] = {}
        self._swept = float("-inf")
        self._default: Policy | None = None

    def configure(self, policies: Mapping[str, Policy], default: Policy, interval: float) -> list[str]:
        """Set the policies of queues; return the names of those that changed. A paused queue stays paused."""
        self._interval = interval
        self._default = default if default != Policy() else None
        changed = []
        for name, policy in policies.items():
            queue = self._connection.queue(name)
            if self._set(queue, policy):
                changed.append(name)
        return changed

    def step(self) -> int:
        """Sweep the queues that are due, if the interval is over; return how many messages were settled."""
        now = self._clock.boot()
        if now - self._swept < self._interval:
            return 0
        self._swept = now
        return sum(self._sweep(self._queue(name), now) for name in self._connection.queues())

    def next_due(self) -> float:
        return max(0.0, self._swept + self._interval - self._clock.boot())

    def _queue(self, name: str) -> Queue:
        found = self._queues.get(name)
        if found is None:
            found = self._queues[name] = self._connection.queue(name)
            if self._default is not None and _is_missing(found):
                found.configure(self._default)
        return found

    def _sweep(self, queue: Queue, now: float) -> int:
        try:
            due = queue.store.next_due(queue.name)
            retention_due = now - self._retained_at.get(queue.name, float("-inf")) >= RETENTION_INTERVAL
            if not retention_due and (due is None or due > 0):
                return 0
            self._retained_at[queue.name] = now
            return queue.sweep()
        except (StoreFailed, Uncertain):
            raise  # this handle cannot be used any more
        except PabalError as exc:
            # One queue with an unreadable policy, or a full disk, must not stop the others.
            fields = {"queue": queue.name, "error": str(exc), "code": exc.code}
            log.error("cannot sweep %(queue)s: %(error)s", fields)
            return 0

    def _set(self, queue: Queue, policy: Policy) -> bool:
        try:
            before = queue.policy if queue.store.settings(queue.name) is not None else None
        except PabalError:
            before = None  # the stored policy cannot be read: the configuration replaces it
        if before == policy:
            return False
        queue.configure(policy)
        return True


def _is_missing(queue: Queue) -> bool:
    try:
        return queue.store.settings(queue.name) is None
    except InvalidPolicy:
        return False  # it has one that cannot be read, which the sweep reports
