"""Agents at `/mcp`: finds out by its key which agent calls, and hands the request to the package that serves it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol
from urllib.parse import parse_qs

from pabal import jsontext
from pabal.errors import ExtraMissing, InvalidInput, PabalError
from pabal.gateway.api.access import Access
from pabal.gateway.http import Receive, Scope, Send
from pabal.names import check_name

log = logging.getLogger("pabal.gateway")

QUEUES, MAIL = "/mcp", "/mcp/mail"


class Agents(Protocol):
    """What serves agents over HTTP; `pabal.mcp.http` does."""

    def serve(
        self,
        key: str,
        name: str,
        rights: Collection[str],
        may_use: Callable[[str], bool],
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        mail: bool,
    ) -> Awaitable[None]:
        """Serve one request of an agent with this name, by this key; raise PabalError if that cannot be done."""
        ...

    def dismiss(self) -> None:
        """Let calls that wait answer at once."""
        ...

    def close(self) -> Awaitable[None]: ...


def no_agents() -> Agents:
    """Refuse: this gateway was made without a package that serves agents."""
    raise ExtraMissing("this gateway serves no agents: install Pabal with its extra 'mcp' (README, Extras)")


class AgentMount:
    """Checks the keys of agents. What serves them is made at the first request: many gateways never need it."""

    def __init__(self, make: Callable[[], Agents], access: Access, *, read_only: bool) -> None:
        self._make = make
        self._access = access
        self._read_only = read_only
        self._lock = asyncio.Lock()
        self._agents: Agents | None = None

    def takes(self, path: str) -> bool:
        return path == QUEUES or path.startswith(f"{QUEUES}/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, text = 404, f"agents are served at {QUEUES} and {MAIL}"
        if scope["path"] in (QUEUES, MAIL):
            try:
                status, text = await self._serve(scope, receive, send)
            except ExtraMissing as exc:
                status, text = 501, str(exc)
            except InvalidInput as exc:
                status, text = 400, str(exc)
            except PabalError as exc:
                status, text = 404, str(exc)
        if not status:
            return
        body = jsontext.encode({"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": text}})
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += [(b"www-authenticate", b'Bearer realm="pabal"')] if status == 401 else []
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def dismiss(self) -> None:
        if self._agents is not None:
            self._agents.dismiss()

    async def close(self) -> None:
        if self._agents is not None:
            await self._agents.close()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> tuple[int, str]:
        """Serve a request; return a status and a reason if it is refused, else 0."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        # Only the Authorization counts: a cookie would come from a page, not from an agent.
        key = self._access.key_of({"authorization": headers.get("authorization", "")}, "")
        if key is None:
            if self._access.local:
                return 401, "send `Authorization: Bearer TOKEN`, with the token of the dashboard"
            return 401, "send `Authorization: Bearer KEY:SECRET`, with a key of this gateway"
        mail = scope["path"] == MAIL
        rights = key.rights_left(read_only=self._read_only)
        if mail and rights == ["look"]:
            return 403, "this key or this gateway only shows, and mail is for its agent alone"
        if not rights:
            return 403, "this gateway only shows, and this key has no right to look"
        own = "" if self._access.local else key.name
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("agent", [""])[0]
        if own and asked not in ("", own):
            return 403, f"this key is that of {own}: leave out agent"
        name = own or asked
        if name:
            check_name(name, "agent")
        elif mail:
            return 400, f"whose mail? Give {MAIL}?agent=NAME, or a key with the name of the agent"
        agents = await self._made()
        await agents.serve(key.access_key, name, rights, key.may_use, scope, receive, send, mail=mail)
        return 0, ""

    async def _made(self) -> Agents:
        async with self._lock:
            if self._agents is None:
                self._agents = await asyncio.to_thread(self._make)
            return self._agents
