"""The HTTP server of the gateways: uvicorn with time limits, answers in one packet, and an orderly stop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import uvicorn
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["Config", "Server", "TimeLimitedProtocol", "configured"]

HEAD_SECONDS = 10.0  # in which the head of a request must have come
BODY_SECONDS = 60.0  # and its body: the largest one over a slow line
_GRACE = 5  # seconds for requests under way to end
_BACKLOG = 2048
_TICK = 1.0  # seconds
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_CONNECTED, _HEAD, _BODY, _WHOLE = range(4)  # what of a request has come: nothing, some of its head, its head, all


def configured(app: Any, **options: Any) -> Config:
    """Return the configuration of uvicorn for an application; options beside those that all gateways share."""
    return Config(
        app,
        lifespan="off",
        http=TimeLimitedProtocol,
        loop="asyncio",
        server_header=False,
        access_log=False,
        log_config=None,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_GRACE,
        **options,
    )


class Server(uvicorn.Server):
    """Ends what waits, such as long polls, before it waits for requests under way. It looks once a second at most."""

    def __init__(self, config: Config, dismiss: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._dismiss = dismiss
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Stop serving; from a signal handler or the event loop."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.stop()

    async def main_loop(self) -> None:
        """Serve until a stop. The tick dates the answers; uvicorn has ten in a second, to notice its end."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), _TICK)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._dismiss()
        await super().shutdown(sockets)

    async def serves(self) -> None:
        """Return when it answers."""
        while not self.started:
            await asyncio.sleep(0.01)


class TimeLimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with time limits for the head and the body of a request; uvicorn has none.

    A request that comes in one piece needs no timer. Its application finds the transport in `scope["state"]`.
    """

    _come = _CONNECTED
    _timed = _WHOLE  # what had come when the timer was set
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(_Joined(transport, self.loop))  # type: ignore[arg-type]  # it has what is used of one
        self._set_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._come != self._timed:
            self._set_timer()

    def on_message_begin(self) -> None:
        self._come = _HEAD
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._come = _BODY
        self.scope["state"]["transport"] = self.transport
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._come = _WHOLE
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _set_timer(self) -> None:
        self._stop_timer()
        self._timed = self._come
        # A WebSocket has another protocol after its handshake.
        if self._come != _WHOLE and self.transport.get_protocol() is self:
            seconds = BODY_SECONDS if self._come == _BODY else HEAD_SECONDS
            self._timer = self.loop.call_later(seconds, self._give_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if self.flow.read_paused:  # by us: what is behind in this connection waits for the answer before it
            self._set_timer()
            return
        answered = self.cycle is None or (self.cycle.response_complete and self._come == _HEAD)
        unanswered = self._come == _BODY and not self.cycle.response_started
        if self._come != _CONNECTED and not self.pipeline and (answered or unanswered):
            self.transport.write(_TOO_SLOW)
        self.transport.close()


class _Joined:
    """A transport that writes together what was written in one turn of the event loop: the head and the body."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self.is_closing = transport.is_closing  # asked for several times in each request

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._parts:
            parts, self._parts = self._parts, []
            self._transport.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
