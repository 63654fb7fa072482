"""Keeps all queues moving: leases that ran out, delays that ended, time to live, retention.

Queues are asked when something is due, which costs one read; they are swept only if it is, and now and then for what
need not be kept any longer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pabal.clock import Clock
from pabal.connect import Connection
from pabal.errors import PabalError, StoreFailed, Uncertain
from pabal.policy import Policy, document_of, policy_from
from pabal.queue import Queue

log = logging.getLogger("pabal")

TIDY = 60.0  # seconds between two sweeps of a queue in which nothing is due


class Sweeps:
    """A task of the manager's loop. New queues get the default policy at the first sweep that sees them."""

    def __init__(self, connection: Connection, *, clock: Clock, interval: float) -> None:
        self._connection = connection
        self._clock = clock
        self._interval = interval
        self._queues: dict[str, Queue] = {}
        self._tidied: dict[str, float] = {}
        self._swept = float("-inf")
        self._default: Policy | None = None

    def configure(self, policies: Mapping[str, Policy], default: Policy, interval: float) -> list[str]:
        """Give queues their policies; return the names of those that changed. A paused queue stays paused."""
        self._interval = interval
        self._default = default if default != Policy() else None
        changed = []
        for name, policy in policies.items():
            queue = self._connection.queue(name)
            if self._set(queue, policy):
                changed.append(name)
        return changed

    def step(self) -> int:
        """Sweep what is due, if the interval is over; return how many messages were judged."""
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
            if self._default is not None and found.store.settings(name) is None:
                found.configure(self._default)
        return found

    def _sweep(self, queue: Queue, now: float) -> int:
        try:
            due = queue.store.next_due(queue.name)
            tidy = now - self._tidied.get(queue.name, float("-inf")) >= TIDY
            if not tidy and (due is None or due > 0):
                return 0
            self._tidied[queue.name] = now
            return queue.sweep()
        except (StoreFailed, Uncertain):
            raise  # nothing more can be done with this handle
        except PabalError as exc:
            # One queue whose policy cannot be read, or a full disk, must not stop the others.
            log.error("cannot sweep %s: %s", queue.name, exc, extra={"pabal": {"queue": queue.name, "code": exc.code}})
            return 0

    def _set(self, queue: Queue, policy: Policy) -> bool:
        try:
            before = queue.policy if queue.store.settings(queue.name) is not None else None
        except PabalError:
            before = None  # what is stored cannot be read: the configuration puts it right
        if before is not None and before.paused:
            policy = _paused(policy)
        if before == policy:
            return False
        queue.configure(policy)
        return True


def _paused(policy: Policy) -> Policy:
    return policy_from({**document_of(policy), "paused": True})
