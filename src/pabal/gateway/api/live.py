"""The figures of all queues, read once a second for all who watch, with rates and the last hour."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from pabal.clock import Clock, iso_stamp
from pabal.errors import PabalError
from pabal.gateway.api.calls import Calls
from pabal.gateway.api.types import QueueFigures

log = logging.getLogger("pabal.gateway")

_EVERY = 1.0  # seconds between two looks
_MINUTE = 60.0
_SHARE = 50  # a look is followed by a rest of at least so many times its length
_MINUTES = 60  # of the line of each queue
_RATE_SECONDS = 5.0  # over which a rate is counted


class Live:
    """Reads the figures while somebody watches, and once a minute else, for the line of the last hour."""

    def __init__(self, calls: Calls, clock: Clock) -> None:
        self._calls = calls
        self._clock = clock
        self._watchers = 0
        self._wanted = asyncio.Event()
        self._changed = asyncio.Condition()
        self._latest: dict[str, Any] = {}
        self._looks = 0
        self._samples: dict[str, deque[tuple[float, int, int]]] = {}
        self._lines: dict[str, deque[tuple[int, int, int]]] = {}
        self._looking = asyncio.create_task(self._look())

    async def watch(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the figures each time they were read, from now on."""
        self._watchers += 1
        self._wanted.set()
        seen = self._looks
        try:
            if self._latest:
                yield self._latest
            while True:
                async with self._changed:
                    while self._looks == seen:
                        await self._changed.wait()
                    seen, latest = self._looks, self._latest
                yield latest
        finally:
            self._watchers -= 1

    def close(self) -> None:
        self._looking.cancel()

    async def _look(self) -> None:
        while True:
            begun = time.monotonic()
            found = await self._read()
            async with self._changed:
                self._latest = found
                self._looks += 1
                self._changed.notify_all()
            rest = (time.monotonic() - begun) * _SHARE
            await asyncio.sleep(_EVERY if found["fault"] else max(_EVERY, min(rest, _MINUTE)))
            if not self._watchers:
                self._wanted.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_MINUTE):
                        await self._wanted.wait()

    async def _read(self) -> dict[str, Any]:
        at = iso_stamp(self._clock.now())
        try:
            figures = await self._calls.figures()
            self._forget_all_but({each["queue"] for each in figures})
            queues = [self._with_rates(each) for each in figures]
            consumers = (await self._calls.list_consumers())["consumers"]
        except PabalError as exc:
            return {"at": at, "queues": [], "consumers": 0, "fault": f"{exc.code}: {exc}"}
        except Exception:
            log.exception("the figures of the dashboard cannot be read")
            return {"at": at, "queues": [], "consumers": 0, "fault": "the log of the gateway says why"}
        return {"at": at, "queues": queues, "consumers": len(consumers), "fault": None}

    def _forget_all_but(self, names: set[str]) -> None:
        for name in self._samples.keys() - names:
            del self._samples[name], self._lines[name]

    def _with_rates(self, figures: QueueFigures) -> dict[str, Any]:
        """Add messages per second, in and out, of the last seconds, and per minute of the last hour."""
        name, now = figures["queue"], time.monotonic()
        counted = (figures["published"], figures["acked"])
        samples = self._samples.setdefault(name, deque())
        while len(samples) > 1 and now - samples[1][0] >= _RATE_SECONDS:
            samples.popleft()
        first = samples[0] if samples else (now, *counted)
        samples.append((now, *counted))
        span = now - first[0]
        rates = [round(max(0, n - m) / span, 2) if span else 0.0 for n, m in zip(counted, first[1:], strict=True)]
        return {**figures, "in_rate": rates[0], "out_rate": rates[1], "line": self._line(name, counted)}

    def _line(self, name: str, counted: tuple[int, int]) -> list[list[int]]:
        """Return what came and went in each minute."""
        minute = int(self._clock.now() // 60)
        line = self._lines.setdefault(name, deque(maxlen=_MINUTES + 1))
        if not line or line[-1][0] != minute:
            line.append((minute, *counted))
        firsts = [*line, (minute + 1, *counted)]
        return [[max(0, b[1] - a[1]), max(0, b[2] - a[2])] for a, b in zip(firsts, firsts[1:], strict=False)]
