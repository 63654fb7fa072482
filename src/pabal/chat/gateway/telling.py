"""What other gateways say of users, passed on to the rooms that it concerns."""

from __future__ import annotations

from collections.abc import Iterable

from pabal.chat.gateway.bodies import instant_at
from pabal.chat.gateway.parts import Parts
from pabal.chat.gateway.presence import Change
from pabal.chat.gateway.presence_events import Belongs, PresenceEvent, Typing
from pabal.chat.gateway.server import Server, room_name
from pabal.chat.gateway.sessions import Sessions
from pabal.chat.gateway.sockets import Sockets


class Telling:
    """Takes in the presence topic. Lives in the event loop."""

    def __init__(self, parts: Parts, server: Server, sockets: Sockets, sessions: Sessions) -> None:
        self._parts, self._server, self._sockets, self._sessions = parts, server, sockets, sessions

    async def learn(self, events: Iterable[tuple[PresenceEvent | None, float]]) -> None:
        """Take in events with their ages, in their order."""
        for event, age in events:
            match event:
                case Belongs(user, room, member):
                    self._parts.memberships.learn(room, user, member)
                    if not member:
                        await self._sockets.evict(user, room)
                case Typing(user, room):
                    document = {"roomId": room, "userId": user}
                    await self._server.emit("typing", document, to=room_name(room), skip_sid=self._own(user))
            if event is not None:
                await self._tell(self._parts.presence.learn(event, age))

    async def tick(self) -> None:
        """Tell who is gone because nobody repeats that it is there."""
        await self._tell(self._parts.presence.tick())

    async def _tell(self, changes: Iterable[Change]) -> None:
        """Tell rooms who came or went; large ones only answer when they are asked for their members."""
        for user, online, rooms in changes:
            names = [name for name in map(room_name, rooms) if self._told(name)]
            if names:
                document = {"userId": user, "online": online, "at": instant_at(self._parts.clock.now())}
                await self._server.emit("presence", document, to=names, skip_sid=self._own(user))

    def _told(self, name: str) -> bool:
        return 0 < self._server.count_in(name) <= self._parts.limits.presence

    def _own(self, user: str) -> list[str]:
        return [session.sid for session in self._sessions.of_user(user)]
