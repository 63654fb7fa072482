"""The events of Socket.IO. Each is checked on its own: who asks, whether its time is over, how often, which room."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from socketio.exceptions import ConnectionRefusedError

from pabal.chat.events import Kind
from pabal.chat.gateway.answers import RequestRefused, document_of, refusal_of, too_often, value_of
from pabal.chat.gateway.bodies import InRoom, JoinRoom, SendMessage
from pabal.chat.gateway.catching_up import CatchingUp
from pabal.chat.gateway.parts import Parts, Rates, created
from pabal.chat.gateway.presence import LocalSockets
from pabal.chat.gateway.presence_events import Typing, record_of
from pabal.chat.gateway.server import Server, user_name
from pabal.chat.gateway.sessions import Session, Sessions
from pabal.errors import NotMember, Outage, PabalError, RoomUnknown

Ack = dict[str, Any]


class Sockets:
    """Answers what clients emit."""

    def __init__(
        self,
        parts: Parts,
        rates: Rates,
        *,
        server: Server,
        sessions: Sessions,
        catching_up: CatchingUp,
        local: LocalSockets,
    ) -> None:
        self._parts, self._rates, self._server = parts, rates, server
        self._sessions, self._catching_up, self._local = sessions, catching_up, local
        self._goodbyes: set[asyncio.Task[None]] = set()
        server.on("connect", self.connect)
        server.on("disconnect", self.disconnect)
        for event, handle in {
            "joinRoom": self.join_room,
            "leaveRoom": self.leave_room,
            "typing": self.typing,
            "heartbeat": self.heartbeat,
        }.items():
            server.on(event, self._checked(handle))
        server.on("sendMessage", self.send_message)

    async def connect(self, sid: str, request: dict[str, Any], auth: object) -> None:
        """Let in who has a token in `auth.token`; nowhere else is one looked for."""
        login = self._parts.tokens.read_login(auth.get("token") if isinstance(auth, dict) else None)
        if login is None:
            raise _no_entry(_unknown())
        session = Session(sid, login)
        try:
            self._sessions.add(session)
        except RequestRefused as exc:
            raise _no_entry(exc) from exc
        rest = login.expires_at - self._parts.clock.now()
        session.end = asyncio.get_running_loop().call_later(rest, self._expire, sid)
        await self._server.enter_room(sid, user_name(login.user_id))
        self._local.heard(sid, login.user_id)

    async def disconnect(self, sid: str, reason: object) -> None:
        session = self._sessions.remove(sid)
        self._local.gone(sid)
        for room_id in session.rooms if session else ():
            self._catching_up.forget(room_id, sid)

    async def join_room(self, session: Session, data: object) -> Ack:
        """Say where the room is; then give the socket what it missed, and what is live."""
        asked = value_of(data, JoinRoom)
        await self._require_member(session, asked.room_id)
        room = await self._parts.calls(self._parts.calls.ledger.room, asked.room_id)
        if room is None:
            raise RoomUnknown("there is no such room")
        await self._catching_up.leave(session, asked.room_id)
        await self._require_member(session, asked.room_id)  # it may have left while we asked
        if self._sessions.get(session.sid) is session:
            have = room.last_sequence if asked.last_sequence is None else asked.last_sequence
            self._catching_up.begin(session, asked.room_id, min(have, room.last_sequence))
            self._local.entered(session.user, asked.room_id)
        return {"success": True, "lastSequence": room.last_sequence}

    async def leave_room(self, session: Session, data: object) -> Ack:
        """Give this socket no more of a room; its user stays a member."""
        await self._catching_up.leave(session, value_of(data, InRoom).room_id)
        return {"success": True}

    async def typing(self, session: Session, data: object) -> Ack:
        """Tell the room that somebody types, at most every other second."""
        room_id = value_of(data, InRoom).room_id
        await self._require_member(session, room_id)
        if not self._rates.typing.take((session.user, room_id)):
            self._parts.whispers.append_soon(record_of(Typing(session.user, room_id)))
        return {"success": True}

    async def heartbeat(self, session: Session, data: object) -> Ack:
        return {"success": True}

    async def send_message(self, sid: str, data: object = None, *more: object) -> Ack:
        """Take a message in: ACCEPTED means that it is safe and will be stored, or rejected, by a worker."""
        client_msg_id = data.get("clientMsgId") if isinstance(data, dict) else None
        try:
            session = self._session(sid)
            if wait := self._rates.sends.take(session.user):
                raise too_often(wait)
            asked = value_of(data, SendMessage)
            async with session.sending:  # a check that takes longer must not let later messages pass
                await self._check_content(session, asked)
            now = self._parts.clock.now()
            await self._parts.messages.append(
                created(session.login, asked.room_id, asked.client_msg_id, Kind(asked.type), asked.content, now)
            )
        except PabalError as exc:
            return {"clientMsgId": client_msg_id, "status": "FAILED", "error": document_of(refusal_of(exc))}
        return {"clientMsgId": asked.client_msg_id, "status": "ACCEPTED"}

    async def evict(self, user: str, room_id: str) -> None:
        """Take a user's sockets out of a room that it is no member of any more."""
        self._local.left(user, room_id)
        for session in self._sessions.of_user(user):
            await self._catching_up.leave(session, room_id)

    async def _check_content(self, session: Session, asked: SendMessage) -> None:
        if self._parts.messages.full:
            raise Outage("more messages wait than can be taken")
        if len(asked.content) > (most := self._parts.limits.content):
            raise RequestRefused(
                400, "InvalidInput", f"a message has at most {most} characters; found {len(asked.content)}"
            )
        await self._require_member(session, asked.room_id)
        if asked.type == Kind.IMAGE and await self._parts.images.path(asked.content) is None:
            raise RequestRefused(404, "ImageUnknown", "the content of an IMAGE is the id that POST /images answered")

    async def _require_member(self, session: Session, room_id: str) -> None:
        if not await self._parts.memberships.has(room_id, session.user):
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
        """Return who asks, if its token still holds; any event of it is a sign of life."""
        session = self._sessions.get(sid)
        if session is None or session.login.expires_at <= self._parts.clock.now():
            raise _unknown()
        self._local.heard(sid, session.user)
        return session

    def _expire(self, sid: str) -> None:
        task = asyncio.get_running_loop().create_task(self._say_goodbye(sid))
        self._goodbyes.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._goodbyes.discard)

    async def _say_goodbye(self, sid: str) -> None:
        await self._server.emit("expired", {}, to=sid)
        await self._server.disconnect(sid)


def _unknown() -> RequestRefused:
    return RequestRefused(401, "NotAuthenticated", "no valid token: log in again")


def _no_entry(refusal: RequestRefused) -> ConnectionRefusedError:
    return ConnectionRefusedError(str(refusal), {"error": document_of(refusal)})
