"""The gateway's application: Starlette for REST and the page, python-socketio for sockets, followers for the topics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import socketio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from pabal.apps.chat.events import BROADCAST, MESSAGES, PERSISTED, PRESENCE, REJECTED
from pabal.apps.chat.gateway.answers import on_error
from pabal.apps.chat.gateway.appender import Appender
from pabal.apps.chat.gateway.auth import DAY, Passwords, Tokens
from pabal.apps.chat.gateway.broadcast import Broadcaster, Follower, in_loop, persisted_of, rejected_of
from pabal.apps.chat.gateway.catch_up import CatchUp, Floors
from pabal.apps.chat.gateway.context import Context, Rates
from pabal.apps.chat.gateway.guard import Guard
from pabal.apps.chat.gateway.images import Images
from pabal.apps.chat.gateway.ledger_calls import LASTS, LedgerCalls, LiveSessions, Memberships
from pabal.apps.chat.gateway.limits import Limits
from pabal.apps.chat.gateway.operations import Operations, State
from pabal.apps.chat.gateway.presence import (
    TTL,
    Belongs,
    Change,
    Empty,
    Ended,
    HasRead,
    LocalSockets,
    Presence,
    PresenceEvent,
    Renamed,
    Typing,
    event_of,
    record_of,
)
from pabal.apps.chat.gateway.rest import Door, ImageEndpoints, MessageEndpoints
from pabal.apps.chat.gateway.rest_accounts import AccountEndpoints
from pabal.apps.chat.gateway.rest_rooms import RoomEndpoints
from pabal.apps.chat.gateway.server import Server, room_name, user_name
from pabal.apps.chat.gateway.sessions import Sessions
from pabal.apps.chat.gateway.sockets import Sockets
from pabal.apps.chat.ledger import Ledger
from pabal.clock import Clock, iso_stamp
from pabal.errors import PabalError
from pabal.runtime.origins import Origins
from pabal.topic_store import Record, Topics

log = logging.getLogger("pabal.chat")

FOLDER = Path(__file__).parent.parent / "web"
# Images are fetched with a token, so they come as blobs; so does the preview of an image to be sent.
CSP = (
    "default-src 'self'; img-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
LOGIN_SECONDS = 10.0  # that a connection has to log in
_GOODBYE_SECONDS = 2.0  # for announcing that nobody is online here any more
_EVERY = 1.0  # seconds between two rounds of housekeeping


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one gateway. Its name must be unique in the chat."""

    name: str
    secret: bytes
    images: Path
    limits: Limits = field(default_factory=Limits)
    origins: Origins = field(default_factory=Origins)
    token_lifetime: float = DAY
    metrics_from: tuple[str, ...] = ()  # addresses beside loopback that may read the metrics


class Starts(NamedTuple):
    """Where a gateway begins to read: by topic and partition, and where the presence topic ended then."""

    first: dict[str, dict[int, int]]
    presence_end: int


def starts_of(topics: Topics, clock: Clock) -> Starts:
    """Return the ends of the topics, as nobody is connected yet; for presence, one TTL back."""
    [presence] = topics.bounds(PRESENCE)
    first = {topic: dict(enumerate(bounds.next for bounds in topics.bounds(topic))) for topic in (PERSISTED, REJECTED)}
    first[PRESENCE] = dict(enumerate(topics.offsets_at(PRESENCE, clock.now() - TTL)))
    return Starts(first, presence.next)


