"""The REST endpoints of rooms: making, joining and leaving them, their members, and invitations."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pabal.apps.chat.errors import NotMember, RoomUnknown
from pabal.apps.chat.gateway.answers import RequestRefused, answer, body_of
from pabal.apps.chat.gateway.auth import Login
from pabal.apps.chat.gateway.bodies import (
    InvitationMade,
    InvitationsOut,
    Invited,
    Joining,
    KnownOut,
    MemberOut,
    MembersOut,
    NewRoom,
    RoomRenaming,
    RoomsOut,
    Success,
    UsersOut,
    instant,
    invitation_out,
    new_room_out,
    room_out,
)
from pabal.apps.chat.gateway.context import Context, system
from pabal.apps.chat.gateway.presence import Belongs, Renamed, record_of
from pabal.apps.chat.gateway.rest import Door, after_of, ids_of, invalid, limit_of, require_member, room_of, uuid_in
from pabal.apps.chat.gateway.sockets import Sockets
from pabal.apps.chat.ledger.values import Invitation
from pabal.clock import iso_stamp
from pabal.errors import InvalidInput


class RoomEndpoints:
    def __init__(self, context: Context, sockets: Sockets) -> None:
        self._context, self._sockets = context, sockets
        self._calls, self._ledger = context.calls, context.calls.ledger

    def routes(self, door: Door) -> list[Route]:
        return [
            Route("/rooms", door(self.create), methods=["POST"]),
            Route("/rooms", door(self.list), methods=["GET"]),
            Route("/rooms/{room_id}/rename", door(self.rename), methods=["POST"]),
            Route("/rooms/{room_id}/invitations", door(self.invite), methods=["POST"]),
            Route("/rooms/{room_id}/invitations", door(self.invitations), methods=["GET"]),
            Route("/rooms/{room_id}/invitations/{invitation_id}/revoke", door(self.revoke), methods=["POST"]),
            Route("/invitations/look", door(self.look), methods=["POST"]),
            Route("/rooms/{room_id}/join", door(self.join), methods=["POST"]),
            Route("/rooms/{room_id}/leave", door(self.leave), methods=["POST"]),
            Route("/rooms/{room_id}/members", door(self.members), methods=["GET"]),
            Route("/rooms/{room_id}/members/{user_id}/remove", door(self.remove), methods=["POST"]),
            Route("/rooms/{room_id}/users", door(self.users), methods=["GET"]),
        ]

    async def create(self, request: Request, login: Login) -> Response:
        asked = await body_of(request, NewRoom, self._context.limits.frame)
        await self._require_space(login)
        room = await self._calls(self._ledger.create_room, asked.name.strip(), login.user_id, open=asked.open)
        await self._belongs(room.id, login.user_id, True)
        return answer(new_room_out(room), 201)

    async def list(self, request: Request, login: Login) -> Response:
        limit, before = limit_of(request), request.query_params.get("before")
        try:
            found = await self._calls(self._ledger.rooms_of, login.user_id, before=before, limit=limit + 1)
        except InvalidInput as exc:
            raise invalid("before", "the `next` of an earlier answer is expected") from exc
        shown = found[:limit]
        return answer(
            RoomsOut(
                rooms=[room_out(view) for view in shown],
                has_more=len(found) > limit,
                next=shown[-1].cursor if len(found) > limit else None,
            )
        )

    async def rename(self, request: Request, login: Login) -> Response:
        room_id = room_of(request)
        name = (await body_of(request, RoomRenaming, self._context.limits.frame)).name.strip()
        await self._calls(self._ledger.rename_room, room_id, login.user_id, name)
        self._context.announcements.append_later(record_of(Renamed(room_id, name)))
        await self._announce(room_id, login, {"event": "renamed", "userId": login.user_id, "room": name})
        return answer(Success())

    async def invite(self, request: Request, login: Login) -> Response:
        room_id = room_of(request)
        await require_member(self._context, room_id, login)
        lifetime = self._context.tokens.invitation_lifetime
        id = await self._calls(self._ledger.invite, room_id, login.user_id, lifetime=lifetime)
        token, ends = self._context.tokens.invitation(room_id, id)
        return answer(InvitationMade(id=id, invitation=token, expires_at=iso_stamp(ends)), 201)

    async def invitations(self, request: Request, login: Login) -> Response:
        room_id = room_of(request)
        await require_member(self._context, room_id, login)
        found = await self._calls(self._ledger.invitations_to, room_id)
        return answer(InvitationsOut(invitations=[invitation_out(invitation) for invitation in found]))

    async def revoke(self, request: Request, login: Login) -> Response:
        room_id, id = room_of(request), uuid_in(request, "invitation_id")
        await require_member(self._context, room_id, login)
        if not await self._calls(self._ledger.revoke, room_id, id):
            raise RequestRefused(404, "InvitationUnknown", "there is no such invitation to this room")
        return answer(Success())

    async def look(self, request: Request, login: Login) -> Response:
        """Return the room and the inviter of an invitation, before it is used."""
        asked = await body_of(request, Invited, self._context.limits.frame)
        found = await self._invitation(asked.invitation)
        if found is None:
            raise RequestRefused(404, "InvitationUnknown", "this invitation is over, or it was revoked")
        return answer(invitation_out(found))

    async def join(self, request: Request, login: Login) -> Response:
        room_id = room_of(request)
        asked = await body_of(request, Joining, self._context.limits.frame)
        room = await self._calls(self._ledger.room, room_id)
        if room is None:
            raise RoomUnknown("there is no such room")
        if await self._calls(self._ledger.is_member, room_id, login.user_id):
            raise _already()
        invitation = await self._invitation(asked.invitation)
        if not room.open and (invitation is None or invitation.room_id != room_id):
            raise RequestRefused(403, "InvitationNeeded", "this room is closed: ask a member for an invitation")
        await self._require_space(login)
        used = invitation.id if invitation else None
        if not await self._calls(self._ledger.join, room_id, login.user_id, invitation=used):
            raise _already()
        await self._belongs(room_id, login.user_id, True)
        await self._announce(room_id, login, {"event": "joined", "userId": login.user_id})
        return answer(new_room_out(room))

    async def leave(self, request: Request, login: Login) -> Response:
        room_id = room_of(request)
        if not await self._calls(self._ledger.leave, room_id, login.user_id):
            await require_member(self._context, room_id, login)
            raise NotMember("you are no member of this room")
        await self._belongs(room_id, login.user_id, False)
        await self._announce(room_id, login, {"event": "left", "userId": login.user_id})
        return answer(Success())

    async def remove(self, request: Request, login: Login) -> Response:
        """Remove another member; only the owner of the room may."""
        room_id, member = room_of(request), uuid_in(request, "user_id")
        await self._calls(self._ledger.remove_member, room_id, login.user_id, member)
        await self._belongs(room_id, member, False)
        await self._announce(room_id, login, {"event": "removed", "userId": member})
        return answer(Success())

    async def members(self, request: Request, login: Login) -> Response:
        room_id, limit, after = room_of(request), limit_of(request), after_of(request)
        await require_member(self._context, room_id, login)
        found = await self._calls(self._ledger.members, room_id, after=after, limit=limit + 1)
        shown = found[:limit]
        online = self._context.presence.is_online
        return answer(
            MembersOut(
                members=[
                    MemberOut(
                        user_id=member.user_id,
                        name=member.name,
                        email=member.email,
                        joined_at=instant(member.joined_at),
                        online=online(member.user_id),
                    )
                    for member in shown
                ],
                has_more=len(found) > limit,
                next=shown[-1].user_id if len(found) > limit else None,
            )
        )

    async def users(self, request: Request, login: Login) -> Response:
        """Return the names of users who are or were in a room: who left is in its messages."""
        room_id, ids = room_of(request), ids_of(request)
        await require_member(self._context, room_id, login)
        found = await self._calls(self._ledger.known_in, room_id, ids)
        return answer(
            UsersOut(users=[KnownOut(user_id=one.user_id, name=one.name, member=one.member) for one in found])
        )

    async def _invitation(self, token: object) -> Invitation | None:
        invited = self._context.tokens.read_invitation(token)
        return None if invited is None else await self._calls(self._ledger.invitation, invited.id)

    async def _require_space(self, login: Login) -> None:
        most = self._context.limits.rooms
        if len(await self._calls(self._ledger.rooms_of, login.user_id, limit=most)) >= most:
            raise RequestRefused(409, "TooManyRooms", f"a user is in at most {most} rooms: leave one")

    async def _belongs(self, room_id: str, user_id: str, member: bool) -> None:
        """Update this gateway at once, and the others through the presence topic."""
        self._context.announcements.append_later(record_of(Belongs(user_id, room_id, member)))
        if member:
            self._context.memberships.learn(room_id, user_id, True)
        else:
            await self._sockets.evict(user_id, room_id)

    async def _announce(self, room_id: str, login: Login, document: dict[str, str]) -> None:
        """Tell the room in a SYSTEM message, with the name of the user that it is about."""
        user = await self._calls(self._ledger.user, document["userId"])
        document = {**document, "name": user.name if user else ""}
        self._context.messages.append_later(system(login, room_id, document, self._context.clock.now()))


def _already() -> RequestRefused:
    return RequestRefused(409, "AlreadyMember", "you are a member of this room already")
