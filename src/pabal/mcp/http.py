"""The streamable HTTP transport: the agents of a gateway, which knows each one by its key.

There is one desk for each agent, whatever its connections: what it holds belongs to the agent. A session is a matter of
older clients only (up to 2025-11-25); a client that ends the last one of its agent is gone, and what the agent holds is
given back. A gateway that stops gives nothing back: the agent outlives it, and its receipts count at the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from sse_starlette.sse import AppStatus

from pabal.errors import StoreMissing
from pabal.mcp.desk import Desk
from pabal.mcp.mail_desk import MailDesk
from pabal.mcp.queue_desk import QueueDesk
from pabal.mcp.server import AgentServer

log = logging.getLogger("pabal.mcp")

# It would break all streams when uvicorn is told to stop; here calls that wait are answered first, and others ended.
AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]  # it has no annotations

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

# The right of a key that each tool needs. `ask_human` publishes the question and leases the answer.
RIGHTS: dict[str, tuple[str, ...]] = {
    "send": ("send",),
    "receive": ("receive",),
    "ack": ("receive",),
    "fail": ("receive",),
    "extend": ("receive",),
    "look": ("look",),
    "ask_human": ("send", "receive"),
    "status": ("look",),
}
_MOST_AGENTS = 200  # with an open store; the one that was silent for longest makes room
_MOST_SESSIONS = 100  # of one agent
_MOST_BYTES = 4 << 20  # of a request
_SESSION = b"mcp-session-id"


class HttpAgents:
    """Serves the agents of a gateway, on the queues of a store or on the mail of a team."""

    def __init__(self, url: str, find_team: Callable[[], Path | None]) -> None:
        self._url = url
        self._find_team = find_team
        self._agents: OrderedDict[tuple[str, str, str], _Agent] = OrderedDict()

    async def serve(
        self,
        key: str,
        name: str,
        rights: Collection[str],
        may_use: Callable[[str], bool],
        scope: Message,
        receive: Receive,
        send: Send,
        *,
        mail: bool,
    ) -> None:
        """Serve one request of an agent; raise StoreMissing if there is no team whose mail it could mean."""
        root = self._find_team() if mail else None
        if mail and root is None:
            raise StoreMissing("there is no team beside the store of this gateway: start it with --team DIR")
        agent = self._agents.get((key, name, str(root or "")))
        if agent is None:
            desk: Desk = MailDesk(root, name) if root else QueueDesk(self._url, agent=name, may_use=may_use)
            tools = [tool for tool, needed in RIGHTS.items() if set(needed) <= set(rights)]
            agent = self._agents[key, name, str(root or "")] = _Agent(desk, tools)
            await self._make_room()
        self._agents.move_to_end((key, name, str(root or "")))
        await agent.serve(scope, receive, send)

    def dismiss(self) -> None:
        """Let calls that wait answer at once, and end streams that only listen."""
        for agent in self._agents.values():
            agent.dismiss()

    async def close(self) -> None:
        while self._agents:
            _, agent = self._agents.popitem()
            await agent.close()

    async def _make_room(self) -> None:
        for key in list(self._agents)[: max(0, len(self._agents) - _MOST_AGENTS)]:
            if not self._agents[key].busy:
                await self._agents.pop(key).close()


class _Agent:
    """One agent: its desk, its server and its sessions."""

    def __init__(self, desk: Desk, tools: Collection[str]) -> None:
        self._desk = desk
        self._server = AgentServer(desk, tools)
        self._manager = StreamableHTTPSessionManager(
            app=self._server.server,
            # The gateway has checked Host and Origin.
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            max_request_body_size=_MOST_BYTES,
            max_sessions=_MOST_SESSIONS,
        )
        self._sessions: set[bytes] = set()
        self._requests: dict[asyncio.Task[None], bool] = {}  # whether each only listens
        self._under_way = 0
        self._began, self._over = asyncio.Event(), asyncio.Event()
        self._running = asyncio.create_task(self._run())

    @property
    def busy(self) -> bool:
        return self._under_way > 0

    async def serve(self, scope: Message, receive: Receive, send: Send) -> None:
        self._under_way += 1
        try:
            await self._serve(scope, receive, send)
        finally:
            self._under_way -= 1

    async def _serve(self, scope: Message, receive: Receive, send: Send) -> None:
        began = over = False

        async def answer(message: Message) -> None:
            nonlocal began, over
            began = True
            over = message["type"] == "http.response.body" and not message.get("more_body", False)
            if message["type"] == "http.response.start":
                await self._note_session(scope, message)
            await send(message)

        await self._began.wait()
        act = asyncio.ensure_future(self._manager.handle_request(scope, receive, answer))
        self._requests[act] = scope["method"] == "GET"
        try:
            await asyncio.wait([act])
            if not act.cancelled() and (failed := act.exception()) is not None:
                log.error("a request failed", exc_info=failed)
        finally:
            del self._requests[act]
            act.cancel()
        if began and not over:  # the client sees a stream that ended, and not one that broke
            with suppress(Exception):
                await send({"type": "http.response.body", "body": b""})

    def dismiss(self) -> None:
        self._server.end_waits()
        for act, listens in self._requests.items():
            if listens:
                act.cancel()

    async def close(self) -> None:
        self._over.set()
        await asyncio.wait([self._running])
        await asyncio.to_thread(self._desk.close, release=False)

    async def _run(self) -> None:
        async with self._manager.run():
            self._began.set()
            await self._over.wait()

    async def _note_session(self, scope: Message, start: Message) -> None:
        """Note sessions that begin and end; with the last one the agent is gone."""
        if scope["method"] == "DELETE" and start["status"] == 200:
            self._sessions.discard(dict(scope["headers"]).get(_SESSION, b""))
            if not self._sessions:
                await asyncio.to_thread(self._desk.release)
        elif found := dict(start.get("headers", ())).get(_SESSION):
            self._sessions.add(found)
