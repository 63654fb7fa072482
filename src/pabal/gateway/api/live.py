"""The stream of figures: read once a second for all watching clients. A store that does not answer is a fault.

A look that does not return is reported while it goes on, so one that hangs costs one thread and one connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pabal.aio.calls import Threads
from pabal.clock import Clock, iso_stamp
from pabal.errors import PabalError
from pabal.queues.overview import PATIENCE, Overview, OverviewReader, Source, silence_fault
from pabal.runtime.heartbeat import read_pulse

log = logging.getLogger("pabal.gateway")

_EVERY = 1.0  # seconds between two signs of life; with PATIENCE below the two in which a stop must be shown
_MINUTE = 60.0
_MINUTES = 60  # of the line of each queue

T = TypeVar("T")


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class Live:
    """Reads the figures while somebody watches, and once a minute else, for the line of the last hour.

    `pause` waits for so many seconds, or for an event that comes before.
    """

    def __init__(
        self,
        source: Source,
        clock: Clock,
        *,
        heartbeat: Path | None = None,
        pause: Callable[[asyncio.Event, float], Awaitable[None]] = _wait,
    ) -> None:
        self._source = source
        self._clock = clock
        self._heartbeat = heartbeat  # of the manager that keeps this gateway running
        self._pause = pause
        self._reader = OverviewReader(clock, step=_MINUTE, steps=_MINUTES)
        self._threads = Threads("pabal-figures", 1)  # its own: searches must not delay it
        self._watchers = 0
        self._wanted = asyncio.Event()
        self._never = asyncio.Event()
        self._changed = asyncio.Condition()
        self._latest = Overview(at="", queues=[], consumers=0, fault=None, manager=None)
        self._signs = 0  # of life
        self._looks = 0
        self._looking = asyncio.create_task(self._look())

    async def watch(self) -> AsyncGenerator[Overview | None, None]:
        """Yield the figures each time they were read, from now on; None is a sign of life about once a second."""
        self._watchers += 1
        self._wanted.set()
        seen, signs = self._looks, self._signs
        try:
            if self._latest["at"]:
                yield self._latest
            while True:
                async with self._changed:
                    while self._signs == signs:
                        await self._changed.wait()
                    signs, fresh, seen = self._signs, self._looks != seen, self._looks
                    latest = self._latest
                yield latest if fresh else None
        finally:
            self._watchers -= 1

    def close(self) -> None:
        self._looking.cancel()
        self._threads.abandon()

    async def _look(self) -> None:
        while True:
            found = await self._answer(lambda: self._reader.read(self._source))
            if found is not None:
                await self._show(found)
            if not self._watchers:
                self._wanted.clear()
                await self._pause(self._wanted, _MINUTE)
                continue
            rest = 0.0 if found is None else self._reader.rest
            await self._pause(self._never, _EVERY)
            while (rest := rest - _EVERY) > 0 and self._watchers:
                # A look costs much here; whether the store answers is asked all the same.
                if await self._answer(lambda: self._reader.ask(self._source.queues)) is None:
                    break
                if self._manager_fault() != self._latest["manager"]:
                    await self._show(self._latest)
                await self._sign()
                await self._pause(self._never, _EVERY)

    async def _answer(self, call: Callable[[], T]) -> T | None:
        """Return what a call of the store gives; show a fault if it fails, and while it does not answer."""
        calling = asyncio.ensure_future(self._threads(call))
        shown_at, shown_silent = time.monotonic(), False
        while not calling.done():
            await asyncio.wait([calling], timeout=PATIENCE / 4)
            silent, now = self._reader.silent(), time.monotonic()
            is_news = silent >= PATIENCE and not shown_silent
            if calling.done() or not (is_news or now - shown_at >= _EVERY):
                continue
            shown_at, shown_silent = now, silent >= PATIENCE
            if silent >= PATIENCE:
                await self._show_fault(silence_fault(silent))
            else:  # it answers, and has many queues
                await self._sign()
        try:
            return calling.result()
        except PabalError as exc:
            await self._show_fault(f"{exc.code}: {exc}")
        except Exception:
            log.exception("the figures of the dashboard cannot be read")
            await self._show_fault("the log of the gateway says why")
        return None

    async def _show_fault(self, words: str) -> None:
        await self._show({**self._latest, "at": iso_stamp(self._clock.now()), "fault": words})

    async def _show(self, found: Overview) -> None:
        self._latest = {**found, "manager": self._manager_fault()}
        self._looks += 1
        await self._sign()

    def _manager_fault(self) -> str | None:
        if self._heartbeat is None:
            return None
        pulse = read_pulse(self._heartbeat, self._clock)
        return {"ok": None, "hung": "the manager stands still: requests in its mailbox are not answered"}.get(
            pulse.state, "the manager is gone"
        )

    async def _sign(self) -> None:
        async with self._changed:
            self._signs += 1
            self._changed.notify_all()
