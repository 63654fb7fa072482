"""Topics from an event loop: appends that come at the same time share a call, and consumers run coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeAlias

from pabal.aio.calls import Batcher, Threads, store_together
from pabal.aio.worker import check_coroutine_function
from pabal.errors import InvalidInput, Outage
from pabal.jsontext import Json
from pabal.policy.bodies import check_many
from pabal.policy.policy import RetryPolicy
from pabal.queues.delivery import Local
from pabal.topic_store import DEFAULT_SESSION, NO_HEADERS, Bounds, NewRecord, Position, Record, Share
from pabal.topics.attempts import Received
from pabal.topics.consumer import RETRY
from pabal.topics.consumer import consumer as blocking_consumer
from pabal.topics.topic import Topic as BlockingTopic

Handler: TypeAlias = Callable[[Any], Coroutine[Any, Any, Any]]
_LOOK = 1.0  # seconds: how often the thread of a consumer looks whether its event loop is still there


class Topic(Local):
    """A topic of a connection. Tasks, loops and threads may share it. `blocking` is the same, as `pabal.Topic`."""

    def __init__(self, blocking: BlockingTopic, threads: Threads) -> None:
        self.blocking = blocking
        self.name = blocking.name
        self.threads = threads
        append = partial(blocking.topics.append, blocking.name)
        self._appends = Batcher(threads, partial(store_together, append, (InvalidInput,)))

    def __repr__(self) -> str:
        return f"<aio.Topic {self.name}>"

    async def create(
        self,
        partitions: int = 1,
        *,
        max_age: float = 0.0,
        max_bytes: int = 0,
        schema: Mapping[str, Json] | None = None,
    ) -> bool:
        """Make the topic; False if it was there. A topic keeps its partitions and its schema for ever."""
        return await self.threads(self.blocking.create, partitions, max_age=max_age, max_bytes=max_bytes, schema=schema)

    async def append(
        self,
        body: Json | bytes,
        *,
        key: str = "",
        headers: Mapping[str, str] = NO_HEADERS,
        partition: int | None = None,
    ) -> Position:
        """Append one record durably and return its position. Records of one key keep their order."""
        [position] = await self.append_many([body], key=key, headers=headers, partition=partition)
        return position

    async def append_many(
        self,
        bodies: Iterable[Json | bytes | NewRecord],
        *,
        key: str = "",
        headers: Mapping[str, str] = NO_HEADERS,
        partition: int | None = None,
    ) -> list[Position]:
        """Append many records in one call. Give a record with its own key or headers as a NewRecord."""
        check_many(bodies, "append")
        every = list(bodies)
        make = partial(self.blocking._records, every, key, headers, partition)
        return await self._appends.add(make, len(every)) if every else []

    async def retain(self, *, max_age: float | None = None, max_bytes: int | None = None) -> None:
        """Change the retention of each partition, in seconds and bytes; 0 is no limit, None leaves a limit as it is."""
        await self.threads(self.blocking.retain, max_age=max_age, max_bytes=max_bytes)

    async def schema(self) -> dict[str, Any] | None:
        """Return the JSON Schema of the topic, or None."""
        return await self.threads(lambda: self.blocking.schema)

    async def read(self, partition: int, offset: int = 0, limit: int = 100) -> list[Record]:
        """Return records from an offset on, independently of any group."""
        return await self.threads(self.blocking.read, partition, offset, limit)

    async def bounds(self) -> list[Bounds]:
        """Return the oldest and the next offset of every partition."""
        return await self.threads(self.blocking.bounds)

    async def groups(self) -> dict[str, list[Share]]:
        """Return every group of this topic, with the committed offsets and lags of its partitions."""
        return await self.threads(self.blocking.groups)


class Consumer:
    """Runs a coroutine over a topic for a group. Made by `consumer`."""

    def __init__(self, topic: Topic, group: str, handler: Handler, options: dict[str, Any]) -> None:
        self._handler = handler
        self._blocking = blocking_consumer(topic.blocking, group, self._handle, **options)
        self._name = f"{group} of {topic.name}"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None  # of the handler
        self._cancelled = False

    def __repr__(self) -> str:
        return f"<aio.Consumer {self._name}>"

    @property
    def handled(self) -> int:
        return self._blocking.handled

    @property
    def dead(self) -> int:
        return self._blocking.dead

    async def run(self, *, wait: float | None = None, count: int | None = None) -> int:
        """Work until stopped, until `wait` seconds bring no record, or until `count` records are handled or dead.

        Return how many were handled. If this call is cancelled, the handler is cancelled and its record read again by
        the next member of the group.
        """
        if self._loop is not None:
            raise InvalidInput("this consumer has run: make another one")
        self._loop = asyncio.get_running_loop()
        ended: Future[int] = Future()
        threading.Thread(target=self._run, args=(ended, wait, count), name="pabal-aio-consumer", daemon=True).start()
        end = asyncio.wrap_future(ended)
        try:
            return await asyncio.shield(end)
        except asyncio.CancelledError:
            self._cancelled = True
            self.stop()
            if self._task is not None:
                self._task.cancel()
            await asyncio.wait([end])  # and for the end of the handler
            raise

    def stop(self) -> None:
        """Let the running handler finish, commit, and let `run` return. From any thread."""
        self._blocking.stop()

    def give_up(self, exc: Exception) -> None:
        """Stop, and let `run` raise this error: for a handler for which waiting is useless."""
        self._blocking.give_up(exc)

    def _run(self, ended: Future[int], wait: float | None, count: int | None) -> None:
        try:
            ended.set_result(self._blocking.run(wait=wait, count=count))
        except BaseException as exc:
            ended.set_exception(exc)

    def _handle(self, received: Any) -> Any:
        """Run the coroutine in its event loop, from the thread of the consumer."""
        assert self._loop is not None
        outcome: Future[Any] = Future()
        try:
            self._loop.call_soon_threadsafe(self._start, received, outcome)
        except RuntimeError as exc:
            raise self._loop_gone() from exc
        while True:
            try:
                return outcome.result(_LOOK)
            except TimeoutError:
                if outcome.done():
                    raise  # by the handler
                if self._loop.is_closed():
                    raise self._loop_gone() from None

    def _loop_gone(self) -> Outage:
        self._cancelled = True
        self.stop()
        return Outage("the event loop of the consumer is closed")  # no attempt

    def _start(self, received: Any, outcome: Future[Any]) -> None:
        if self._cancelled:
            outcome.set_exception(Outage("the consumer was cancelled"))
            return
        self._task = asyncio.get_running_loop().create_task(self._handler(received))
        self._task.add_done_callback(partial(self._ended, outcome))

    def _ended(self, outcome: Future[Any], task: asyncio.Task[Any]) -> None:
        self._task = None
        if not task.cancelled() and task.exception() is None:
            outcome.set_result(task.result())
        elif self._cancelled:
            outcome.set_exception(Outage("the consumer was cancelled"))  # no attempt
        else:
            outcome.set_exception(RuntimeError("the handler was cancelled") if task.cancelled() else task.exception())


def consumer(
    topic: Topic,
    group: str,
    handler: Callable[[Received], Awaitable[object]] | Callable[[Sequence[Received]], Awaitable[Any]],
    *,
    together: bool = False,
    retry: RetryPolicy = RETRY,
    batch: int = 100,
    session: float = DEFAULT_SESSION,
) -> Consumer:
    """Make a consumer: `await handler(received)` for each record of the partitions that this member of the group owns.

    With `together` the handler gets a list of up to `batch` records, and returns a Refusal for each bad one. If a
    process is silent for `session` seconds, the other members take over its partitions.
    """
    check_coroutine_function(handler)
    options = {"together": together, "retry": retry, "batch": batch, "session": session}
    return Consumer(topic, group, handler, options)  # type: ignore[arg-type]  # a coroutine function, as was checked
