"""Pabal for asyncio: the calls of `pabal`, awaited. See docs/howto/asyncio.md.

One adapter for all of it: calls run in a few threads, calls of many tasks share a commit, and tasks that wait for a
queue share a thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self, overload
from weakref import WeakValueDictionary

from pabal.aio.calls import Threads
from pabal.aio.queue import Delivery, Publishes, Queue, publishes
from pabal.aio.topic import Consumer, Topic, consumer
from pabal.aio.worker import Worker, worker
from pabal.clock import Clock
from pabal.connect import connect as blocking_connect
from pabal.connect import connect_topics as blocking_connect_topics
from pabal.errors import StoreClosed
from pabal.message import Seconds
from pabal.names import shown_url
from pabal.queues.delivery import Body, Local
from pabal.queues.schedules import CatchUp, Schedule
from pabal.store import Consumer as StoreConsumer
from pabal.store import Published

__all__ = [
    "Connection",
    "Consumer",
    "Delivery",
    "Queue",
    "Topic",
    "TopicConnection",
    "Worker",
    "connect",
    "connect_topics",
    "consumer",
    "worker",
]


_KEPT = 256  # queues that a connection keeps, with their policies, while nobody uses them


class _Opened(Local):
    """What `async with` opens and closes: a connection of `pabal` and the threads that call it."""

    def __init__(self) -> None:
        self.threads = Threads("pabal-aio")

    async def __aenter__(self) -> Self:
        opening = self.threads.start(self._open)
        try:
            await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(lambda _: threading.Thread(target=self._close).start())
            raise
        except BaseException:
            self.threads.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish the calls under way, end the tasks that wait for messages with StoreClosed, and release everything."""
        await asyncio.shield(asyncio.to_thread(self._close))

    def _open(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError


class Connection(_Opened):
    """An open store and its queues, made by `connect`. Tasks, event loops and threads may share it.

    `blocking` is the same as a `pabal.Connection`, for what has no awaited form.
    """

    def __init__(self, url: str, *, consumer: str, create: bool, clock: Clock | None) -> None:
        super().__init__()
        self._arguments = (url, consumer, create, clock)
        # Those in use, and the last ones that were asked for: a name of a reply queue may be asked for once only.
        self._queues: WeakValueDictionary[tuple[str, Any, bool], Queue] = WeakValueDictionary()
        self._recent: deque[Queue] = deque(maxlen=_KEPT)
        self._publishes: Publishes | None = None

    @overload
    def queue(self, name: str, *, create: bool = True) -> Queue: ...

    @overload
    def queue(self, name: str, *, body: type[Body], create: bool = True) -> Queue[Body]: ...

    def queue(self, name: str, *, body: type[Any] | None = None, create: bool = True) -> Queue[Any]:
        """Return the queue of this name; see `pabal.Connection.queue`. `body` is the type of its bodies."""
        publishes = self._opened()
        found = self._queues.get((name, body, create))
        if found is None:
            more = {} if body is None else {"body": body}
            blocking = self.blocking.queue(name, create=create, **more)
            found = self._queues.setdefault((name, body, create), Queue(blocking, self.threads, publishes))
            self._recent.append(found)
        return found

    async def queues(self) -> list[str]:
        """Return the names of all queues, sorted."""
        self._opened()
        return await self.threads(self.blocking.queues)

    async def schedule(
        self,
        name: str,
        *,
        queue: str,
        body: Any = None,
        cron: str | None = None,
        every: Seconds | None = None,
        timezone: str = "",
        catch_up: CatchUp = "once",
        type: str = "",
    ) -> Schedule:
        """Publish a message again and again; see `pabal.Connection.schedule`."""
        terms: dict[str, Any] = {"queue": queue, "body": body, "cron": cron, "every": every}
        terms |= {"timezone": timezone, "catch_up": catch_up, "type": type}
        self._opened()
        return await self.threads(partial(self.blocking.schedule, name, **terms))

    async def schedules(self) -> list[Schedule]:
        """Return all schedules by name."""
        self._opened()
        return await self.threads(self.blocking.schedules)

    async def unschedule(self, name: str) -> bool:
        """Remove a schedule; return whether it was there."""
        self._opened()
        return await self.threads(self.blocking.unschedule, name)

    async def run_schedule(self, name: str) -> Published:
        """Publish the message of a schedule now, beside its occurrences."""
        self._opened()
        return await self.threads(self.blocking.run_schedule, name)

    async def consumers(self) -> list[StoreConsumer]:
        """Return the consumers that have leased in the last hour or hold messages, and what each one holds."""
        self._opened()
        return await self.threads(self.blocking.consumers)

    def __repr__(self) -> str:
        return f"<aio.Connection {shown_url(self._arguments[0])}>"

    def _opened(self) -> Publishes:
        if self._publishes is None:
            raise StoreClosed("the connection is not open: use it in `async with pabal.aio.connect(…) as mq:`")
        return self._publishes

    def _open(self) -> None:
        url, consumer, create, clock = self._arguments
        self.blocking = blocking_connect(url, consumer=consumer, create=create, clock=clock)
        self._publishes = publishes(self.blocking.store, self.threads)

    def _close(self) -> None:
        if self._publishes is None:
            return
        self._publishes = None
        with ExitStack() as closing:  # in reverse order
            closing.callback(self.blocking.close)
            closing.callback(self.threads.close)
            for queue in list(self._queues.values()):
                closing.callback(queue.close)


class TopicConnection(_Opened):
    """An open store of topics, made by `connect_topics`. Tasks, event loops and threads may share it."""

    def __init__(self, url: str, *, create: bool, clock: Clock | None) -> None:
        super().__init__()
        self._url, self._create, self._clock = url, create, clock
        self._topics: dict[str, Topic] = {}
        self._is_open = False

    def topic(self, name: str) -> Topic:
        """Return the topic of this name. Its `create` method creates it."""
        self._check_open()
        if name not in self._topics:
            self._topics[name] = Topic(self.blocking.topic(name), self.threads)
        return self._topics[name]

    async def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        self._check_open()
        return await self.threads(self.blocking.topics)

    def __repr__(self) -> str:
        return f"<aio.TopicConnection {shown_url(self._url)}>"

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreClosed(
                "the connection is not open: use it in `async with pabal.aio.connect_topics(…) as topics:`"
            )

    def _open(self) -> None:
        self.blocking = blocking_connect_topics(self._url, create=self._create, clock=self._clock)
        self._is_open = True

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            with ExitStack() as closing:  # in reverse order
                closing.callback(self.blocking.close)
                closing.callback(self.threads.close)


def connect(url: str, *, consumer: str = "", create: bool = True, clock: Clock | None = None) -> Connection:
    """Open the store that the URL names: `async with pabal.aio.connect("sqlite:jobs.db") as mq:`.

    The arguments are those of `pabal.connect`.
    """
    return Connection(url, consumer=consumer, create=create, clock=clock)


def connect_topics(url: str, *, create: bool = True, clock: Clock | None = None) -> TopicConnection:
    """Open the topics that the URL names: `async with pabal.aio.connect_topics("sqlite:events.db") as topics:`.

    The arguments are those of `pabal.connect_topics`.
    """
    return TopicConnection(url, create=create, clock=clock)
