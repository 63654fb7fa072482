"""A store whose every use is counted. Everything that the manager does to messages goes through it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pabal.manager.metrics import Metrics
from pabal.passing import PassingStore
from pabal.store import Checkable, Draft, Finding, Lease, Outcome, Published, Settlement, Store


class ObservedStore(PassingStore):
    """A store that can be checked too, as all that a manager opens can."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        super().__init__(store)
        self._metrics = metrics

    def publish(self, drafts: Sequence[Draft]) -> list[Published]:
        answers = self._store.publish(drafts)
        fresh = Counter(draft.queue for draft, answer in zip(drafts, answers, strict=True) if not answer.duplicate)
        for queue, count in fresh.items():
            self._metrics.published(queue, count)
        return answers

    def lease(self, queue: str, limit: int, seconds: float, *, consumer: str = "", token: str = "") -> list[Lease]:
        leases = self._store.lease(queue, limit, seconds, consumer=consumer, token=token)
        if leases:
            self._metrics.leased(leases)
        return leases

    def settle(self, settlements: Sequence[Settlement], *, durable: bool = False) -> list[Outcome]:
        outcomes = self._store.settle(settlements, durable=durable)
        for settlement, outcome in zip(settlements, outcomes, strict=True):
            self._metrics.settled(settlement, outcome)
            if outcome is Outcome.APPLIED:
                for draft in settlement.verdict.then:
                    self._metrics.published(draft.queue, 1)
        return outcomes

    def check(self, *, repair: bool) -> list[Finding]:
        return self._store.check(repair=repair) if isinstance(self._store, Checkable) else []
