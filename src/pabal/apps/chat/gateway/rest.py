"""What REST endpoints share: authentication, rate limits, parameters; and the endpoints of messages and images."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from pabal.apps.chat.errors import NotMember, RoomUnknown
from pabal.apps.chat.events import ULID, UUID
from pabal.apps.chat.gateway.answers import Issue, RequestRefused, answer, body_of, bytes_of, too_often
from pabal.apps.chat.gateway.auth import Login
from pabal.apps.chat.gateway.bodies import MessagesOut, Reading, ReadOut, message_out
from pabal.apps.chat.gateway.context import Context, Rates
from pabal.apps.chat.gateway.images import TYPES
from pabal.apps.chat.gateway.presence import HasRead, record_of

DEFAULT_LIMIT, MAX_LIMIT = 50, 100
MAX_QUERY = 200  # characters

Authenticated = Callable[[Request, Login], Awaitable[Response]]


class Door:
    """Passes requests of logged-in users to an endpoint."""

    def __init__(self, context: Context, rates: Rates) -> None:
        self._context, self._rates = context, rates

    def __call__(self, endpoint: Authenticated) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            login = self._context.tokens.read_login(token.strip()) if scheme.lower() == "bearer" else None
            if login is None or not await self._context.sessions.live(login.session):
                raise RequestRefused(
                    401, "NotAuthenticated", "no valid token: log in, and send it as `Authorization: Bearer`"
                )
            if wait := self._rates.requests.take(login.user_id):
                raise too_often(wait)
            return await endpoint(request, login)

        return guarded


def address_of(request: Request) -> str:
    """Return the address of the client; behind a proxy, as the proxy reports it."""
    return request.client.host if request.client else ""


def room_of(request: Request) -> str:
    """Return the room id in the path."""
    return _uuid("roomId", request.path_params["room_id"])


def uuid_in(request: Request, name: str) -> str:
    """Return another id in the path."""
    return _uuid(name, request.path_params[name])


def ids_of(request: Request) -> list[str]:
    """Return the user ids that a request asks for."""
    ids = [_uuid("ids", text) for text in request.query_params.get("ids", "").split(",") if text]
    if not 1 <= len(ids) <= MAX_LIMIT:
        raise invalid("ids", f"1 to {MAX_LIMIT} user ids, separated by commas, are expected")
    return sorted(set(ids))


def after_of(request: Request) -> str | None:
    """Return the user id after which a list of members continues."""
    text = request.query_params.get("after")
    return None if text is None else _uuid("after", text)


def limit_of(request: Request) -> int:
    """Return the requested page size."""
    text = request.query_params.get("limit", str(DEFAULT_LIMIT))
    if not re.fullmatch(r"[0-9]{1,3}", text) or not 1 <= int(text) <= MAX_LIMIT:
        raise invalid("limit", f"a number from 1 to {MAX_LIMIT} is expected")
    return int(text)


def invalid(path: str, message: str) -> RequestRefused:
    """Return the refusal of one field."""
    return RequestRefused(400, "InvalidInput", f"{path}: {message}", issues=(Issue(path, message),))


def _uuid(path: str, text: str) -> str:
    if not re.fullmatch(UUID, text.lower()):
        raise invalid(path, "a UUID is expected")
    return text.lower()


async def require_member(context: Context, room_id: str, login: Login) -> None:
    """Raise the refusal for a user that is no member of a room, or for a room that does not exist."""
    if await context.memberships.has(room_id, login.user_id):
        return
    if await context.calls(context.calls.ledger.room, room_id) is None:
        raise RoomUnknown("there is no such room")
    raise NotMember("you are no member of this room")


_SEQUENCE = re.compile(r"[0-9]{1,18}")


class MessageEndpoints:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._calls, self._ledger = context.calls, context.calls.ledger

    def routes(self, door: Door) -> list[Route]:
        return [
            Route("/rooms/{room_id}/messages", door(self.list), methods=["GET"]),
            Route("/rooms/{room_id}/search", door(self.search), methods=["GET"]),
            Route("/rooms/{room_id}/read", door(self.read), methods=["POST"]),
        ]

    async def list(self, request: Request, login: Login) -> Response:
        """Return a page: the newest messages, those before a cursor, or those after one; oldest first."""
        room_id, limit = room_of(request), limit_of(request)
        await require_member(self._context, room_id, login)
        before = await self._cursor(request, room_id, "before")
        after = await self._cursor(request, room_id, "after")
        if before is not None and after is not None:
            raise invalid("after", "give `before` or `after`, not both")
        found = await self._calls(self._ledger.messages, room_id, before=before, after=after, limit=limit + 1)
        more = len(found) > limit
        shown = found[:limit] if after is not None else found[-limit:]
        edge = (shown[-1] if after is not None else shown[0]).id if more else None
        return answer(MessagesOut(messages=[message_out(message) for message in shown], has_more=more, next=edge))

    async def search(self, request: Request, login: Login) -> Response:
        """Return messages that have all words of a query, the newest first."""
        room_id, limit = room_of(request), limit_of(request)
        query = request.query_params.get("q", "")
        if not 1 <= len(query.strip()) <= MAX_QUERY:
            raise invalid("q", f"1 to {MAX_QUERY} characters to look for are expected")
        await require_member(self._context, room_id, login)
        before = await self._cursor(request, room_id, "before")
        found = await self._calls(self._ledger.search, room_id, query, before=before, limit=limit + 1)
        shown = found[:limit]
        edge = shown[-1].id if len(found) > limit else None
        messages = [message_out(message) for message in shown]
        return answer(MessagesOut(messages=messages, has_more=edge is not None, next=edge))

    async def read(self, request: Request, login: Login) -> Response:
        room_id = room_of(request)
        asked = await body_of(request, Reading, self._context.limits.frame)
        await require_member(self._context, room_id, login)
        sequence = await self._calls(self._ledger.mark_read, room_id, login.user_id, asked.last_read_message_id)
        self._context.announcements.append_soon(record_of(HasRead(login.user_id, room_id, sequence)))
        return answer(ReadOut(last_read_sequence=sequence))

    async def _cursor(self, request: Request, room_id: str, name: str) -> int | None:
        """Return the sequence of a cursor, which is a message's id or its sequence."""
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


