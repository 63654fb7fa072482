"""Requests and answers as JSON of known types, and errors as `{"error": {"code", "message", "issues"?}}`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar, get_args

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from pabal import jsontext
from pabal.apps.chat.errors import (
    EmailTaken,
    NotMember,
    NotOwner,
    RegistrationClosed,
    RemovedFromRoom,
    RoomUnknown,
    UserNameTaken,
    UserUnknown,
)
from pabal.errors import InvalidInput, MessageUnknown, Outage, PabalError, StoreError, TooLarge

log = logging.getLogger("pabal.chat")

T = TypeVar("T", bound=msgspec.Struct)

_encode = msgspec.json.Encoder().encode

# The first class that matches counts.
STATUS: tuple[tuple[type[PabalError], int], ...] = (
    (EmailTaken, 409),
    (UserNameTaken, 409),
    (TooLarge, 413),
    (InvalidInput, 400),
    (RoomUnknown, 404),
    (MessageUnknown, 404),
    (NotMember, 403),
    (NotOwner, 403),
    (RemovedFromRoom, 403),
    (RegistrationClosed, 403),
    (UserUnknown, 401),
    (Outage, 503),
    (StoreError, 503),
)
_HTTP = {404: "PathUnknown", 405: "MethodRefused"}
_HALF = "text holds half of a character (a lone surrogate), which cannot be stored"
_LATER = 1.0  # seconds for Retry-After while the database is down


class Issue(msgspec.Struct, frozen=True):
    """A mistake in one field."""

    path: str
    message: str


class RequestRefused(PabalError):
    """A request that is refused."""

    def __init__(
        self, status: int, code: str, message: str, *, issues: tuple[Issue, ...] = (), after: float = 0.0
    ) -> None:
        super().__init__(message)
        self.status, self.issues, self.after = status, issues, after
        self._code = code

    @property
    def code(self) -> str:
        return self._code


def too_often(after: float) -> RequestRefused:
    """Return the refusal of a request over its rate limit; `after` is when to try again, in seconds."""
    return RequestRefused(429, "TooOften", f"too often: wait {after:.1f} seconds", after=after)


def refusal_of(exc: PabalError) -> RequestRefused:
    """Return the refusal that an error of ours becomes."""
    if isinstance(exc, RequestRefused):
        return exc
    status = next((status for kind, status in STATUS if isinstance(exc, kind)), 500)
    if status < 500:
        return RequestRefused(status, exc.code, str(exc))
    if status == 503:  # details of the failure are not for clients
        return RequestRefused(503, "Unavailable", "not possible at the moment: try again later", after=_LATER)
    log.error("an unexpected error: %(code)s: %(error)s", {"code": exc.code, "error": str(exc)})
    return RequestRefused(500, "Failed", "this should not have happened")


def document_of(refusal: RequestRefused) -> dict[str, Any]:
    """Return the `error` document of an answer."""
    document: dict[str, Any] = {"code": refusal.code, "message": str(refusal)}
    if refusal.issues:
        document["issues"] = msgspec.to_builtins(refusal.issues)
    return document


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return JSON."""
    return Response(_encode(value), status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")


def refused(refusal: RequestRefused) -> Response:
    headers = {"Retry-After": str(max(1, -int(-refusal.after // 1)))} if refusal.after else {}
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return answer({"error": document_of(refusal)}, refusal.status, headers)


async def on_error(request: Request, exc: Exception) -> Response:
    """Return the answer for an exception of an endpoint or of the router."""
    if isinstance(exc, PabalError):
        return refused(refusal_of(exc))
    if isinstance(exc, HTTPException):
        return refused(RequestRefused(exc.status_code, _HTTP.get(exc.status_code, "Refused"), exc.detail))
    if isinstance(exc, ClientDisconnect):
        return Response(status_code=400)
    return refused(RequestRefused(500, "Failed", "this should not have happened"))


async def body_of(request: Request, kind: type[T], most: int) -> T:
    """Return the body of a request, decoded as a type."""
    data = await bytes_of(request, most)
    try:
        value = msgspec.json.decode(data or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise RequestRefused(400, "InvalidInput", f"the body is no JSON: {exc}") from exc
    return value_of(value, kind)


async def bytes_of(request: Request, most: int) -> bytes:
    """Return the body of a request of at most this many bytes; stop reading beyond it."""
    declared = request.headers.get("content-length", "0")
    data = bytearray()
    if not declared.isdecimal() or len(declared) <= 15 and int(declared) <= most:
        async for chunk in request.stream():
            data += chunk
            if len(data) > most:
                break
        else:
            return bytes(data)
    raise RequestRefused(413, "TooLarge", f"a body has at most {most} bytes here")


def value_of(value: object, kind: type[T]) -> T:
    """Decode what a client sent as a type; RequestRefused names every field that is wrong."""
    halves = _halves(value)
    try:
        if not halves:
            return jsontext.convert(value, kind)
        wrong = ""
    except (msgspec.ValidationError, UnicodeEncodeError) as exc:
        wrong = _plain(exc)
    issues = tuple(_issues(value, kind, halves)) or (Issue("", wrong or _HALF),)
    raise RequestRefused(400, "InvalidInput", f"{issues[0].path or 'the body'}: {issues[0].message}", issues=issues)


def _halves(value: object) -> set[str]:
    """Return the fields whose text holds half of a character; JSON of a socket may, and UTF-8 cannot."""
    found = set()
    for name, text in value.items() if isinstance(value, dict) else ():
        if isinstance(text, str) and not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                found.add(name)
    return found


def _issues(value: object, kind: type[T], halves: set[str]) -> list[Issue]:
    if not isinstance(value, dict):
        return []
    found = []
    for field in _fields(kind):
        if field.encode_name not in value:
            if field.required:
                found.append(Issue(field.encode_name, "is required"))
            continue
        if field.encode_name in halves:
            found.append(Issue(field.encode_name, _HALF))
            continue
        try:
            jsontext.convert(value[field.encode_name], field.type)
        except (msgspec.ValidationError, UnicodeEncodeError) as exc:
            found.append(Issue(field.encode_name, _described(field.type) or _plain(exc)))
    return found


def _described(kind: object) -> str:
    """Return what a type says of itself for people: better than a regular expression."""
    notes = [found for found in get_args(kind)[1:] if isinstance(found, msgspec.Meta)]
    return next((f"{found.description} is expected" for found in notes if found.description), "")


@lru_cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def _plain(exc: msgspec.ValidationError | UnicodeEncodeError) -> str:
    return _HALF if isinstance(exc, UnicodeEncodeError) else str(exc).partition(" - at `")[0]
