"""How long a client may take to say what it wants. uvicorn waits for ever, and every wait holds a connection."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
BODY_SECONDS = 60.0  # the largest image over a slow line

_REFUSAL = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class PatientProtocol(H11Protocol):
    """HTTP as uvicorn speaks it, with an end to waiting for the head of a request, and then for its body."""

    _awaited: Any = None  # the part of a request that the timer is about, as a state of h11
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()

    def _wait(self) -> None:
        """Begin to wait for what comes next, unless that has been awaited before."""
        # A WebSocket has a protocol of its own from its request on.
        state = self.conn.their_state if self.transport.get_protocol() is self else None
        if state is self._awaited:
            return
        self._stop_waiting()
        self._awaited = state
        seconds = HEAD_SECONDS if state is h11.IDLE else BODY_SECONDS if state is h11.SEND_BODY else None
        if seconds is not None:
            self._timer = self.loop.call_later(seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        begun, _ = self.conn.trailing_data
        answered = self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE)
        if (begun or self._awaited is h11.SEND_BODY) and not answered:
            self.transport.write(_REFUSAL)
        self.transport.close()
