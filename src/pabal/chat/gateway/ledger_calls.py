"""Calls of the ledger from the event loop: each runs in a thread, and an outage is remembered for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from pabal.chat.ledger.contract import Ledger
from pabal.clock import Clock
from pabal.errors import Outage

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 8
_MOMENT = 1.0  # seconds


class LedgerCalls:
    """Runs methods of a ledger: `await calls(calls.ledger.room, room_id)`."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self.ledger = ledger
        self._clock = clock
        self._pool = ThreadPoolExecutor(_THREADS, "pabal-chat-ledger")
        self._down_until = 0.0

    @property
    def down(self) -> bool:
        """Say whether the database did not answer a moment ago."""
        return self._clock.boot() < self._down_until

    async def __call__(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, partial(method, *args, **kwargs))
        except Outage:
            self._down_until = self._clock.boot() + _MOMENT
            raise

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
