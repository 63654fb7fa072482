"""Serves the dashboard and the HTTP interface: finds the call, checks the key, reads types and writes answers."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import aclosing, suppress
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

import msgspec

import pabal.aio
from pabal import jsontext
from pabal.clock import Clock
from pabal.errors import (
    InvalidInput,
    LeaseLost,
    MessageUnknown,
    NameTaken,
    PabalError,
    QueueFull,
    QueueNotEmpty,
    QueueUnknown,
    StoreError,
    StoreFull,
    TooLarge,
    TopicUnknown,
)
from pabal.gateway.api import types
from pabal.gateway.api.access import LOCAL, Access
from pabal.gateway.api.calls import CALLS, Call, Calls
from pabal.gateway.api.live import Live
from pabal.gateway.api.openapi import openapi
from pabal.gateway.api.people import People
from pabal.gateway.api.topics import TopicDesk
from pabal.gateway.api.types import NeedAnswer, NewMessages, Redrive, SendBack
from pabal.gateway.http import ClientGone, Receive, Scope, Send, Stopping, Waits, read_body
from pabal.gateway.signature import Key
from pabal.names import check_name
from pabal.queues.overview import Overview
from pabal.queues.replies import SUFFIX as REPLIES

log = logging.getLogger("pabal.gateway")

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_SAFE = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_JSON = {"content-type": "application/json", "cache-control": "no-store", **_SAFE}
_STATUS: tuple[tuple[type[PabalError], int], ...] = (
    (MessageUnknown, 404),
    (NameTaken, 409),
    (QueueNotEmpty, 409),
    (QueueFull, 429),
    (TooLarge, 413),
    (InvalidInput, 400),
    (StoreFull, 507),
    (StoreError, 503),
)
_LARGE = 64 << 10  # bytes
MOST_BYTES = 72 << 20  # of a request: a message of the largest size


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: Mapping[str, str] = _JSON


class Refused(Exception):
    """A request that is refused before a call is made."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers


