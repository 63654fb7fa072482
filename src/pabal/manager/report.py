"""The health and the metrics of a manager, as documents."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any

import msgspec

from pabal.clock import Clock
from pabal.connect import Connection
from pabal.manager.config import Config
from pabal.manager.metrics import MINUTE, Metrics
from pabal.queues.metrics import consumers_metrics, usable_queues
from pabal.runtime.resources import free_bytes, store_metrics, usage
from pabal.store import State


class Report:
    """Makes the fields that the manager adds to the answers of `health` and `metrics`."""

    def __init__(self, config: Config, connection: Connection, metrics: Metrics, clock: Clock) -> None:
        self._config = config
        self._connection = connection
        self._metrics = metrics
        self._clock = clock
        self._looked_at = float("-inf")

    @property
    def uptime(self) -> float:
        return self._metrics.uptime

    @property
    def requests(self) -> int:
        return self._metrics.requests.count

    def health(self) -> dict[str, Any]:
        """Return the facts that an operator needs first. The answer itself shows that the loop runs."""
        return {
            "nodeId": self._config.node_id,
            "version": version("pabal"),
            "pid": os.getpid(),
            "uptimeMs": round(self._metrics.uptime * 1000),
            "backend": self._config.backend,
            "root": str(self._config.root),
            "mode": "one-uid" if self._config.clients is None else "per-uid",
            "freeBytes": free_bytes(self._config.root),
            "store": dict(self._connection.store.facts()),
        }

    def metrics(self) -> dict[str, Any]:
        """Return all metrics."""
        now, queues = self._clock.now(), {}
        store = self._connection.store
        for name, figures in usable_queues(store, map(self._connection.queue, self._connection.queues()), now):
            counters = store.counters(name)
            self._metrics.look(name, counters)
            queues[name] = {**figures, **self._metrics.lately(name, counters)}
        process = usage()
        return {
            "nodeId": self._config.node_id,
            "uptimeMs": round(self._metrics.uptime * 1000),
            "requestSeconds": self._metrics.requests.document(),
            "queues": queues,
            "consumers": consumers_metrics(self._connection.store, now),
            "store": store_metrics(self._connection.store),
            "process": process and {k: v for k, v in msgspec.to_builtins(process).items() if k != "uptimeSeconds"},
        }

    def look(self) -> None:
        """Remember the counts of all queues, once a minute, for what happened lately."""
        now = self._clock.boot()
        if now - self._looked_at >= MINUTE:
            self._looked_at = now
            for name in self._connection.queues():
                self._metrics.look(name, self._connection.store.counters(name))
            self._metrics.looked = True

    def queues(self) -> dict[str, dict[State, int]]:
        """Return the number of messages in each state of each queue."""
        return {name: self._connection.queue(name).counts() for name in self._connection.queues()}
