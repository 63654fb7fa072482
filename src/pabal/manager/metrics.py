"""Counts what passes through the manager: messages by queue and outcome, and how long requests took.

What a library does at the store directly passes nobody by: of that only what the store itself can tell is known, the
numbers by state and the age of the oldest.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from pabal.clock import Clock
from pabal.mailbox.settings import Answered
from pabal.manager.measures import Histogram, Rate
from pabal.store import Dead, Done, FailureCode, Lease, Outcome, Receipt, Retry, Settlement

MINUTE, HOUR = 60.0, 3600.0
_MOST_LEASES = 100_000
_RAN_OUT = frozenset({FailureCode.LEASE_EXPIRED, FailureCode.EXPIRED})


class QueueMetrics:
    """What happened to the messages of one queue."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()  # published, leased, done, retried, dead, dropped, lost
        self.expired: Counter[str] = Counter()  # by LEASE_EXPIRED and EXPIRED
        self.dead: dict[str, tuple[int, Rate]] = {}  # by reason: in all, and in the last hour
        self.into, self.out, self.failed = Rate(MINUTE), Rate(MINUTE), Rate(MINUTE)
        self.waiting, self.working = Histogram(), Histogram()

    def died(self, code: str, now: float) -> None:
        total, hourly = self.dead.get(code) or (0, Rate(HOUR))
        hourly.add(1, now)
        self.dead[code] = (total + 1, hourly)


class Metrics:
    """All counts of one manager since its start."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.started = clock.boot()
        self.queues: dict[str, QueueMetrics] = defaultdict(QueueMetrics)
        self.requests = Histogram()
        self._leased: dict[Receipt, float] = {}

    @property
    def uptime(self) -> float:
        return self._clock.boot() - self.started

    def answered(self, request: Answered) -> None:
        """Take note of how long a request took; what it did to messages is seen where it is done."""
        self.requests.add(request.seconds)

    def published(self, queue: str, count: int) -> None:
        found = self.queues[queue]
        found.counts["published"] += count
        found.into.add(count, self._clock.boot())

    def leased(self, leases: Sequence[Lease]) -> None:
        now, boot = self._clock.now(), self._clock.boot()
        if len(self._leased) + len(leases) > _MOST_LEASES:
            self._leased.clear()  # of leases whose holders never came back
        for lease in leases:
            if lease.receipt in self._leased:
                continue  # the same token asked again and got the same
            found = self.queues[lease.receipt.queue]
            found.counts["leased"] += 1
            found.waiting.add(max(0.0, now - lease.due_at))
            self._leased[lease.receipt] = boot

    def settled(self, settlement: Settlement, outcome: Outcome) -> None:
        if outcome is Outcome.REPEATED:
            return
        receipt, verdict = settlement
        if outcome is Outcome.LOST:
            if receipt.queue in self.queues:  # a forged receipt may name any queue
                self.queues[receipt.queue].counts["lost"] += 1
            return
        found, now = self.queues[receipt.queue], self._clock.boot()
        began = self._leased.pop(receipt, None)
        if began is not None:
            found.working.add(now - began)
        failure = verdict.failure
        if failure is not None:
            found.failed.add(1, now)
            for code in _RAN_OUT:
                if failure.code == code or f": {code}" in failure.reason:
                    found.expired[code] += 1
        if isinstance(verdict, Retry):
            found.counts["retried"] += 1
        elif isinstance(verdict, Dead):
            found.counts["dead"] += 1
            found.died(verdict.failure.code, now)
        else:
            assert isinstance(verdict, Done)
            found.counts["dropped" if failure else "done"] += 1
            found.out.add(1, now)

    def queue_document(self, name: str) -> dict[str, Any]:
        """Return what passed through the manager of one queue."""
        found, now = self.queues[name], self._clock.boot()
        settled = found.out.count(now) + found.failed.count(now)
        return {
            "inPerSecond": round(found.into.per_second(now, self.started), 3),
            "outPerSecond": round(found.out.per_second(now, self.started), 3),
            "failureRate": round(found.failed.count(now) / settled, 3) if settled else 0.0,
            "published": found.counts["published"],
            "leased": found.counts["leased"],
            "acked": found.counts["done"],
            "retries": found.counts["retried"],
            "expirations": {str(code): found.expired[code] for code in sorted(_RAN_OUT)},
            "dropped": found.counts["dropped"],
            "stale": found.counts["lost"],
            "deadLetters": {
                code: {"total": total, "lastHour": int(hourly.count(now))}
                for code, (total, hourly) in sorted(found.dead.items())
            },
            "secondsInQueue": found.waiting.document(),
            "secondsInWork": found.working.document(),
        }
