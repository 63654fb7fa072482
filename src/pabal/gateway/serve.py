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
    if 0 < len(serving.token) < TOKEN_LENGTH:
        raise InvalidInput(f"a token has {TOKEN_LENGTH} characters or more, so that nobody can guess it")
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
        origins = Origins(hosts=(serving.host, *serving.hosts), any_host=keys is not None)
        gateway = Gateway(
            mq,
            clock,
            access,
            origins,
            people,
            agents,
            keys=keys,
            read_only=serving.read_only,
            topics=serving.topics,
            heartbeat=serving.heartbeat,
        )
        options = {"ws": "none", "limit_concurrency": _CONNECTIONS, "timeout_keep_alive": _IDLE}
        server = Server(configured(gateway, **options), gateway.dismiss)
        telling = asyncio.create_task(_tell(server, address_of("http", serving.host, bound), started))
        gateway.begin()
        try:
            await server.serve([bound])
        finally:
            telling.cancel()
            await gateway.close()


async def _tell(server: Server, address: str, started: Callable[[str], None]) -> None:
    await server.serves()
    started(address)