_HEADERS = {
    "Cache-Control": "private, max-age=31536000, immutable",  # the name is the hash of the bytes
    "Content-Security-Policy": "default-src 'none'",
    "Content-Disposition": "inline",
}


class ImageEndpoints:
    def __init__(self, context: Context, rates: Rates) -> None:
        self._context, self._rates = context, rates

    def routes(self, door: Door) -> list[Route]:
        return [
            Route("/images", door(self.upload), methods=["POST"]),
            Route("/images/{image_id}", door(self.show), methods=["GET"]),
            Route("/images/{image_id}/thumbnail", door(self.show_small), methods=["GET"]),
        ]

    async def upload(self, request: Request, login: Login) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in TYPES:
            raise RequestRefused(415, "TypeRefused", f"an image is one of {', '.join(TYPES)}; found {kind!r:.40}")
        if wait := self._rates.uploads.take(login.user_id):
            raise too_often(wait)
        data = await bytes_of(request, self._context.limits.image_bytes)
        return answer(await self._context.images.keep(data, kind, login.user_id), 201)

    async def show(self, request: Request, login: Login) -> Response:
        return await self._file(request, login, thumbnail=False)

    async def show_small(self, request: Request, login: Login) -> Response:
        return await self._file(request, login, thumbnail=True)

    async def _file(self, request: Request, login: Login, *, thumbnail: bool) -> Response:
        """Return an image to its uploader, and to members of the rooms in which it was posted."""
        images, id = self._context.images, request.path_params["image_id"]
        found = await images.path(id, thumbnail=thumbnail)
        if found is not None and not await images.uploaded(id, login.user_id):
            if not await self._context.calls(self._context.calls.ledger.may_see_image, id, login.user_id):
                found = None
        if found is None:
            raise RequestRefused(404, "ImageUnknown", "there is no such image")
        path, kind = found
        return FileResponse(path, media_type=kind, headers=_HEADERS)
