"""Appending without waiting in the event loop: what comes while an append is running shares the next one.

One thread appends, so records are stored in the order in which they were given. Who awaits a record knows when
`append` returns that it is safe; a StoreError says that it may not be, and sending it again is for the caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

from pabal.errors import PabalError
from pabal.topic import NewRecord, Topics

log = logging.getLogger("pabal.chat")

_MOST = 500  # records of one append
_WAITING = 20_000  # records above which nobody is made to wait for more
_AGAIN = 1.0  # seconds between tries of what must arrive


class _Waiting(NamedTuple):
    record: NewRecord
    done: asyncio.Future[None]


class Sending:
    """Appends to one topic. Made, used and closed in one event loop."""

    def __init__(self, topics: Topics, topic: str) -> None:
        self._topics, self._topic = topics, topic
        self._pool = ThreadPoolExecutor(1, "pabal-chat-append")
        self._waiting: list[_Waiting] = []
        self._running: asyncio.Task[None] | None = None
        self._kept: set[asyncio.Task[None]] = set()

    @property
    def full(self) -> bool:
        """Say whether so much waits that more should be refused."""
        return len(self._waiting) > _WAITING

    async def append(self, record: NewRecord) -> None:
        """Return when the record is safe."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(record, done))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        await done

    def append_soon(self, record: NewRecord) -> None:
        """Append a record that is worth one try and no waiting."""
        self._keep(self._try(record))

    def append_later(self, record: NewRecord) -> None:
        """Append a record whenever the topic takes it; only the end of the process ends the tries."""
        self._keep(self._insist(record))

    async def close(self) -> None:
        """Finish what is under way."""
        while self._running is not None:
            await asyncio.wait([self._running])
        for task in self._kept:
            task.cancel()
        self._pool.shutdown(wait=False)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
                records = [waiting.record for waiting in batch]
                error = await loop.run_in_executor(self._pool, self._append, records)
                for _, done in batch:
                    if not done.done():
                        done.set_result(None) if error is None else done.set_exception(error)
        finally:
            self._running = None

    def _append(self, records: Sequence[NewRecord]) -> PabalError | None:
        try:
            self._topics.append(self._topic, records)
        except PabalError as exc:
            log.warning("%d records were not appended to %s: %s: %s", len(records), self._topic, exc.code, exc)
            return exc
        return None

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._kept.add(task)  # the loop itself holds tasks weakly
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
