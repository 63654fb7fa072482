"""The queues that SQS is served from: their policies and documents, read at most once a second; and the caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pabal.aio
from pabal.clock import Clock
from pabal.gateway.sqs.errors import SqsError, no_queue
from pabal.policy.policy import Policy

ATTACHED = "sqs"  # the name of our document with a queue
_FRESH = 1.0  # seconds for which what was read of a queue is believed
_MOST = 1000  # queues that are remembered

Result = dict[str, Any] | None


class Caller(NamedTuple):
    """The client of a request: what answers need to know about it."""

    base: str  # http://host:port, as the client calls us
    region: str = "us-east-1"
    name: str = ""
    allows: Callable[[str, str], bool] | None = None  # None: everything
    gone: Callable[[], bool] = lambda: False  # whether its client has closed the connection
    waiting: Callable[[Awaitable[Any]], Awaitable[Any]] = lambda act: act  # for a call that ends with its client

    def may(self, action: str, queue: str) -> bool:
        return self.allows is None or self.allows(action, queue)


class Known(NamedTuple):
    """What was read of a queue, and when."""

    queue: pabal.aio.Queue
    policy: Policy
    document: Mapping[str, Any]
    at: float

    @property
    def fifo(self) -> bool:
        return self.queue.name.endswith(".fifo")

    def setting(self, name: str) -> str:
        """Return an attribute that only SQS knows, as it was set."""
        return str(self.document.get("attributes", {}).get(name, ""))

    def number(self, name: str, default: int = 0) -> int:
        return int(self.setting(name) or default)


class Directory:
    """The queues of one connection."""

    def __init__(self, mq: pabal.aio.Connection, clock: Clock) -> None:
        self.mq = mq
        self._clock = clock
        self._known: dict[str, Known] = {}
        self._names: frozenset[str] = frozenset()
        self._named_at = float("-inf")
        self._changes = 0  # what was read before the last one is not remembered

    async def of(self, url: str) -> Known:
        """Return what is known of the queue of a URL."""
        name = queue_in(url)
        if not name:
            raise SqsError("InvalidAddress", f"The address {url:.200} is not valid for this endpoint.")
        return await self.look(name)

    async def look(self, name: str) -> Known:
        known = self._known.get(name)
        now = self._clock.boot()
        if known is not None and now - known.at < _FRESH:
            return known
        if not await self.has(name):
            self._known.pop(name, None)
            raise no_queue()
        queue, changes = self.mq.queue(name, create=False), self._changes
        policy, document = await self.mq.threads(lambda: (queue.blocking.policy, queue.blocking.attached(ATTACHED)))
        if len(self._known) > _MOST:
            self._known.clear()
        known = Known(queue, policy, document, now)
        if changes == self._changes:
            self._known[name] = known
        return known

    async def has(self, name: str) -> bool:
        """Return whether there is such a queue. What is remembered never says no: another gateway may have made it."""
        if name in await self.names():
            return True
        self.forget_names()
        return name in await self.names()

    async def names(self) -> frozenset[str]:
        now, changes = self._clock.boot(), self._changes
        if now - self._named_at < _FRESH:
            return self._names
        names = frozenset(await self.mq.queues())
        if changes == self._changes:
            self._names, self._named_at = names, now
        return names

    def forget(self, name: str) -> None:
        self._known.pop(name, None)
        self.forget_names()

    def forget_names(self) -> None:
        self._changes += 1
        self._named_at = float("-inf")


@lru_cache(_MOST)
def queue_in(url: str) -> str:
    """Return the name of the queue that a URL of a queue ends with."""
    try:
        return unquote(urlsplit(url).path.rstrip("/").rpartition("/")[2])
    except ValueError as exc:
        raise SqsError("InvalidAddress", f"The address {url:.200} is not valid for this endpoint.") from exc
