"""What a manager says when asked how it is: its health and its metrics, as documents."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any

import msgspec

from pabal.clock import Clock
from pabal.connect import Connection
from pabal.errors import ExtraMissing, InvalidPolicy
from pabal.manager.config import Config
from pabal.manager.metrics import Metrics
from pabal.queue import Queue
from pabal.runtime.resources import room, usage
from pabal.store import State

_LOOKED_AT = 100  # messages at the head of the line among which the oldest is sought


class Report:
    """Has what the answers to `health` and `metrics` say beside what the mailbox itself knows."""

    def __init__(self, config: Config, connection: Connection, metrics: Metrics, clock: Clock) -> None:
        self._config = config
        self._connection = connection
        self._metrics = metrics
        self._clock = clock

    @property
    def uptime(self) -> float:
        return self._metrics.uptime

    @property
    def requests(self) -> int:
        return self._metrics.requests.count

    def health(self) -> dict[str, Any]:
        """Return what an operator looks at first. That the loop runs needs no saying: nobody else could answer."""
        disk = room(self._config.root)
        return {
            "nodeId": self._config.node_id,
            "version": version("pabal"),
            "pid": os.getpid(),
            "uptimeMs": round(self._metrics.uptime * 1000),
            "backend": self._config.backend,
            "root": str(self._config.root),
            "mode": "one-uid" if self._config.clients is None else "per-uid",
            "freeBytes": disk.free_bytes,
            "store": dict(self._connection.store.facts()),
        }

    def metrics(self) -> dict[str, Any]:
        """Return all numbers."""
        queues = {
            name: {**found.pop("states"), **found, **self._metrics.queue_document(name)}
            for name, found in self.queues().items()
        }
        return {
            "nodeId": self._config.node_id,
            "requestSeconds": self._metrics.requests.document(),
            "queues": queues,
            "process": self._process(),
        }

    def queues(self) -> dict[str, dict[str, Any]]:
        """Return what the store says of each queue."""
        found = {}
        for name in self._connection.queues():
            queue = self._connection.queue(name)
            counts = queue.counts()
            head = queue.browse(State.READY, limit=_LOOKED_AT)
            oldest = min((entry.due_at for entry in head), default=None)
            found[name] = {
                "states": {str(state): counts.get(state, 0) for state in State},
                "oldestReadySeconds": None if oldest is None else max(0.0, round(self._clock.now() - oldest, 3)),
                "paused": _paused(queue),
            }
        return found

    def _process(self) -> dict[str, Any] | None:
        try:
            found = usage()
        except ExtraMissing:
            return None
        return None if found is None else msgspec.to_builtins(found)


def _paused(queue: Queue) -> bool:
    try:
        return queue.policy.paused
    except InvalidPolicy:
        return False  # the sweeps tell of it; all other numbers are as good as ever
