"""Sends a socket the messages that it missed, then the live ones, without a gap or a duplicate between the two.

Missed messages come from the ledger, in order, while the socket is not in the room yet. The socket enters the room
when no broadcast message is newer than what it has. Its floor is the last sequence it has: broadcasts up to the floor
skip it. A message is in the ledger before it is broadcast, so everything above the floor is still to come.
"""

from __future__ import annotations

import asyncio

import msgspec

from pabal.apps.chat.gateway.bodies import message_out
from pabal.apps.chat.gateway.ledger_calls import LedgerCalls
from pabal.apps.chat.gateway.server import Server, room_name
from pabal.apps.chat.gateway.sessions import Session
from pabal.errors import Outage

_PAGE = 200
_AHEAD = 1000  # packets in a socket's queue above which it gets no further page yet
_PAUSE = 0.05  # seconds
_AGAIN = 1.0  # seconds between attempts while the database is down


class Floors:
    """For each room, the floors of its sockets and the newest message that was broadcast."""

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
        """Note that a message is broadcast; return the sockets that already have it."""
        self.seen[room_id] = sequence
        floors = self._floors.get(room_id)
        if floors is None:
            return []
        have = [sid for sid, floor in floors.items() if floor >= sequence]
        for sid in [sid for sid, floor in floors.items() if floor <= sequence]:
            self.drop(room_id, sid)
        return have


class CatchUp:
    """Lets sockets enter rooms."""

    def __init__(self, server: Server, calls: LedgerCalls, floors: Floors) -> None:
        self._server, self._calls, self._floors = server, calls, floors

    def begin(self, session: Session, room_id: str, have: int) -> asyncio.Task[None]:
        """Send a socket the messages after the sequence it has, then the live ones."""
        task = asyncio.create_task(self._run(session, room_id, have))
        session.joining[room_id] = task
        task.add_done_callback(lambda done: session.joining.pop(room_id, None))
        return task

    async def leave(self, session: Session, room_id: str) -> None:
        """Remove a socket from a room, or stop its catch-up."""
        task = session.joining.get(room_id)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        session.rooms.discard(room_id)
        self._floors.drop(room_id, session.sid)
        await self._server.leave_room(session.sid, room_name(room_id))

    def forget(self, room_id: str, sid: str) -> None:
        """Note that a socket of this room is closed."""
        self._floors.drop(room_id, sid)

    async def _run(self, session: Session, room_id: str, have: int) -> None:
        while True:
            seen = self._floors.seen.get(room_id, 0)
            # What was broadcast before was stored before: it is given now, or was deleted since.
            have = max(await self._give(session, room_id, have), seen)
            # No await from here to the end: no broadcast can happen between the check and entering the room.
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
