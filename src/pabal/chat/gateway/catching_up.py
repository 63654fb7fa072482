"""Giving a socket what it missed, then what is live, with neither a gap nor a double where the two meet.

The missed messages come from the ledger, in order, while the socket is not in the room yet. It enters the room when
nothing that was broadcast is newer than what it was given. Its floor is what it has: broadcasts up to there pass it by.
A message is in the ledger before it is broadcast, so whatever is above the floor is still to come.
"""

from __future__ import annotations

import asyncio

import msgspec

from pabal.chat.gateway.bodies import message_out
from pabal.chat.gateway.ledger_calls import LedgerCalls
from pabal.chat.gateway.server import Server, room_name
from pabal.chat.gateway.sessions import Session
from pabal.errors import Outage

_PAGE = 200
_AHEAD = 1000  # packets that a socket may be behind before it is given more
_PAUSE = 0.05  # seconds
_AGAIN = 1.0  # seconds between looks for a database that is down


class Floors:
    """Per room, what sockets of the room were given already, and the newest message that was broadcast."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}
        self._floors: dict[str, dict[str, int]] = {}

    def set(self, room_id: str, sid: str, sequence: int) -> None:
        if sequence > self.seen.get(room_id, 0):
            self._floors.setdefault(room_id, {})[sid] = sequence

    def drop(self, room_id: str, sid: str) -> None:
        floors = self._floors.get(room_id, {})
        floors.pop(sid, None)
        if not floors:
            self._floors.pop(room_id, None)

    def passed(self, room_id: str, sequence: int) -> list[str]:
        """Take note that a message is broadcast; return the sockets that have it."""
        self.seen[room_id] = sequence
        floors = self._floors.get(room_id)
        if floors is None:
            return []
        have = [sid for sid, floor in floors.items() if floor >= sequence]
        for sid in [sid for sid, floor in floors.items() if floor <= sequence]:
            self.drop(room_id, sid)
        return have


class CatchingUp:
    """Brings sockets into rooms."""

    def __init__(self, server: Server, calls: LedgerCalls, floors: Floors) -> None:
        self._server, self._calls, self._floors = server, calls, floors

    def begin(self, session: Session, room_id: str, have: int) -> asyncio.Task[None]:
        """Give a socket what is newer than the sequence it has, then what is live."""
        task = asyncio.create_task(self._run(session, room_id, have))
        session.joining[room_id] = task
        task.add_done_callback(lambda done: session.joining.pop(room_id, None))
        return task

    async def leave(self, session: Session, room_id: str) -> None:
        """Take a socket out of a room, or stop bringing it in."""
        task = session.joining.get(room_id)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        session.rooms.discard(room_id)
        self._floors.drop(room_id, session.sid)
        await self._server.leave_room(session.sid, room_name(room_id))

    def forget(self, room_id: str, sid: str) -> None:
        """Take note that a socket which was in this room is closed."""
        self._floors.drop(room_id, sid)

    async def _run(self, session: Session, room_id: str, have: int) -> None:
        while True:
            have = await self._give(session, room_id, have)
            # From here to the end nothing else runs: no broadcast falls between the look and the entrance.
            if self._floors.seen.get(room_id, 0) <= have:
                break
        self._floors.set(room_id, session.sid, have)
        session.rooms.add(room_id)
        await self._server.enter_room(session.sid, room_name(room_id))

    async def _give(self, session: Session, room_id: str, have: int) -> int:
        while True:
            try:
                page = await self._calls(self._calls.ledger.messages, room_id, after=have, limit=_PAGE)
            except Outage:
                await asyncio.sleep(_AGAIN)
                continue
            for found in page:
                await self._server.emit("newMessage", msgspec.to_builtins(message_out(found)), to=session.sid)
                have = found.sequence
            if len(page) < _PAGE:
                return have
            while self._server.behind(session.sid) > _AHEAD:
                await asyncio.sleep(_PAUSE)
