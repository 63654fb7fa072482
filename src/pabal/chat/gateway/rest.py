"""What every endpoint begins with: who asks, how often, and what the path and the query say."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from pabal.chat.events import UUID
from pabal.chat.gateway.answers import Issue, RequestRefused, too_often
from pabal.chat.gateway.parts import Parts, Rates
from pabal.chat.gateway.tokens import Login
from pabal.errors import NotMember, RoomUnknown

DEFAULT_LIMIT, MAX_LIMIT = 50, 100

Authenticated = Callable[[Request, Login], Awaitable[Response]]


class Door:
    """Lets logged-in users through to an endpoint."""

    def __init__(self, parts: Parts, rates: Rates) -> None:
        self._parts, self._rates = parts, rates

    def __call__(self, endpoint: Authenticated) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            login = self._parts.tokens.read_login(token.strip()) if scheme.lower() == "bearer" else None
            if login is None:
                raise RequestRefused(
                    401, "NotAuthenticated", "no valid token: log in, and send it as `Authorization: Bearer`"
                )
            if wait := self._rates.requests.take(login.user_id):
                raise too_often(wait)
            return await endpoint(request, login)

        return guarded


def address_of(request: Request) -> str:
    """Return where a request comes from: behind a proxy, what the proxy says."""
    return request.client.host if request.client else ""


def room_of(request: Request) -> str:
    """Return the room that the path names."""
    return _uuid("roomId", request.path_params["room_id"])


def after_of(request: Request) -> str | None:
    """Return the user after whom a list of members goes on."""
    text = request.query_params.get("after")
    return None if text is None else _uuid("after", text)


def limit_of(request: Request) -> int:
    """Return how many are asked for."""
    text = request.query_params.get("limit", str(DEFAULT_LIMIT))
    if not re.fullmatch(r"[0-9]{1,3}", text) or not 1 <= int(text) <= MAX_LIMIT:
        raise invalid("limit", f"a number from 1 to {MAX_LIMIT} is expected")
    return int(text)


def invalid(path: str, message: str) -> RequestRefused:
    """Refuse one field."""
    return RequestRefused(400, "InvalidInput", f"{path}: {message}", issues=(Issue(path, message),))


def _uuid(path: str, text: str) -> str:
    if not re.fullmatch(UUID, text):
        raise invalid(path, "a UUID in small letters is expected")
    return text


async def require_member(parts: Parts, room_id: str, login: Login) -> None:
    """Refuse who is no member of a room; a room that is not there has none, and is named as such."""
    if await parts.memberships.has(room_id, login.user_id):
        return
    if await parts.calls(parts.calls.ledger.room, room_id) is None:
        raise RoomUnknown("there is no such room")
    raise NotMember("you are no member of this room")
