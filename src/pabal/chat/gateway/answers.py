"""Bodies in and out: JSON of known types, and errors as documents `{"error": {"code", "message", "issues"?}}`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from pabal.errors import (
    EmailTaken,
    InvalidInput,
    MessageUnknown,
    NotMember,
    Outage,
    PabalError,
    RoomUnknown,
    StoreError,
    TooLarge,
    UserUnknown,
)

log = logging.getLogger("pabal.chat")

T = TypeVar("T", bound=msgspec.Struct)
Endpoint = Callable[[Request], Awaitable[Response]]

_encode = msgspec.json.Encoder().encode

# The first that fits counts.
STATUS: tuple[tuple[type[PabalError], int], ...] = (
    (EmailTaken, 409),
    (TooLarge, 413),
    (InvalidInput, 400),
    (RoomUnknown, 404),
    (MessageUnknown, 404),
    (NotMember, 403),
    (UserUnknown, 401),
    (Outage, 503),
    (StoreError, 503),
)
_HTTP = {404: "PathUnknown", 405: "MethodRefused"}
_LATER = 1.0  # seconds after which who found the database down may ask again


class Issue(msgspec.Struct, frozen=True):
    """What is wrong with one field."""

    path: str
    message: str


class RequestRefused(PabalError):
    """A request that is not granted."""

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
    """Refuse what came too often; it may come again after so many seconds."""
    return RequestRefused(429, "TooOften", f"too often: wait {after:.1f} seconds", after=after)


def refusal_of(exc: PabalError) -> RequestRefused:
    """Say an error of ours in the words of an answer."""
    if isinstance(exc, RequestRefused):
        return exc
    status = next((status for kind, status in STATUS if isinstance(exc, kind)), 500)
    if status < 500:
        return RequestRefused(status, exc.code, str(exc))
    if status == 503:  # what is down, and how, is not for everybody
        return RequestRefused(503, "Unavailable", "not possible at the moment: try again later", after=_LATER)
    log.error("an error that nobody foresaw: %s: %s", exc.code, exc)
    return RequestRefused(500, "Failed", "this should not have happened")


def document_of(refusal: RequestRefused) -> dict[str, Any]:
    """Return the `error` of an answer."""
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
    """Answer what an endpoint or the router raised."""
    if isinstance(exc, PabalError):
        return refused(refusal_of(exc))
    if isinstance(exc, HTTPException):
        return refused(RequestRefused(exc.status_code, _HTTP.get(exc.status_code, "Refused"), exc.detail))
    if isinstance(exc, ClientDisconnect):
        return Response(status_code=400)
    return refused(RequestRefused(500, "Failed", "this should not have happened"))


async def body_of(request: Request, kind: type[T], most: int) -> T:
    """Return the body of a request as a value of a type."""
    data = await bytes_of(request, most)
    try:
        value = msgspec.json.decode(data or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise RequestRefused(400, "InvalidInput", f"the body is no JSON: {exc}") from exc
    return value_of(value, kind)


async def bytes_of(request: Request, most: int) -> bytes:
    """Return the body of a request if it has at most so many bytes; no more of it is read."""
    declared = request.headers.get("content-length", "0")
    data = bytearray()
    if not declared.isdecimal() or int(declared) <= most:
        async for chunk in request.stream():
            data += chunk
            if len(data) > most:
                break
        else:
            return bytes(data)
    raise RequestRefused(413, "TooLarge", f"a body has at most {most} bytes here")


def value_of(value: object, kind: type[T]) -> T:
    """Return what a client sent as a value of a type; a RequestRefused names every field that is wrong."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as exc:
        issues = tuple(_issues(value, kind)) or (Issue("", _plain(exc)),)
        raise RequestRefused(
            400, "InvalidInput", f"{issues[0].path or 'the body'}: {issues[0].message}", issues=issues
        ) from exc


def _issues(value: object, kind: type[T]) -> list[Issue]:
    if not isinstance(value, dict):
        return []
    found = []
    for field in _fields(kind):
        if field.encode_name not in value:
            if field.required:
                found.append(Issue(field.encode_name, "is required"))
            continue
        try:
            msgspec.convert(value[field.encode_name], field.type)
        except msgspec.ValidationError as exc:
            found.append(Issue(field.encode_name, _plain(exc)))
    return found


@lru_cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def _plain(exc: msgspec.ValidationError) -> str:
    return str(exc).partition(" - at `")[0]
