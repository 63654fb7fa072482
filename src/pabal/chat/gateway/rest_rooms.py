"""Rooms and their members."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pabal.chat.gateway.answers import RequestRefused, answer, body_of
from pabal.chat.gateway.bodies import Joining, MemberOut, NewRoom, instant, instant_at, new_room_out, room_out
from pabal.chat.gateway.parts import Parts, system
from pabal.chat.gateway.presence_events import Belongs, record_of
from pabal.chat.gateway.rest import Door, after_of, invalid, limit_of, require_member, room_of
from pabal.chat.gateway.tokens import Login
from pabal.errors import InvalidInput, NotMember, RoomUnknown


class RoomEndpoints:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._calls, self._ledger = parts.calls, parts.calls.ledger

    def routes(self, door: Door) -> list[Route]:
        return [
            Route("/rooms", door(self.create), methods=["POST"]),
            Route("/rooms", door(self.list), methods=["GET"]),
            Route("/rooms/{room_id}/invitations", door(self.invite), methods=["POST"]),
            Route("/rooms/{room_id}/join", door(self.join), methods=["POST"]),
            Route("/rooms/{room_id}/leave", door(self.leave), methods=["POST"]),
            Route("/rooms/{room_id}/members", door(self.members), methods=["GET"]),
        ]

    async def create(self, request: Request, login: Login) -> Response:
        asked = await body_of(request, NewRoom, self._parts.limits.frame)
        await self._require_space(login)
        room = await self._calls(self._ledger.create_room, asked.name, login.user_id, open=asked.open)
        self._belongs(room.id, login, True)
        return answer(new_room_out(room), 201)

    async def list(self, request: Request, login: Login) -> Response:
        limit, before = limit_of(request), request.query_params.get("before")
        try:
            found = await self._calls(self._ledger.rooms_of, login.user_id, before=before, limit=limit + 1)
        except InvalidInput as exc:
            raise invalid("before", "the `next` of an earlier answer is expected") from exc
        shown = found[:limit]
        return answer(
            {
                "rooms": [room_out(view) for view in shown],
                "hasMore": len(found) > limit,
                "next": shown[-1].cursor if len(found) > limit else None,
            }
        )

    async def invite(self, request: Request, login: Login) -> Response:
        room_id = room_of(request)
        await require_member(self._parts, room_id, login)
        token, ends = self._parts.tokens.invitation(room_id)
        return answer({"invitation": token, "expiresAt": instant_at(ends)}, 201)

    async def join(self, request: Request, login: Login) -> Response:
        room_id = room_of(request)
        asked = await body_of(request, Joining, self._parts.limits.frame)
        room = await self._calls(self._ledger.room, room_id)
        if room is None:
            raise RoomUnknown("there is no such room")
        if await self._calls(self._ledger.is_member, room_id, login.user_id):
            raise _already()
        if not room.open and not self._parts.tokens.invites(asked.invitation, room_id):
            raise RequestRefused(403, "InvitationNeeded", "this room is closed: ask a member for an invitation")
        await self._require_space(login)
        if not await self._calls(self._ledger.join, room_id, login.user_id):
            raise _already()
        self._belongs(room_id, login, True)
        self._announce(room_id, login, "joined")
        return answer(new_room_out(room))

    async def leave(self, request: Request, login: Login) -> Response:
        room_id = room_of(request)
        if not await self._calls(self._ledger.leave, room_id, login.user_id):
            await require_member(self._parts, room_id, login)
            raise NotMember("you are no member of this room")
        self._belongs(room_id, login, False)
        self._announce(room_id, login, "left")
        return answer({"success": True})

    async def members(self, request: Request, login: Login) -> Response:
        room_id, limit, after = room_of(request), limit_of(request), after_of(request)
        await require_member(self._parts, room_id, login)
        found = await self._calls(self._ledger.members, room_id, after=after, limit=limit + 1)
        shown = found[:limit]
        online = self._parts.presence.is_online
        return answer(
            {
                "members": [
                    MemberOut(
                        user_id=member.user_id,
                        email=member.email,
                        joined_at=instant(member.joined_at),
                        online=online(member.user_id),
                    )
                    for member in shown
                ],
                "hasMore": len(found) > limit,
                "next": shown[-1].user_id if len(found) > limit else None,
            }
        )

    async def _require_space(self, login: Login) -> None:
        most = self._parts.limits.rooms
        if len(await self._calls(self._ledger.rooms_of, login.user_id, limit=most)) >= most:
            raise RequestRefused(409, "TooManyRooms", f"a user is in at most {most} rooms: leave one")

    def _belongs(self, room_id: str, login: Login, member: bool) -> None:
        """Let this gateway know at once, and the others as soon as can be."""
        self._parts.memberships.learn(room_id, login.user_id, member)
        self._parts.whispers.append_later(record_of(Belongs(login.user_id, room_id, member)))

    def _announce(self, room_id: str, login: Login, word: str) -> None:
        self._parts.messages.append_later(system(login, room_id, word, self._parts.clock.now()))


def _already() -> RequestRefused:
    return RequestRefused(409, "AlreadyMember", "you are a member of this room already")
