"""Runs a gateway: binds its address, serves until SIGTERM or SIGINT, and finishes requests under way."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pabal.aio
from pabal.clock import Clock, SystemClock
from pabal.errors import InvalidInput
from pabal.gateway.api.access import LOCAL, Access
from pabal.gateway.api.people import FindPlaces, People
from pabal.gateway.app import Gateway
from pabal.gateway.mount import AgentMount, Agents, no_agents
from pabal.gateway.signature import Key, Keys, read_keys
from pabal.runtime.http_server import Server, configured
from pabal.runtime.listening import address_of, bound_socket
from pabal.runtime.origins import TOKEN_LENGTH, Origins, is_loopback

_CONNECTIONS = 2000  # at the same time; more are answered with 503
_IDLE = 75  # seconds for which a connection without a request is kept


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Where a gateway serves, what it shows, and who may use it."""

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
    person: str = "somebody"  # the responder of answers to questions, if there are no keys


def serve(settings: Settings, started: Callable[[str, str], None]) -> None:
    """Serve until a signal; `started` is called with the address and the token when the gateway answers."""
    if settings.keys is None and not is_loopback(settings.host):
        raise InvalidInput(
            f"{settings.host} can be reached from other machines, and clients would need no key: make keys with"
            " `pabal gateway-keys add --keys FILE`, and give --keys FILE"
        )
    clock = SystemClock()
    known = None if settings.keys is None else read_keys(settings.keys)
    if 0 < len(settings.token) < TOKEN_LENGTH:
        raise InvalidInput(f"a token has {TOKEN_LENGTH} characters or more, so that nobody can guess it")
    token = "" if known is not None else settings.token or secrets.token_urlsafe(24)
    access = Access(known if known is not None else [Key(LOCAL, token, LOCAL)], clock)
    keys = None if known is None else Keys(known, clock)
    with closing(bound_socket(settings.host, settings.port)) as bound:
        asyncio.run(_run(settings, access, keys, bound, lambda address: started(address, token), clock))


async def _run(
    settings: Settings,
    access: Access,
    keys: Keys | None,
    bound: socket.socket,
    started: Callable[[str], None],
    clock: Clock,
) -> None:
    async with pabal.aio.connect(settings.url, consumer="gateway") as mq:
        people = People(settings.places, settings.person)
        agents = AgentMount(settings.agents, access, read_only=settings.read_only)
        origins = Origins(hosts=(settings.host, *settings.hosts), any_host=keys is not None)
        gateway = Gateway(
            mq,
            clock,
            access,
            origins,
            people,
            agents,
            keys=keys,
            read_only=settings.read_only,
            topics=settings.topics,
            heartbeat=settings.heartbeat,
        )
        options = {"ws": "none", "limit_concurrency": _CONNECTIONS, "timeout_keep_alive": _IDLE}
        server = Server(configured(gateway, **options), gateway.dismiss)
        announcing = asyncio.create_task(_announce(server, address_of("http", settings.host, bound), started))
        gateway.begin()
        try:
            await server.serve([bound])
        finally:
            announcing.cancel()
            await gateway.close()


async def _announce(server: Server, address: str, started: Callable[[str], None]) -> None:
    await server.serves()
    started(address)
