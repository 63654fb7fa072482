"""A store that passes every call to another store: the base of stores that change only a few calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pabal.store import (
    Consumer,
    Counters,
    Draft,
    Entry,
    KnownSettings,
    Lease,
    Outcome,
    Published,
    Receipt,
    Settlement,
    State,
    Store,
    Waitable,
    Watch,
)


class StoreProxy:
    """Passes every call on."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def publish(self, drafts: Sequence[Draft]) -> list[Published]:
        return self._store.publish(drafts)

    def lease(
        self,
        queue: str,
        limit: int,
        seconds: float,
        *,
        consumer: str = "",
        token: str = "",
        successive: bool = False,
    ) -> list[Lease]:
        return self._store.lease(queue, limit, seconds, consumer=consumer, token=token, successive=successive)

    def settle(self, settlements: Sequence[Settlement], *, durable: bool = False) -> list[Outcome]:
        return self._store.settle(settlements, durable=durable)

    def extend(self, receipts: Sequence[Receipt], seconds: float) -> list[Outcome]:
        return self._store.extend(receipts, seconds)

    def expired(self, queue: str, limit: int) -> list[Lease]:
        return self._store.expired(queue, limit)

    def now(self) -> float:
        return self._store.now()

    def next_due(self, queue: str) -> float | None:
        return self._store.next_due(queue)

    def counts(self, queue: str) -> dict[State, int]:
        return self._store.counts(queue)

    def counters(self, queue: str) -> Counters:
        return self._store.counters(queue)

    def oldest(self, queue: str, state: State) -> float | None:
        return self._store.oldest(queue, state)

    def consumers(self) -> list[Consumer]:
        return self._store.consumers()

    def browse(self, queue: str, state: State, *, after: str = "", limit: int = 100) -> list[Entry]:
        return self._store.browse(queue, state, after=after, limit=limit)

    def find(self, queue: str, id: str) -> Entry | None:
        return self._store.find(queue, id)

    def revive(self, queue: str, ids: Sequence[str]) -> list[str]:
        return self._store.revive(queue, ids)

    def cancel(self, queue: str, ids: Sequence[str], *, inflight: bool = False) -> list[str]:
        return self._store.cancel(queue, ids, inflight=inflight)

    def purge(
        self, queue: str, state: State, *, age: float = 0.0, limit: int = 1000, ids: Sequence[str] | None = None
    ) -> int:
        return self._store.purge(queue, state, age=age, limit=limit, ids=ids)

    def trim(self, queue: str, state: State, *, age: float, limit: int = 1000) -> int:
        return self._store.trim(queue, state, age=age, limit=limit)

    def delete(self, queue: str, *, force: bool = False) -> int:
        return self._store.delete(queue, force=force)

    def queues(self) -> list[str]:
        return self._store.queues()

    def settings(self, queue: str) -> Mapping[str, Any] | None:
        return self._store.settings(queue)

    def configure(self, queue: str, settings: Mapping[str, Any], *, known: KnownSettings = ...) -> bool:
        return self._store.configure(queue, settings, known=known)

    def facts(self) -> Mapping[str, str]:
        return self._store.facts()

    def watch(self, queues: Sequence[str]) -> Watch:
        assert isinstance(self._store, Waitable)
        return self._store.watch(queues)

    def close(self) -> None:
        self._store.close()