class _Asked(NamedTuple):
    """A request. `cookie` is the name of the cookie of this gateway, `secure` whether the request came over TLS."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    cookie: str
    secure: bool


class ApiServer:
    """The dashboard at `/`, its files under `/ui/`, its stream at `/events`, and the calls."""

    def __init__(
        self,
        mq: pabal.aio.Connection,
        clock: Clock,
        access: Access,
        waits: Waits,
        topics: TopicDesk,
        people: People,
        *,
        read_only: bool,
        heartbeat: Path | None = None,
    ) -> None:
        self._calls = Calls(mq, clock, topics, people)
        self._people = people
        self._live = Live(mq.blocking, clock, heartbeat=heartbeat)
        self._written: tuple[Overview | None, dict[tuple[str, ...], bytes]] = (None, {})
        self._access = access
        self._read_only = read_only
        self._waits = waits

    def takes(self, scope: Scope) -> bool:
        """Return whether a request is for the dashboard or the interface, and not for SQS."""
        path: str = scope["path"]
        if path == "/":
            asks_sqs = b"Action=" in scope["query_string"] or scope["method"] not in ("GET", "HEAD")
            return not asks_sqs
        return path.startswith(("/ui/", "/queues/", "/topics/")) or path in (
            "/queues",
            "/topics",
            "/consumers",
            "/schedules",
            "/needs",
            "/needs/answer",
            "/teams",
            "/kingdoms",
            "/events",
            "/openapi.json",
            "/session",
            "/favicon.ico",
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        port = (scope.get("server") or ("", 0))[1]
        asked = _Asked(
            scope["method"],
            scope["path"],
            scope["query_string"].decode("latin-1"),
            headers,
            f"pabal-{port}",  # browsers send a cookie to every port of a host
            scope["scheme"] == "https",
        )
        try:
            if asked.path == "/events":
                if asked.method != "GET":
                    raise Refused(405, "MethodNotAllowed", "only GET is allowed here", allow="GET")
                await self._stream(self._allowed(asked, "look", ""), receive, send)
                return
            answer = await self._answered(asked, receive, scope.get("raw_path", b"").decode("latin-1"))
        except Refused as exc:
            answer = _refusal(exc.status, exc.code, str(exc), exc.headers)
        except Stopping:
            answer = _refusal(503, "Stopping", "the gateway is being stopped: ask again")
        except ClientGone:
            return
        pairs = {**answer.headers, "content-length": str(len(answer.body))}
        await _begin(send, answer.status, pairs)
        await send({"type": "http.response.body", "body": b"" if asked.method == "HEAD" else answer.body})

    def close(self) -> None:
        self._live.close()
        self._people.close()

    async def _answered(self, asked: _Asked, receive: Receive, raw_path: str) -> Answer:
        try:
            if asked.method in ("GET", "HEAD"):
                if asked.path == "/":
                    return self._page(asked)
                if asked.path.startswith("/ui/"):
                    return _file(asked.path.removeprefix("/ui/"), asked.headers)
                if asked.path == "/favicon.ico":
                    return _file("icon.svg", asked.headers)
                if asked.path == "/openapi.json":
                    return Answer(200, _openapi_text())
                if asked.path == "/session":
                    return self._session(asked)
            if asked.path == "/session":
                return await self._sign(asked, receive)
            return await self._call(asked, receive, raw_path)
        except QueueUnknown as exc:
            # The library names other queues, and a key may not be allowed to see them.
            return _refusal(404, exc.code, str(exc) if self._access.local else "there is no such queue")
        except TopicUnknown as exc:
            return _refusal(404, exc.code, str(exc) if self._access.local else "there is no such topic")
        except LeaseLost as exc:
            return _refusal(409, exc.code, str(exc), receipts=list(exc.receipts))
        except PabalError as exc:
            status = next((status for kind, status in _STATUS if isinstance(exc, kind)), 500)
            return _refusal(status, exc.code, str(exc), {"retry-after": "1"} if status in (429, 503) else {})
        except (ClientGone, Refused, Stopping):
            raise
        except Exception:
            log.exception("a request failed")
            return _refusal(500, "InternalError", "the request failed; the log of the gateway says why")

    # Access

    def _key(self, asked: _Asked) -> Key:
        key = self._access.key_of(asked.headers, asked.cookie)
        if key is None:
            way = (
                "open the address that `pabal gateway` printed, or send its token as `Authorization: Bearer TOKEN`"
                if self._access.local
                else "sign in with a key and its secret (HTTP Basic)"
            )
            # A browser would ask with a window of its own; the page has a form.
            challenge = {} if "sec-fetch-mode" in asked.headers else {"www-authenticate": 'Basic realm="pabal"'}
            raise Refused(401, "NotSignedIn", f"this request has no key: {way}", **challenge)
        return key

    def _allowed(self, asked: _Asked, right: str, name: str) -> Key:
        """Return the key of a request; refuse one that lacks a right, or may not use the queue or topic."""
        key = self._key(asked)
        if self._read_only and right != "look":
            raise Refused(403, "ReadOnly", "this gateway only shows: start it without --read-only to change something")
        if right not in key.rights:
            raise Refused(403, "NotAllowed", f"the key {key.access_key} has no right to {right}")
        if name and not key.may_use(name):
            raise Refused(403, "NotAllowed", f"the key {key.access_key} may not use {name:.140}")
        return key

    def _page(self, asked: _Asked) -> Answer:
        """Return the page; a token in the URL becomes a cookie, and leaves the address bar."""
        if (key := self._access.key_in_query(asked.query)) is not None:
            cookie = self._access.cookie(key, asked.cookie, secure=asked.secure)
            return Answer(303, b"", {"location": "/", "set-cookie": cookie, "cache-control": "no-store", **_SAFE})
        return _file("index.html", asked.headers)

    def _session(self, asked: _Asked) -> Answer:
        key = self._access.key_of(asked.headers, asked.cookie)
        rights = [] if key is None else key.rights_left(read_only=self._read_only)
        found = {"signed_in": key is not None, "local": self._access.local, "rights": rights}
        return Answer(200, jsontext.encode({**found, "name": key.name if key else "", "read_only": self._read_only}))

    async def _sign(self, asked: _Asked, receive: Receive) -> Answer:
        """Sign a browser in with a key, or out."""
        if asked.method == "DELETE":
            gone = f"{asked.cookie}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict"
            return Answer(200, b"{}", {**_JSON, "set-cookie": gone})
        if asked.method != "POST":
            raise Refused(405, "MethodNotAllowed", "GET, POST and DELETE are allowed here", allow="GET, POST, DELETE")
        given = _read(await read_body(receive, 1 << 16), _Credentials, asked.headers)
        key = self._access.key(given.key or LOCAL, given.secret)
        if key is None:
            raise Refused(401, "NotSignedIn", "this key and secret do not belong together")
        cookie = self._access.cookie(key, asked.cookie, secure=asked.secure)
        return Answer(200, b"{}", {**_JSON, "set-cookie": cookie})

    # Calls

    async def _call(self, asked: _Asked, receive: Receive, raw_path: str) -> Answer:
        call, values = _found(asked.method, raw_path or asked.path)
        key = self._allowed(asked, call.right, values.get("queue", "") or values.get("topic", ""))
        if call.whole and not _has_all(key):
            raise Refused(403, "NotAllowed", f"the key {key.access_key} has some queues only, and this belongs to none")
        arguments: list[Any] = []
        if call.query is not None:
            arguments.append(_read_query(asked.query, call.query))
        elif asked.query:
            raise InvalidInput(f"{call.method} {call.path} takes no query; found {asked.query:.80}")
        body = await read_body(receive, MOST_BYTES)
        if call.body is not None:
            if len(body) > _LARGE:  # its reading would hold up all other clients
                arguments.append(await asyncio.to_thread(_read, body, call.body, asked.headers))
            else:
                arguments.append(_read(body, call.body, asked.headers))
        for other in _other_queues(values.get("queue", ""), arguments):
            self._allowed(asked, call.right, other)
        for given in arguments:
            if isinstance(given, NewMessages) and not self._access.local:
                _check_senders(given, key)
            elif isinstance(given, NeedAnswer) and not self._access.local:
                given.responder = key.name or key.access_key
        act = call.act(self._calls, *values.values(), *arguments)
        result = await (self._waits.while_there(receive, act) if call.waits else act)
        if isinstance(result, bytes):
            # The sender chose what is in it: a browser saves it as a file, and never shows it as a page.
            name = re.sub(r"[^A-Za-z0-9._-]", "_", values["id"])[:100]
            kept = {"content-type": "application/octet-stream", "content-disposition": f'attachment; filename="{name}"'}
            return Answer(200, result, {**_JSON, **kept, "content-security-policy": "default-src 'none'; sandbox"})
        return Answer(200, jsontext.encode(_visible(key, call.path, result)))

    async def _stream(self, key: Key, receive: Receive, send: Send) -> None:
        """Send the figures of the queues as server-sent events until the client goes."""
        head = {"content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no", **_SAFE}
        await _begin(send, 200, head)
        with suppress(Stopping, ClientGone):
            await self._waits.while_there(receive, self._send_events(key, send))
        await send({"type": "http.response.body", "body": b""})

    async def _send_events(self, key: Key, send: Send) -> None:
        sent: types.People | None = None
        async with aclosing(self._live.watch()) as figures:
            async for found in figures:
                people = self._people.glance() if _has_all(key) else None
                if people != sent:
                    text, sent = b"event: people\ndata: " + jsontext.encode(people) + b"\n\n", people
                    await send({"type": "http.response.body", "body": text, "more_body": True})
                text = b"event: alive\ndata:\n\n" if found is None else self._event(found, key)
                await send({"type": "http.response.body", "body": text, "more_body": True})

    def _event(self, found: Overview, key: Key) -> bytes:
        """Return the event with the queues that a key may use; it is written once for all keys of the same ones."""
        if self._written[0] is not found:
            self._written = (found, {})
        texts = self._written[1]
        if key.queues not in texts:
            queues = [each for each in found["queues"] if key.may_use(each["queue"])]
            texts[key.queues] = b"data: " + jsontext.encode({**found, "queues": queues}) + b"\n\n"
        return texts[key.queues]


class _Credentials(msgspec.Struct, forbid_unknown_fields=True):
    """What a browser signs in with; without a key the secret is the token of the gateway."""

    secret: str
    key: str = ""


def _has_all(key: Key) -> bool:
    return "*" in key.queues


def _visible(key: Key, path: str, result: dict[str, Any]) -> dict[str, Any]:
    """Leave out of a list what belongs to queues that the key may not use."""
    if path == "/consumers":
        for each in result["consumers"]:
            each["holds"] = [held for held in each["holds"] if key.may_use(held["queue"])]
        result["consumers"] = [each for each in result["consumers"] if each["holds"] or _has_all(key)]
        return result
    if path in ("/queues", "/schedules", "/topics"):
        [(name, rows)] = result.items()
        return {name: [row for row in rows if key.may_use(row["topic" if name == "topics" else "queue"])]}
    return result


def _other_queues(queue: str, arguments: list[Any]) -> Iterator[str]:
    """Yield the other queues that a request writes to, or makes others write to: of replies, and of dead letters."""
    for given in arguments:
        if isinstance(given, (Redrive, SendBack)) and given.to:
            yield check_name(given.to)
        if isinstance(given, NewMessages):
            yield from {check_name(each.reply_to) for each in given.messages if each.reply_to} - {f"{queue}{REPLIES}"}
        elif isinstance(given, dict) and isinstance(dlq := given.get("dlq"), dict) and dlq.get("queue"):
            yield str(dlq["queue"])


def _check_senders(given: NewMessages, key: Key) -> None:
    """Give each message the name of the key as its sender; refuse another one."""
    for message in given.messages:
        if key.name and message.sender not in (None, key.name):
            raise Refused(403, "NotAllowed", f"the key {key.access_key} sends as {key.name}: leave out sender")
        message.sender = key.name or message.sender


def _found(method: str, path: str) -> tuple[Call, dict[str, str]]:
    """Return the call of a method and a path, with the values in the path."""
    allowed = []
    for pattern, call in _patterns():
        if (match := pattern.fullmatch(path)) is not None:
            if call.method == ("GET" if method == "HEAD" else method):
                return call, {name: unquote(value) for name, value in match.groupdict().items()}
            allowed.append(call.method)
    if not allowed:
        raise Refused(404, "NotFound", f"nothing is at {path:.140}; GET /openapi.json describes all calls")
    raise Refused(405, "MethodNotAllowed", f"only {' and '.join(allowed)} may be used here", allow=", ".join(allowed))


@cache
def _patterns() -> list[tuple[re.Pattern[str], Call]]:
    return [(re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", call.path)), call) for call in CALLS]


@cache
def _openapi_text() -> bytes:
    return json.dumps(openapi(), indent=1).encode()


def _read_query(text: str, kind: type[Any]) -> Any:
    pairs = parse_qsl(text, keep_blank_values=True)
    given = dict(pairs)
    if len(given) != len(pairs):
        raise InvalidInput("a parameter of the query is given twice")
    try:
        return jsontext.convert(given, kind, strict=False)
    except msgspec.ValidationError as exc:
        raise InvalidInput(f"query: {exc}") from exc


def _read(body: bytes, kind: Any, headers: Mapping[str, str]) -> Any:
    """Read a body. Only JSON that says so: what a form of another page sends never does."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "NotJson", "send the body as JSON, with `Content-Type: application/json`")
    try:
        return jsontext.convert(jsontext.read(body), kind)
    except msgspec.ValidationError as exc:
        raise InvalidInput(f"body: {exc}") from exc


def _refusal(
    status: int, code: str, message: str, headers: Mapping[str, str] | None = None, receipts: list[str] | None = None
) -> Answer:
    error = {"code": code, "message": message, "receipts": receipts or []}
    return Answer(status, jsontext.encode({"error": error}), {**_JSON, **(headers or {})})


@cache
def _files() -> dict[str, tuple[bytes, str]]:
    """Return the files of the page, by name, each with its tag."""
    folder = resources.files("pabal.gateway") / "web"
    found = {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}
    return {name: (data, f'"{sha256(data).hexdigest()[:20]}"') for name, data in found.items()}


def _file(name: str, headers: Mapping[str, str]) -> Answer:
    kind = _TYPES.get(f".{name.rpartition('.')[2]}")
    if kind is None or name not in _files():
        raise Refused(404, "NotFound", f"there is no file {name:.80}")
    data, tag = _files()[name]
    head = {"content-type": kind, "etag": tag, "cache-control": "no-cache", **_SAFE}
    return Answer(304, b"", head) if headers.get("if-none-match") == tag else Answer(200, data, head)


async def _begin(send: Send, status: int, headers: Mapping[str, str]) -> None:
    pairs = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
