"""Appends to a topic from the event loop: records that arrive while an append is running share the next one.

Records are stored in the order of the calls. When `append` returns, the record is durable. On a StoreError it may not
be, and the caller decides whether to send it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from pabal.aio.calls import Batcher, Threads
from pabal.errors import Outage, PabalError
from pabal.topic_store import NewRecord, Topics

log = logging.getLogger("pabal.chat")

_WAITING = 20_000  # waiting records above which further ones should be refused
_AGAIN = 1.0  # seconds between attempts of `append_later`
_FINISH_SECONDS = 3.0  # that a close waits for appends under way


class Appender:
    """Appends to one topic."""

    def __init__(self, topics: Topics, topic: str) -> None:
        self._topics, self._topic = topics, topic
        self._threads = Threads("pabal-chat-append", 1)
        self._appends = Batcher(self._threads, self._append)
        self._kept: set[asyncio.Task[None]] = set()
        self._waited: set[asyncio.Future[None]] = set()
        self._closed = False
        self.failing = False  # the last append failed
        self.appended = 0

    @property
    def full(self) -> bool:
        """Whether so many records wait that further ones should be refused."""
        return len(self._appends) > _WAITING

    @property
    def waiting(self) -> int:
        return len(self._appends)

    async def append(self, record: NewRecord) -> None:
        """Append a record and return when it is durable. If the task is cancelled, the append goes on."""
        appended = self._appends.add(record)
        self._waited.add(appended)
        appended.add_done_callback(self._waited.discard)
        await asyncio.shield(appended)

    def append_soon(self, record: NewRecord) -> None:
        """Append a record with one attempt, without waiting for it."""
        self._keep(self._try(record))

    def append_later(self, record: NewRecord) -> None:
        """Append a record and repeat until the topic accepts it or the process ends."""
        self._keep(self._insist(record))

    async def close(self, seconds: float = _FINISH_SECONDS) -> None:
        """Finish the appends under way, up to a limit. A sender whose message was not acknowledged sends it again."""
        for task in self._kept:
            task.cancel()
        if self._waited:
            await asyncio.wait(self._waited, timeout=seconds)
        self._closed = True
        self._threads.abandon()

    def _append(self, records: Sequence[NewRecord]) -> list[None]:
        if self._closed:
            raise Outage("the gateway has stopped")
        try:
            self._topics.append(self._topic, records)
        except PabalError as exc:
            fields = {"many": len(records), "topic": self._topic, "code": exc.code, "error": str(exc)}
            log.warning("%(many)d records were not appended to %(topic)s: %(code)s: %(error)s", fields)
            self.failing = True
            raise
        if self.failing:
            self.failing = False
            log.info("%(topic)s takes records again", {"topic": self._topic})
        self.appended += len(records)
        return [None] * len(records)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._kept.add(task)  # the event loop keeps only weak references to tasks
        task.add_done_callback(self._kept.discard)

    async def _try(self, record: NewRecord) -> None:
        with suppress(PabalError):
            await self.append(record)

    async def _insist(self, record: NewRecord) -> None:
        while True:
            try:
                await self.append(record)
                return
            except PabalError:
                await asyncio.sleep(_AGAIN)
