"""Who is a member of which room, remembered for a while, and for as long as the database is down."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from pabal.chat.gateway.ledger_calls import LedgerCalls
from pabal.clock import Clock
from pabal.errors import Outage

LASTS = 30.0  # seconds
_MANY = 200_000  # entries above which the older half is forgotten


class _Known(NamedTuple):
    member: bool
    until: float


class Memberships:
    """Answers from memory, else from the ledger. For one event loop."""

    def __init__(self, calls: LedgerCalls, clock: Clock) -> None:
        self._calls, self._clock = calls, clock
        self._known: dict[tuple[str, str], _Known] = {}
        self._asking: dict[tuple[str, str], asyncio.Task[bool]] = {}

    async def has(self, room_id: str, user_id: str) -> bool:
        """Say whether a user is a member; Outage if that is not known and cannot be asked."""
        key = (room_id, user_id)
        known = self._known.get(key)
        if known is not None and (known.until > self._clock.boot() or self._calls.down):
            return known.member
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.create_task(self._ask(key))
        try:
            return await asyncio.shield(asking)
        except Outage:
            if known is None:
                raise
            return known.member

    def learn(self, room_id: str, user_id: str, member: bool) -> None:
        """Take note of who came or went."""
        key = (room_id, user_id)
        self._asking.pop(key, None)  # an answer from before does not count any more
        self._known[key] = _Known(member, self._clock.boot() + LASTS)

    async def _ask(self, key: tuple[str, str]) -> bool:
        this = asyncio.current_task()
        try:
            member = await self._calls(self._calls.ledger.is_member, *key)
            if self._asking.get(key) is this:
                self._remember(key, member)
            return member
        finally:
            if self._asking.get(key) is this:
                del self._asking[key]

    def _remember(self, key: tuple[str, str], member: bool) -> None:
        if len(self._known) > _MANY:
            for old in list(self._known)[: _MANY // 2]:
                del self._known[old]
        self._known.pop(key, None)
        self._known[key] = _Known(member, self._clock.boot() + LASTS)
