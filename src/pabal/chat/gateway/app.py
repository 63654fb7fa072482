"""A gateway put together: Starlette for REST and the page, python-socketio for sockets, followers for the topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import socketio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from pabal.chat.events import BROADCAST, MESSAGES, PERSISTED, PRESENCE, REJECTED
from pabal.chat.gateway.answers import on_error
from pabal.chat.gateway.broadcasting import Broadcasting, handing_over, persisted_of, rejected_of
from pabal.chat.gateway.catching_up import CatchingUp, Floors
from pabal.chat.gateway.following import Follower
from pabal.chat.gateway.guard import Guard
from pabal.chat.gateway.images import Images
from pabal.chat.gateway.ledger_calls import LedgerCalls
from pabal.chat.gateway.limits import Limits
from pabal.chat.gateway.membership import Memberships
from pabal.chat.gateway.origins import Origins
from pabal.chat.gateway.page import Page
from pabal.chat.gateway.parts import Parts, Rates
from pabal.chat.gateway.passwords import Passwords
from pabal.chat.gateway.presence import TTL, LocalSockets, Presence
from pabal.chat.gateway.presence_events import Empty, PresenceEvent, event_of, record_of
from pabal.chat.gateway.rest import Door
from pabal.chat.gateway.rest_auth import AuthEndpoints
from pabal.chat.gateway.rest_images import ImageEndpoints
from pabal.chat.gateway.rest_messages import MessageEndpoints
from pabal.chat.gateway.rest_rooms import RoomEndpoints
from pabal.chat.gateway.sending import Sending
from pabal.chat.gateway.server import Server
from pabal.chat.gateway.sessions import Sessions
from pabal.chat.gateway.sockets import Sockets
from pabal.chat.gateway.telling import Telling
from pabal.chat.gateway.tending import Tending
from pabal.chat.gateway.tokens import DAY, Tokens
from pabal.chat.ledger.contract import Ledger
from pabal.clock import Clock
from pabal.errors import PabalError
from pabal.topic import Record, Topics


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What one gateway is: its name, which no other gateway of the chat has, and what it may do."""

    name: str
    secret: bytes
    images: Path
    limits: Limits = field(default_factory=Limits)
    origins: Origins = field(default_factory=Origins)
    token_lifetime: float = DAY


class Gateway:
    """The application of one gateway. Serves between `begin` and `end`."""

    def __init__(self, settings: Settings, topics: Topics, ledger: Ledger, clock: Clock) -> None:
        self._settings, self._topics, self._clock = settings, topics, clock
        limits = settings.limits
        calls = LedgerCalls(ledger, clock)
        self.server = Server(limits, settings.origins)
        self._floors = Floors()
        self._parts = Parts(
            clock=clock,
            limits=limits,
            tokens=Tokens(settings.secret, clock, lifetime=settings.token_lifetime),
            calls=calls,
            memberships=Memberships(calls, clock),
            messages=Sending(topics, MESSAGES),
            whispers=Sending(topics, PRESENCE),
            presence=Presence(clock),
            passwords=Passwords(),
            images=Images(settings.images, pixels=limits.image_pixels),
        )
        self._rates = Rates(limits, clock)
        self._local = LocalSockets(settings.name, clock, self._whisper)
        sessions = Sessions(limits)
        self._sockets = Sockets(
            self._parts,
            self._rates,
            server=self.server,
            sessions=sessions,
            catching_up=CatchingUp(self.server, calls, self._floors),
            local=self._local,
        )
        self._telling = Telling(self._parts, self.server, self._sockets, sessions)
        self._tending = Tending(self.server, sessions, self._local, self._telling, clock, limits)
        self._followers: list[Follower] = []
        self._tender: asyncio.Task[None] | None = None
        self.asgi = self._assembled()

    async def begin(self) -> None:
        """Follow the topics, the presence of the last minute too."""
        starts, presence_end = await asyncio.to_thread(self._starts)
        loop, broadcasting = asyncio.get_running_loop(), Broadcasting(self.server, self._floors)
        takes: dict[str, Callable[..., None]] = {
            PERSISTED: handing_over(loop, persisted_of, broadcasting.persisted),
            REJECTED: handing_over(loop, rejected_of, broadcasting.rejected),
            PRESENCE: handing_over(loop, partial(self._aged, presence_end), self._telling.learn),
        }
        self._whisper(Empty(self._settings.name))
        group = f"{BROADCAST}{self._settings.name}"
        self._followers = [Follower(self._topics, topic, group, starts[topic], take) for topic, take in takes.items()]
        self._tender = asyncio.create_task(self._tending.run())

    @property
    def frame(self) -> int:
        """The bytes that a frame of a socket may have."""
        return self._settings.limits.frame

    async def dismiss(self) -> None:
        """Close all sockets: their clients go to another gateway, or come back."""
        for connection in list(self.server.eio.sockets):
            await self.server.cut_off(connection)

    async def end(self) -> None:
        """Finish what was taken in, tell the others that nobody is online here, and leave."""
        if self._tender is not None:
            self._tender.cancel()
        with suppress(PabalError):
            await self._parts.whispers.append(record_of(Empty(self._settings.name)))
        await self._parts.messages.close()
        await self._parts.whispers.close()
        await asyncio.gather(*(asyncio.to_thread(follower.stop) for follower in self._followers))
        self._parts.passwords.close()
        self._parts.images.close()
        await asyncio.to_thread(self._parts.calls.close)

    def _aged(self, end: int, records: list[Record]) -> list[tuple[PresenceEvent | None, float]]:
        """Return events with their ages: what was there before us may be old, whatever follows is new."""
        now = self._clock.now()
        return [(event_of(record), now - record.at if record.offset < end else 0.0) for record in records]

    def _starts(self) -> tuple[dict[str, dict[int, int]], int]:
        """Return where to begin: at the end, since nobody is connected yet; with presence, what may still hold."""
        [presence] = self._topics.bounds(PRESENCE)
        ends = {
            topic: dict(enumerate(bounds.next for bounds in self._topics.bounds(topic)))
            for topic in (PERSISTED, REJECTED)
        }
        ends[PRESENCE] = dict(enumerate(self._topics.offsets_at(PRESENCE, self._clock.now() - TTL)))
        return ends, presence.next

    def _whisper(self, event: PresenceEvent) -> None:
        self._parts.whispers.append_soon(record_of(event))

    def _assembled(self) -> ASGIApp:
        door = Door(self._parts, self._rates)
        routes = [
            *AuthEndpoints(self._parts, self._rates).routes(door),
            *RoomEndpoints(self._parts).routes(door),
            *MessageEndpoints(self._parts).routes(door),
            *ImageEndpoints(self._parts, self._rates).routes(door),
            Route("/health", _health, methods=["GET"]),
            Mount("/", Page()),
        ]
        errors = dict.fromkeys((Exception, PabalError, ClientDisconnect, 404, 405), on_error)
        rest = Starlette(routes=routes, exception_handlers=errors, middleware=self._cors())
        app = socketio.ASGIApp(self.server, rest)
        settings = self._settings
        return Guard(app, server=self.server, origins=settings.origins, limits=settings.limits)

    def _cors(self) -> list[Middleware]:
        listed = list(self._settings.origins.origins)
        headers = ["Authorization", "Content-Type"]
        allowed = Middleware(CORSMiddleware, allow_origins=listed, allow_methods=["GET", "POST"], allow_headers=headers)
        return [allowed] if listed else []


async def _health(request: Request) -> Response:
    """Say that this process answers, and nothing else to whoever asks."""
    return PlainTextResponse("ok")
