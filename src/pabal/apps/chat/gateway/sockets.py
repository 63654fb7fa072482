"""The Socket.IO events. Each one checks the user, the end of its token, the rate limit and the room."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any

from socketio.exceptions import ConnectionRefusedError

from pabal.apps.chat.errors import NotMember, RoomUnknown
from pabal.apps.chat.events import Kind
from pabal.apps.chat.gateway.answers import RequestRefused, document_of, refusal_of, too_often, value_of
from pabal.apps.chat.gateway.bodies import InRoom, JoinRoom, Renewal, SendMessage
from pabal.apps.chat.gateway.catch_up import CatchUp
from pabal.apps.chat.gateway.context import Context, Rates, created
from pabal.apps.chat.gateway.presence import LocalSockets, Typing, record_of
from pabal.apps.chat.gateway.server import Server, user_name
from pabal.apps.chat.gateway.sessions import Session, Sessions
from pabal.errors import Outage, PabalError

Ack = dict[str, Any]


class Sockets:
    """Handles the events that clients emit."""

    def __init__(
        self,
        context: Context,
        rates: Rates,
        *,
        server: Server,
        sessions: Sessions,
        catching_up: CatchUp,
        local: LocalSockets,
    ) -> None:
        self._context, self._rates, self._server = context, rates, server
        self._sessions, self._catching_up, self._local = sessions, catching_up, local
        self._goodbyes: set[asyncio.Task[None]] = set()
        server.on("connect", self.connect)
        server.on("disconnect", self.disconnect)
        for event, handle in {
            "joinRoom": self.join_room,
            "leaveRoom": self.leave_room,
            "typing": self.typing,
            "heartbeat": self.heartbeat,
            "renew": self.renew,
        }.items():
            server.on(event, self._checked(handle))
        server.on("sendMessage", self.send_message)

    async def connect(self, sid: str, request: dict[str, Any], auth: object) -> None:
        """Accept a client with a valid token in `auth.token`; tokens elsewhere are ignored."""
        login = self._context.tokens.read_login(auth.get("token") if isinstance(auth, dict) else None)
        if login is None or not await self._context.sessions.live(login.session):
            raise _no_entry(_unknown())
        session = Session(sid, login)
        try:
            self._sessions.add(session)
        except RequestRefused as exc:
            raise _no_entry(exc) from exc
        self._set_end(session)
        await self._server.enter_room(sid, user_name(login.user_id))
        self._local.heard(sid, login.user_id)

    async def disconnect(self, sid: str, reason: object) -> None:
        session = self._sessions.remove(sid)
        self._local.gone(sid)
        for room_id in session.rooms if session else ():
            self._catching_up.forget(room_id, sid)

    async def join_room(self, session: Session, data: object) -> Ack:
        """Answer the room's last sequence; then send the missed messages and the live ones."""
        asked = value_of(data, JoinRoom)
        await self._require_member(session, asked.room_id)
        room = await self._context.calls(self._context.calls.ledger.room, asked.room_id)
        if room is None:
            raise RoomUnknown("there is no such room")
        await self._catching_up.leave(session, asked.room_id)
        await self._require_member(session, asked.room_id)  # it may have left meanwhile
        if self._sessions.get(session.sid) is session:
            have = room.last_sequence if asked.last_sequence is None else asked.last_sequence
            self._catching_up.begin(session, asked.room_id, min(have, room.last_sequence))
            self._local.entered(session.user, asked.room_id)
        return {"success": True, "lastSequence": room.last_sequence}

    async def leave_room(self, session: Session, data: object) -> Ack:
        """Stop sending a room to this socket; its user stays a member."""
        await self._catching_up.leave(session, value_of(data, InRoom).room_id)
        return {"success": True}

    async def typing(self, session: Session, data: object) -> Ack:
        """Announce typing to the room, at most every two seconds."""
        room_id = value_of(data, InRoom).room_id
        await self._require_member(session, room_id)
        if not self._rates.typing.take((session.user, room_id)):
            self._context.announcements.append_soon(record_of(Typing(session.user, room_id)))
        return {"success": True}

    async def heartbeat(self, session: Session, data: object) -> Ack:
        return {"success": True}

    async def renew(self, session: Session, data: object) -> Ack:
        """Take a newer token of the same user, so that this socket lasts as long as that token."""
        login = self._context.tokens.read_login(value_of(data, Renewal).token)
        if login is None or login.user_id != session.user or not await self._context.sessions.live(login.session):
            raise _unknown()
        if self._sessions.get(session.sid) is session:
            session.login = login
            self._set_end(session)
        return {"success": True}

    async def end(self, sessions: Collection[str]) -> None:
        """Disconnect the sockets of sessions that were ended."""
        for session in sessions:
            self._context.sessions.learn(session, False)
        for socket in self._sessions.all():
            if socket.login.session in sessions:
                await self._say_goodbye(socket.sid)

    async def recheck(self) -> None:
        """Ask the ledger about the sessions and rooms of all sockets: of some changes no event has come."""
        with suppress(Outage):
            sockets = self._sessions.all()
            await self.end(await self._context.sessions.recheck(sorted({socket.login.session for socket in sockets})))
            joined = {(room, socket.user) for socket in sockets for room in (*socket.rooms, *socket.joining)}
            for room, user in await self._context.memberships.recheck(sorted(joined)):
                await self.evict(user, room)
                await self._server.emit("membership", {"roomId": room, "member": False}, to=user_name(user))

    async def send_message(self, sid: str, data: object = None, *more: object) -> Ack:
        """Accept a message: ACCEPTED means that it is durable and will be stored, or rejected, by a worker."""
        client_msg_id = _echo(data.get("clientMsgId")) if isinstance(data, dict) else None
        try:
            session = self._session(sid)
            if wait := self._rates.sends.take(session.user):
                raise too_often(wait)
            asked = value_of(data, SendMessage)
            async with session.sending:  # a slow check must not let later messages overtake this one
                await self._check_content(session, asked)
            now = self._context.clock.now()
            await self._context.messages.append(
                created(session.login, asked.room_id, asked.client_msg_id, Kind(asked.type), asked.content, now)
            )
        except PabalError as exc:
            return {"clientMsgId": client_msg_id, "status": "FAILED", "error": document_of(refusal_of(exc))}
        return {"clientMsgId": asked.client_msg_id, "status": "ACCEPTED"}

    async def evict(self, user: str, room_id: str) -> None:
        """Remove a user's sockets from a room that the user left, or was removed from."""
        self._context.memberships.learn(room_id, user, False)
        self._local.left(user, room_id)
        for session in self._sessions.of_user(user):
            await self._catching_up.leave(session, room_id)

    async def _check_content(self, session: Session, asked: SendMessage) -> None:
        if self._context.messages.full:
            raise Outage("more messages wait than can be taken")
        if len(asked.content) > (most := self._context.limits.content):
            raise RequestRefused(
                400, "InvalidInput", f"a message has at most {most} characters; found {len(asked.content)}"
            )
        await self._require_member(session, asked.room_id)
        if asked.type == Kind.IMAGE and not await self._context.images.uploaded(asked.content, session.user):
            raise RequestRefused(404, "ImageUnknown", "the content of an IMAGE is the id that POST /images answered")

    async def _require_member(self, session: Session, room_id: str) -> None:
        if not await self._context.memberships.has(room_id, session.user):
            raise NotMember("you are no member of this room")

    def _checked(self, handle: Callable[[Session, object], Awaitable[Ack]]) -> Callable[..., Awaitable[Ack]]:
        async def checked(sid: str, data: object = None, *more: object) -> Ack:
            try:
                session = self._session(sid)
                if wait := self._rates.events.take(sid):
                    raise too_often(wait)
                return await handle(session, data)
            except PabalError as exc:
                return {"success": False, "error": document_of(refusal_of(exc))}

        return checked

    def _session(self, sid: str) -> Session:
        """Return the session, if its token is still valid; every event is a sign of life."""
        session = self._sessions.get(sid)
        if session is None or session.login.expires_at <= self._context.clock.now():
            raise _unknown()
        if self._context.sessions.ended(session.login.session):
            raise _unknown()
        self._local.heard(sid, session.user)
        return session

    def _set_end(self, session: Session) -> None:
        """Disconnect a socket when its token ends."""
        if session.end is not None:
            session.end.cancel()
        rest = session.login.expires_at - self._context.clock.now()
        session.end = asyncio.get_running_loop().call_later(rest, self._expire, session.sid)

    def _expire(self, sid: str) -> None:
        task = asyncio.get_running_loop().create_task(self._say_goodbye(sid))
        self._goodbyes.add(task)  # the event loop keeps only weak references to tasks
        task.add_done_callback(self._goodbyes.discard)

    async def _say_goodbye(self, sid: str) -> None:
        await self._server.emit("expired", {}, to=sid)
        await self._server.disconnect(sid)


def _echo(found: object) -> str | None:
    """Return the id that a client gave to a message, for its answer; None if it cannot be written as JSON."""
    return found if isinstance(found, str) and not any("\ud800" <= letter <= "\udfff" for letter in found) else None


def _unknown() -> RequestRefused:
    return RequestRefused(401, "NotAuthenticated", "no valid token: log in again")


def _no_entry(refusal: RequestRefused) -> ConnectionRefusedError:
    return ConnectionRefusedError(str(refusal), {"error": document_of(refusal)})