class Gateway:
    """The application of one gateway. It serves between `begin` and `end`."""

    def __init__(self, settings: Settings, topics: Topics, ledger: Ledger, clock: Clock) -> None:
        self._settings, self._topics, self._clock = settings, topics, clock
        limits = settings.limits
        calls, background = LedgerCalls(ledger, clock), LedgerCalls(ledger, clock, threads=2)
        self.server = Server(limits, settings.origins)
        self._floors = Floors()
        self._background = background
        self._context = Context(
            clock=clock,
            limits=limits,
            tokens=Tokens(settings.secret, clock, lifetime=settings.token_lifetime),
            calls=calls,
            memberships=Memberships(background, clock),
            sessions=LiveSessions(background, clock),
            messages=Appender(topics, MESSAGES),
            announcements=Appender(topics, PRESENCE),
            presence=Presence(clock),
            passwords=Passwords(limits.passwords),
            images=Images(settings.images, pixels=limits.image_pixels, side=limits.image_side),
        )
        self._rates = Rates(limits, clock)
        self._local = LocalSockets(settings.name, clock, self._announce)
        self._sessions = sessions = Sessions(limits)
        self._sockets = Sockets(
            self._context,
            self._rates,
            server=self.server,
            sessions=sessions,
            catching_up=CatchUp(self.server, calls, self._floors),
            local=self._local,
        )
        self._presence_updates = PresenceUpdates(self._context, self.server, self._sockets, sessions)
        self._housekeeping = Housekeeping(
            self.server, sessions, self._sockets, self._local, self._presence_updates, clock, limits
        )
        self._followers: list[Follower] = []
        self._housekeeper: asyncio.Task[None] | None = None
        self.asgi = self._assembled()

    async def begin(self, starts: Starts) -> None:
        """Follow the topics."""
        loop, broadcasting = asyncio.get_running_loop(), Broadcaster(self.server, self._floors)
        takes: dict[str, Callable[..., None]] = {
            PERSISTED: in_loop(loop, persisted_of, broadcasting.persisted),
            REJECTED: in_loop(loop, rejected_of, broadcasting.rejected),
            PRESENCE: in_loop(loop, partial(self._aged, starts.presence_end), self._presence_updates.learn),
        }
        self._announce(Empty(self._settings.name))
        group = f"{BROADCAST}{self._settings.name}"
        self._followers = [
            Follower(self._topics, topic, group, starts.first[topic], take) for topic, take in takes.items()
        ]
        self._housekeeper = asyncio.create_task(self._housekeeping.run())

    @property
    def frame(self) -> int:
        """The size limit of a socket's frame, in bytes."""
        return self._settings.limits.frame

    async def dismiss(self) -> None:
        """Close all sockets; their clients connect again, here or to another gateway."""
        for connection in list(self.server.eio.sockets):
            await self.server.cut_off(connection)

    async def end(self) -> None:
        """Finish accepted messages, announce that nobody is online here any more, and leave the groups."""
        if self._housekeeper is not None:
            self._housekeeper.cancel()
        await asyncio.gather(
            self._context.messages.close(),
            self._say_goodbye(),
            *(asyncio.to_thread(follower.stop) for follower in self._followers),
        )
        self._context.passwords.close()
        self._context.images.close()
        self._context.memberships.close()
        self._context.sessions.close()
        self._context.calls.close()
        self._background.close()

    async def _say_goodbye(self) -> None:
        with suppress(PabalError, TimeoutError):
            goodbye = self._context.announcements.append(record_of(Empty(self._settings.name)))
            await asyncio.wait_for(goodbye, _GOODBYE_SECONDS)
        await self._context.announcements.close(0.0)

    def _aged(self, end: int, records: list[Record]) -> list[tuple[PresenceEvent | None, float]]:
        """Return presence events with their ages: those from before the start may be old, later ones are new."""
        now = self._clock.now()
        return [(event_of(record), now - record.at if record.offset < end else 0.0) for record in records]

    def _state(self) -> State:
        return State(
            name=self._settings.name,
            reading=bool(self._followers) and not any(follower.failing for follower in self._followers),
            sockets=len(self.server.eio.sockets),
            users=self._sessions.users,
            cut_off=self._housekeeping.cut_off,
        )

    def _announce(self, event: PresenceEvent) -> None:
        self._context.announcements.append_soon(record_of(event))

    def _assembled(self) -> ASGIApp:
        door = Door(self._context, self._rates)
        routes = [
            *AccountEndpoints(self._context, self._rates, self._sockets).routes(door),
            *RoomEndpoints(self._context, self._sockets).routes(door),
            *MessageEndpoints(self._context).routes(door),
            *ImageEndpoints(self._context, self._rates).routes(door),
            Route("/health", _health, methods=["GET"]),
            *Operations(self._context, self._state, self._settings.metrics_from).routes(),
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
    """Answer that this process is alive, and reveal nothing else."""
    return PlainTextResponse("ok")


class Page(StaticFiles):
    """The files of the web page. Browsers revalidate them each time, and get 304 while they are unchanged."""

    def __init__(self) -> None:
        super().__init__(directory=FOLDER, html=True)

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        response.headers["Content-Security-Policy"] = CSP
        return response


class Housekeeping:
    """What a gateway does every second: expire presence, close sockets that never log in, never read or have ended."""

    def __init__(
        self,
        server: Server,
        sessions: Sessions,
        sockets: Sockets,
        local: LocalSockets,
        presence_updates: PresenceUpdates,
        clock: Clock,
        limits: Limits,
    ) -> None:
        self._server, self._sessions, self._sockets, self._local = server, sessions, sockets, local
        self._presence_updates, self._clock, self._limits = presence_updates, clock, limits
        self._rechecked_at = clock.boot()
        self._recheck: asyncio.Task[None] | None = None
        self._unauthenticated: dict[str, float] = {}
        self.cut_off = 0  # clients that did not read

    async def run(self) -> None:
        try:
            while True:
                await asyncio.sleep(_EVERY)
                try:
                    await self.step()
                except Exception:  # one failure must not end the loop
                    log.exception("the gateway could not do its housekeeping")
        finally:
            if self._recheck is not None:
                self._recheck.cancel()

    async def step(self) -> None:
        self._local.tick()
        await self._presence_updates.tick()
        await self._close_unauthenticated()
        self._begin_recheck()
        for session in self._sessions.all():
            if (behind := self._server.behind(session.sid)) > self._limits.waiting:
                facts = {"user": session.user, "packets": behind}
                log.warning("a client of %(user)s that does not read was cut off with %(packets)d packets", facts)
                self.cut_off += 1
                await self._server.cut_off(self._server.connection_of(session.sid), at_once=True)

    def _begin_recheck(self) -> None:
        """Check sessions and memberships of all sockets, in a task of its own: the database may hang."""
        now = self._clock.boot()
        if now - self._rechecked_at >= LASTS and (self._recheck is None or self._recheck.done()):
            self._rechecked_at = now
            self._recheck = asyncio.create_task(self._sockets.recheck())

    async def _close_unauthenticated(self) -> None:
        now = self._clock.boot()
        unauthenticated = self._server.unauthenticated()
        self._unauthenticated = {eio: self._unauthenticated.get(eio, now) for eio in unauthenticated}
        for eio, since in self._unauthenticated.items():
            if now - since > LOGIN_SECONDS:
                await self._server.cut_off(eio)


class PresenceUpdates:
    """Applies the events of the presence topic and informs the rooms concerned. Runs in the event loop."""

    def __init__(self, context: Context, server: Server, sockets: Sockets, sessions: Sessions) -> None:
        self._context, self._server, self._sockets, self._sessions = context, server, sockets, sessions

    async def learn(self, events: Iterable[tuple[PresenceEvent | None, float]]) -> None:
        """Apply events, each with its age in seconds, in order."""
        for event, age in events:
            match event:
                case Belongs(user, room, member):
                    if member:
                        self._context.memberships.learn(room, user, True)
                    else:
                        await self._sockets.evict(user, room)
                    await self._server.emit("membership", {"roomId": room, "member": member}, to=user_name(user))
                case HasRead(user, room, sequence):
                    document = {"roomId": room, "lastReadSequence": sequence}
                    await self._server.emit("read", document, to=user_name(user))
                case Renamed(room, name):
                    await self._server.emit("roomRenamed", {"roomId": room, "name": name}, to=room_name(room))
                case Ended(sessions):
                    await self._sockets.end(sessions)
                case Typing(user, room):
                    typing = {"roomId": room, "userId": user}
                    await self._server.emit("typing", typing, to=room_name(room), skip_sid=self._own(user))
            if event is not None:
                await self._inform(self._context.presence.learn(event, age))

    async def tick(self) -> None:
        """Inform the rooms of users whose presence has expired."""
        await self._inform(self._context.presence.tick())

    async def _inform(self, changes: Iterable[Change]) -> None:
        """Inform rooms about users that came or went; for large rooms clients ask for the members instead."""
        for user, online, rooms in changes:
            most = self._context.limits.presence
            names = [name for name in map(room_name, rooms) if 0 < self._server.count_in(name) <= most]
            if names:
                document = {"userId": user, "online": online, "at": iso_stamp(self._context.clock.now())}
                await self._server.emit("presence", document, to=names, skip_sid=self._own(user))

    def _own(self, user: str) -> list[str]:
        return [session.sid for session in self._sessions.of_user(user)]
