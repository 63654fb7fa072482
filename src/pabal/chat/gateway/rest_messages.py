"""The messages of a room, and how far one has read."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pabal.chat.events import ULID
from pabal.chat.gateway.answers import answer, body_of
from pabal.chat.gateway.bodies import Reading, message_out
from pabal.chat.gateway.parts import Parts
from pabal.chat.gateway.rest import Door, invalid, limit_of, require_member, room_of
from pabal.chat.gateway.tokens import Login

_SEQUENCE = re.compile(r"[0-9]{1,18}")


class MessageEndpoints:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._calls, self._ledger = parts.calls, parts.calls.ledger

    def routes(self, door: Door) -> list[Route]:
        return [
            Route("/rooms/{room_id}/messages", door(self.list), methods=["GET"]),
            Route("/rooms/{room_id}/read", door(self.read), methods=["POST"]),
        ]

    async def list(self, request: Request, login: Login) -> Response:
        """Answer a page: the newest, those before a cursor, or those after one; always the oldest first."""
        room_id, limit = room_of(request), limit_of(request)
        await require_member(self._parts, room_id, login)
        before = await self._cursor(request, room_id, "before")
        after = await self._cursor(request, room_id, "after")
        if before is not None and after is not None:
            raise invalid("after", "give `before` or `after`, not both")
        found = await self._calls(self._ledger.messages, room_id, before=before, after=after, limit=limit + 1)
        more = len(found) > limit
        shown = found[:limit] if after is not None else found[-limit:]
        edge = (shown[-1] if after is not None else shown[0]).id if more else None
        return answer({"messages": [message_out(message) for message in shown], "hasMore": more, "next": edge})

    async def read(self, request: Request, login: Login) -> Response:
        room_id = room_of(request)
        asked = await body_of(request, Reading, self._parts.limits.frame)
        await require_member(self._parts, room_id, login)
        sequence = await self._calls(self._ledger.mark_read, room_id, login.user_id, asked.last_read_message_id)
        return answer({"lastReadSequence": sequence})

    async def _cursor(self, request: Request, room_id: str, name: str) -> int | None:
        """Return the sequence that a cursor stands for: one is written as a message's id or as its sequence."""
        text = request.query_params.get(name)
        if text is None:
            return None
        if _SEQUENCE.fullmatch(text):
            return int(text)
        if not re.fullmatch(ULID, text):
            raise invalid(name, "the id of a message or a sequence is expected")
        sequence: int | None = await self._calls(self._ledger.sequence_of, room_id, text)
        if sequence is None:
            raise invalid(name, "this room has no message of this id")
        return sequence
