"""The outermost layer: refuses a wrong Host, a foreign Origin, and connections over the limits."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pabal.apps.chat.gateway.answers import RequestRefused, refused
from pabal.apps.chat.gateway.limits import Limits
from pabal.apps.chat.gateway.server import Server
from pabal.runtime.origins import Origins

SOCKETS = "/socket.io/"


class Guard:
    """Wraps the gateway's whole ASGI application."""

    def __init__(self, app: ASGIApp, *, server: Server, origins: Origins, limits: Limits) -> None:
        self._app, self._server, self._origins, self._limits = app, server, origins, limits
        self._polls = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None:
            await self._pass(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})  # before it was accepted: answered with 403
        else:
            await refused(refusal)(scope, receive, send)

    def _refusal(self, scope: Scope) -> RequestRefused | None:
        code, reason = self._origins.refusal(dict(scope["headers"]))
        if code:
            way = ", except those of --allow-origin" if code == "OriginRefused" else ""
            return RequestRefused(403, code, reason + way)
        if scope["path"].startswith(SOCKETS):
            return self._no_room(scope)
        return None

    def _no_room(self, scope: Scope) -> RequestRefused | None:
        query = parse_qs(scope["query_string"].decode("latin-1"))
        if "sid" not in query and len(self._server.eio.sockets) >= self._limits.sockets:
            return RequestRefused(
                503, "TooManySockets", "as many sockets are open as may be: try again later", after=10
            )
        if _polls(scope) and self._polls >= self._limits.polls:
            return RequestRefused(503, "TooManyPolls", "as many long polls wait as may: use a WebSocket", after=10)
        return None

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._app(scope, _packets(receive), send)
            return

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("X-Content-Type-Options", "nosniff")
                headers.setdefault("Referrer-Policy", "no-referrer")
                headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
            await send(message)

        polls = _polls(scope)
        self._polls += polls
        try:
            await self._app(scope, receive, sealed)
        finally:
            self._polls -= polls


def _packets(receive: Receive) -> Receive:
    """Replace texts that are no Engine.IO packet by one that makes the server disconnect; the library would fail."""

    async def received() -> Message:
        message = await receive()
        text = message.get("text") if message["type"] == "websocket.receive" else None
        if text is not None and not (text and text[0] in "0123456789b"):
            return {**message, "text": "4"}
        return message

    return received


def _polls(scope: Scope) -> bool:
    """Return whether a request may be a long poll."""
    return scope["type"] == "http" and scope["method"] == "GET" and str(scope["path"]).startswith(SOCKETS)
