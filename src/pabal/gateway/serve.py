"""Runs a gateway: binds its address, serves until SIGTERM or SIGINT, and finishes requests under way."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

import pabal.aio
from pabal.clock import Clock, SystemClock
from pabal.errors import InvalidInput
from pabal.gateway.api.access import LOCAL, Access
from pabal.gateway.api.people import FindPlaces, People
from pabal.gateway.app import Gateway
from pabal.gateway.mount import AgentMount, Agents, no_agents
from pabal.gateway.signature import Key, Keys, read_keys
from pabal.runtime.listening import address_of, bound_socket
from pabal.runtime.origins import Origins, is_loopback

log = logging.getLogger("pabal.gateway")

_SHORTEST = 16  # characters of a token
_GRACE = 5  # seconds for requests under way to end
_BACKLOG = 2048
_CONNECTIONS = 2000  # at the same time; more are answered with 503
_HEAD_SECONDS = 10.0  # in which the head of a request must have come
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_IDLE = 75  # seconds for which a connection without a request is kept


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a gateway serves, and what."""

    url: str
    host: str = "127.0.0.1"
    port: int = 9324
    keys: Path | None = None
    hosts: tuple[str, ...] = ()  # names of this gateway, beside those of loopback
    read_only: bool = False
    topics: str = ""  # the URL of the topics to show; empty: none
    heartbeat: Path | None = None  # of the manager that keeps this gateway running
    token: str = ""  # of the dashboard, if there are no keys; empty: one that nobody can guess
    places: FindPlaces = tuple  # the teams and kingdoms beside the store
    agents: Callable[[], Agents] = no_agents  # serves MCP
    person: str = "somebody"  # who answers their questions, if there are no keys


def serve(serving: Address, started: Callable[[str, str], None]) -> None:
    """Serve until a signal; `started` is called with the address and the token when the gateway answers."""
    if serving.keys is None and not is_loopback(serving.host):
        raise InvalidInput(
            f"{serving.host} can be reached from elsewhere, and nobody would have to prove who they are: make keys with"
            " `pabal gateway-keys add --keys FILE`, and give --keys FILE"
        )
    clock = SystemClock()
    known = None if serving.keys is None else read_keys(serving.keys)
    if 0 < len(serving.token) < _SHORTEST:
        raise InvalidInput(f"a token has {_SHORTEST} characters or more, so that nobody can guess it")
    token = "" if known is not None else serving.token or secrets.token_urlsafe(24)
    access = Access(known if known is not None else [Key(LOCAL, token, LOCAL)], clock)
    keys = None if known is None else Keys(known, clock)
    with closing(bound_socket(serving.host, serving.port)) as bound:
        asyncio.run(_run(serving, access, keys, bound, lambda address: started(address, token), clock))


async def _run(
    serving: Address,
    access: Access,
    keys: Keys | None,
    bound: socket.socket,
    started: Callable[[str], None],
    clock: Clock,
) -> None:
    async with pabal.aio.connect(serving.url, consumer="gateway") as mq:
        people = People(serving.places, serving.person)
        agents = AgentMount(serving.agents, access, read_only=serving.read_only)
        gateway = Gateway(
            mq,
            clock,
            access,
            people,
            agents,
            keys=keys,
            read_only=serving.read_only,
            topics=serving.topics,
            heartbeat=serving.heartbeat,
        )
        guarded = Guard(gateway, Origins(hosts=(serving.host, *serving.hosts)), any_host=keys is not None)
        server = _Server(_config(guarded), gateway)
        telling = asyncio.create_task(_tell(server, address_of("http", serving.host, bound), started))
        try:
            await server.serve([bound])
        finally:
            telling.cancel()
            await gateway.close()


def _config(app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        lifespan="off",
        http=TimeLimitedProtocol,
        ws="none",
        loop="asyncio",
        server_header=False,
        access_log=False,
        log_config=None,
        backlog=_BACKLOG,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=_GRACE,
    )


class _Server(uvicorn.Server):
    """Ends long polls before it waits for requests under way."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._gateway.dismiss()
        await super().shutdown(sockets)


class TimeLimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with a time limit for the head of a request; uvicorn has none."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._await_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        """Begin to wait for a head; the wait for the first one begins with the connection."""
        if self._timer is None:
            self._timer = self.loop.call_later(_HEAD_SECONDS, self._give_up)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if not self.pipeline and (self.cycle is None or self.cycle.response_complete):
            self.transport.write(_TOO_SLOW)
        self.transport.close()


class Guard:
    """Refuses requests that a web page made: with a foreign Origin, or to a Host that is not ours (DNS rebinding)."""

    def __init__(self, app: Gateway, origins: Origins, *, any_host: bool) -> None:
        self._app = app
        self._origins = origins
        self._any_host = any_host  # requests are signed, and so is their Host

    async def __call__(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        headers = dict(scope.get("headers", ()))
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin")
        told = ""
        # A link of another page may open the dashboard, which is the same for everybody and sends no cookie then.
        opens = (scope.get("path"), scope.get("query_string"), headers.get(b"sec-fetch-mode")) == (
            "/",
            b"",
            b"navigate",
        )
        if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin") and not opens:
            told = "pages of other sites may not call the gateway"
        elif not self._any_host and not self._origins.host_allowed(host):
            told = f"nothing here is called {host!r:.80}: start the gateway with --allow-host"
        elif not self._origins.origin_allowed(origin.decode("latin-1") if origin else None, host):
            told = "pages of other sites may not call the gateway"
        if not told:
            await self._app(scope, receive, send)
            return
        body = f"{told}\n".encode()
        plain = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 403, "headers": plain})
        await send({"type": "http.response.body", "body": body})


async def _tell(server: uvicorn.Server, address: str, started: Callable[[str], None]) -> None:
    while not server.started:
        await asyncio.sleep(0.01)
    started(address)
