"""What a gateway does every second: presence that ran out, sockets that never log in or never read."""

from __future__ import annotations

import asyncio
import logging

from pabal.chat.gateway.limits import Limits
from pabal.chat.gateway.presence import LocalSockets
from pabal.chat.gateway.server import Server
from pabal.chat.gateway.sessions import Sessions
from pabal.chat.gateway.telling import Telling
from pabal.clock import Clock

log = logging.getLogger("pabal.chat")

_EVERY = 1.0  # seconds
LOGIN_SECONDS = 10.0  # that a connection has before it must be logged in


class Tending:
    """The loop behind the others."""

    def __init__(
        self, server: Server, sessions: Sessions, local: LocalSockets, telling: Telling, clock: Clock, limits: Limits
    ) -> None:
        self._server, self._sessions, self._local, self._telling = server, sessions, local, telling
        self._clock, self._limits = clock, limits
        self._strangers: dict[str, float] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY)
            try:
                await self.step()
            except Exception:  # one bad second must not be the last
                log.exception("the gateway could not be tended")

    async def step(self) -> None:
        self._local.tick()
        await self._telling.tick()
        await self._dismiss_strangers()
        for session in self._sessions.all():
            if self._server.behind(session.sid) > self._limits.waiting:
                await self._server.cut_off(self._server.connection_of(session.sid), at_once=True)

    async def _dismiss_strangers(self) -> None:
        now = self._clock.boot()
        strangers = self._server.strangers()
        self._strangers = {eio: self._strangers.get(eio, now) for eio in strangers}
        for eio, since in self._strangers.items():
            if now - since > LOGIN_SECONDS:
                await self._server.cut_off(eio)
