"""Runs a gateway: binds its address, serves until SIGTERM or SIGINT, and finishes requests under way."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import FrameType

from pabal.apps.chat.errors import TRANSIENT
from pabal.apps.chat.events import as_client, make_topics
from pabal.apps.chat.gateway.app import Gateway, Settings, Starts, starts_of
from pabal.apps.chat.ledger import open_ledger
from pabal.clock import Clock, SystemClock
from pabal.connect import TopicConnection, connect_topics
from pabal.runtime.heartbeat import Heartbeat
from pabal.runtime.http_server import Config, Server, configured
from pabal.runtime.listening import address_of, bound_socket
from pabal.runtime.origins import check_bind
from pabal.topics.paused_partitions import OUTAGE

log = logging.getLogger("pabal.chat")

_BEAT = 1.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Address:
    """The address of a gateway, and where its topics and database are."""

    topics: str
    db: str
    host: str = "127.0.0.1"
    port: int = 8080
    behind_proxy: str = ""  # addresses of proxies that may report a client's address
    tls_cert: Path | None = None
    tls_key: Path | None = None
    heartbeat: Path | None = None

    @property
    def scheme(self) -> str:
        return "https" if self.tls_cert else "http"


def serve(settings: Settings, serving: Address, started: Callable[[str], None]) -> None:
    """Serve until a signal; `started` is called with the address when the gateway answers.

    Topics that do not answer are waited for, as a worker does; a signal ends the process meanwhile.
    """
    check_bind(serving.host, behind_proxy=bool(serving.behind_proxy), tls=serving.tls_cert is not None)
    clock = SystemClock()
    log.info("the gateway starts")
    topics_url = as_client(serving.topics, "gateway", settings.name)
    with closing(bound_socket(serving.host, serving.port)) as bound, connect_topics(topics_url) as topics:
        with closing(open_ledger(serving.db)) as ledger:
            starts = _reach(topics, clock)
            gateway = Gateway(settings, topics.driver, ledger, clock)
            server = Server(config_of(gateway, serving), gateway.dismiss)
            # uvicorn raises the signal again after it has stopped; then, and before it serves, this is all it does.
            with _stopping(server, signal.SIGTERM, signal.SIGINT):
                address = address_of(serving.scheme, serving.host, bound)
                asyncio.run(_run(gateway, server, starts, serving, bound, lambda: started(address), clock))
    log.info("the gateway has stopped")


def _reach(topics: TopicConnection, clock: Clock) -> Starts:
    """Create the topics and look where they end, however long they do not answer."""
    # No handler of Python runs while the Kafka client waits; without one the signal ends the process at once.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        for failures in count(1):
            try:
                make_topics(topics)
                return starts_of(topics.driver, clock)
            except TRANSIENT as exc:
                log.warning("the gateway waits for its topics: %(error)s", {"error": str(exc)})
                time.sleep(OUTAGE.delay(failures, random.random()))
        raise AssertionError
    finally:
        signal.signal(signal.SIGINT, before)


def config_of(gateway: Gateway, serving: Address) -> Config:
    """Return the configuration of uvicorn for a gateway."""
    return configured(
        gateway.asgi,
        ws="websockets-sansio",
        ws_max_size=gateway.frame,
        ws_per_message_deflate=False,
        ws_ping_interval=None,  # Engine.IO has pings of its own
        proxy_headers=bool(serving.behind_proxy),
        forwarded_allow_ips=serving.behind_proxy or None,
        ssl_certfile=serving.tls_cert,
        ssl_keyfile=serving.tls_key,
    )


async def _run(
    gateway: Gateway,
    server: Server,
    starts: Starts,
    serving: Address,
    bound: socket.socket,
    started: Callable[[], None],
    clock: Clock,
) -> None:
    await gateway.begin(starts)
    try:
        beating = asyncio.create_task(_beat(server, serving, started, clock))
        await server.serve([bound])
        beating.cancel()
    finally:
        await gateway.end()


async def _beat(server: Server, serving: Address, started: Callable[[], None], clock: Clock) -> None:
    await server.serves()
    started()
    log.info("the gateway serves", extra={"pabal": {"scheme": serving.scheme, "host": serving.host}})
    heartbeat = Heartbeat(serving.heartbeat, "gateway", clock) if serving.heartbeat else None
    try:
        while heartbeat is not None:
            heartbeat.passed()
            await asyncio.sleep(_BEAT)
    finally:
        if heartbeat is not None:
            heartbeat.end()


@contextmanager
def _stopping(server: Server, *numbers: signal.Signals) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        server.stop()

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)
