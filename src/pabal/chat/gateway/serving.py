"""Running a gateway: binds its address, serves until SIGTERM or SIGINT, finishes what was begun."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from pabal.chat.events import make_topics
from pabal.chat.gateway.app import Gateway, Settings
from pabal.chat.gateway.origins import check_bind
from pabal.chat.gateway.patience import PatientProtocol
from pabal.chat.ledger import open_ledger
from pabal.clock import Clock, SystemClock
from pabal.connect_topics import connect_topics
from pabal.errors import InvalidInput
from pabal.runtime.heartbeat import Heartbeat

_BACKLOG = 2048
_GRACE = 5  # seconds that requests under way have to end
_BEAT = 1.0  # seconds
_STUCK = 60  # seconds


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Where a gateway stands."""

    topics: str
    db: str
    host: str = "127.0.0.1"
    port: int = 8080
    behind_proxy: str = ""  # the addresses of proxies whose word on a client's address counts
    tls_cert: Path | None = None
    tls_key: Path | None = None
    heartbeat: Path | None = None

    @property
    def scheme(self) -> str:
        return "https" if self.tls_cert else "http"


def serve(settings: Settings, serving: Serving, started: Callable[[str], None]) -> None:
    """Serve until told to end; `started` is called with the address when it answers."""
    check_bind(serving.host, behind_proxy=bool(serving.behind_proxy), tls=serving.tls_cert is not None)
    clock = SystemClock()
    with connect_topics(serving.topics) as topics, closing(open_ledger(serving.db)) as ledger:
        make_topics(topics)
        with closing(_bound(serving)) as bound:
            gateway = Gateway(settings, topics.driver, ledger, clock)
            # uvicorn sends itself the signal again after it has stopped: by then it has done its work.
            with _deaf_to(signal.SIGTERM, signal.SIGINT):
                asyncio.run(_run(gateway, serving, bound, lambda: started(_address(serving, bound)), clock))


def config_of(gateway: Gateway, serving: Serving) -> uvicorn.Config:
    """Return how uvicorn serves a gateway."""
    return uvicorn.Config(
        gateway.asgi,
        lifespan="off",
        http=PatientProtocol,
        ws="websockets-sansio",
        ws_max_size=gateway.frame,
        ws_per_message_deflate=False,
        ws_ping_interval=None,  # Engine.IO has pings of its own
        proxy_headers=bool(serving.behind_proxy),
        forwarded_allow_ips=serving.behind_proxy or None,
        ssl_certfile=serving.tls_cert,
        ssl_keyfile=serving.tls_key,
        server_header=False,
        access_log=False,
        log_config=None,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_GRACE,
    )


class _Uvicorn(uvicorn.Server):
    """Says goodbye to the sockets before their connections are cut: long polls end at once."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._gateway.dismiss()
        await super().shutdown(sockets)


async def _run(
    gateway: Gateway, serving: Serving, bound: socket.socket, started: Callable[[], None], clock: Clock
) -> None:
    await gateway.begin()
    try:
        server = _Uvicorn(config_of(gateway, serving), gateway)
        beating = asyncio.create_task(_beat(server, serving, started, clock))
        await server.serve([bound])
        beating.cancel()
    finally:
        await gateway.end()


async def _beat(server: uvicorn.Server, serving: Serving, started: Callable[[], None], clock: Clock) -> None:
    while not server.started:
        await asyncio.sleep(0.01)
    started()
    heartbeat = Heartbeat(serving.heartbeat, "gateway", clock) if serving.heartbeat else None
    try:
        while heartbeat is not None:
            heartbeat.passed()
            await asyncio.sleep(_BEAT)
    finally:
        if heartbeat is not None:
            heartbeat.end()


def _bound(serving: Serving) -> socket.socket:
    """Return a socket at the address, so that port 0 has a number before anybody is told."""
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            serving.host, serving.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        bound = socket.socket(family, kind, protocol)  # asyncio sends at once only where the protocol says TCP
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Who takes nothing for so long is gone, though its machine may still answer.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _STUCK * 1000)
        bound.bind(address)
    except OSError as exc:
        raise InvalidInput(f"cannot serve at {serving.host} port {serving.port}: {exc.strerror}") from exc
    return bound


def _address(serving: Serving, bound: socket.socket) -> str:
    host = f"[{serving.host}]" if ":" in serving.host else serving.host
    return f"{serving.scheme}://{host}:{bound.getsockname()[1]}"


@contextmanager
def _deaf_to(*numbers: signal.Signals) -> Iterator[None]:
    before = {number: signal.signal(number, lambda *heard: None) for number in numbers}
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)
