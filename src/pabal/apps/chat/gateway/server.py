"""The Socket.IO server: python-socketio with JSON by msgspec. It disconnects clients that send invalid packets."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import engineio
import msgspec
import socketio

from pabal.apps.chat.gateway.limits import Limits
from pabal.runtime.origins import Origins

PING_SECONDS, PONG_SECONDS = 25, 20
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # in JSON, where UTF-8 cannot hold one
# Invalid packets of a client must not fill the log; the client is disconnected.
_QUIET = logging.getLogger("pabal.chat.wire")
_QUIET.setLevel(logging.CRITICAL + 1)


class _Json:
    """The two functions of a JSON module that python-socketio needs."""

    _encode = msgspec.json.Encoder().encode
    _decode = msgspec.json.Decoder().decode

    @classmethod
    def dumps(cls, value: object, **options: object) -> str:
        return cls._encode(value).decode()

    @classmethod
    def loads(cls, text: str | bytes, **options: object) -> Any:
        try:
            return cls._decode(text)
        except (msgspec.DecodeError, UnicodeError) as exc:
            if isinstance(text, str) and _SURROGATE.search(text):
                return json.loads(text)  # half a character: for the handler to refuse, not for the connection
            raise ValueError(str(exc)) from exc


class _Wire(engineio.AsyncServer):  # type: ignore[misc]  # the package carries no types
    """Closes a client that posts an unreadable packet at once, without waiting for its next poll."""

    async def disconnect(self, sid: str | None = None) -> None:
        for socket in [self.sockets[known] for known in list(self.sockets) if sid in (None, known)]:
            await socket.close(wait=False, reason=self.reason.SERVER_DISCONNECT)


class _Rooms(socketio.AsyncManager):  # type: ignore[misc]  # the package carries no types
    """Emits to a room without a task for each socket: the packet is encoded once and put into the queues."""

    async def emit(
        self,
        event: str,
        data: object,
        namespace: str,
        room: str | list[str] | None = None,
        skip_sid: str | list[str] | None = None,
        callback: object = None,
        to: str | list[str] | None = None,
        **more: object,
    ) -> None:
        made = self.server.packet_class(socketio.packet.EVENT, namespace=namespace, data=[event, data])
        packet = engineio.packet.Packet(engineio.packet.MESSAGE, made.encode())
        skipped = {skip_sid} if isinstance(skip_sid, str) else set(skip_sid or ())
        sockets = self.server.eio.sockets
        for sid, connection in self.get_participants(namespace, to or room):
            socket = sockets.get(connection)
            if sid not in skipped and socket is not None and not socket.closed:
                socket.queue.put_nowait(packet)


class Server(socketio.AsyncServer):  # type: ignore[misc]  # the package carries no types
    """Disconnects clients that send unreadable packets, or bytes, which no event takes."""

    def __init__(self, limits: Limits, origins: Origins) -> None:
        super().__init__(
            client_manager=_Rooms(),
            async_mode="asgi",
            json=_Json,
            logger=_QUIET,
            engineio_logger=_QUIET,
            max_http_buffer_size=limits.frame,
            ping_interval=PING_SECONDS,
            ping_timeout=PONG_SECONDS,
            cors_allowed_origins=lambda origin, request: origins.origin_allowed(origin, request.get("HTTP_HOST", "")),
            cors_credentials=False,
            http_compression=False,
        )

    def _engineio_server_class(self) -> type[engineio.AsyncServer]:
        return _Wire

    async def _handle_eio_message(self, eio_sid: str, data: object) -> None:
        try:
            if not isinstance(data, str) or data[:1] in ("5", "6"):  # a packet with bytes in it
                raise ValueError("bytes")
            await super()._handle_eio_message(eio_sid, data)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            await self.cut_off(eio_sid)

    async def _handle_event(self, eio_sid: str, namespace: str | None, id: int | None, data: list[object]) -> None:
        # The library would run its own connect and disconnect handlers for a client that emits these names.
        if not isinstance(data[0], str) or data[0] in self.reserved_events:
            raise ValueError("no event of a client")
        await super()._handle_event(eio_sid, namespace, id, data)

    async def cut_off(self, eio_sid: str, *, at_once: bool = False) -> None:
        """Close a connection after its queue was sent, or at once."""
        socket = self.eio.sockets.get(eio_sid)
        if socket is None:
            return
        while at_once and not socket.queue.empty():
            socket.queue.get_nowait()
        await socket.close(wait=False)
        socket.queue.put_nowait(None)  # ends the writer task, which closes the connection

    def count_in(self, room: str) -> int:
        """Return how many sockets of this gateway are in a room."""
        return len(self.manager.rooms.get("/", {}).get(room, ()))

    def behind(self, sid: str) -> int:
        """Return how many packets wait in a socket's queue."""
        socket = self.eio.sockets.get(self.connection_of(sid))
        return 0 if socket is None else int(socket.queue.qsize())

    def connection_of(self, sid: str) -> str:
        """Return the connection of a socket; '' if it is gone."""
        return self.manager.eio_sid_from_sid(sid, "/") or ""

    def unauthenticated(self) -> list[str]:
        """Return the connections that are not logged in."""
        return [eio for eio in self.eio.sockets if self.manager.sid_from_eio_sid(eio, "/") is None]


def room_name(room_id: str) -> str:
    """Return the Socket.IO room of the sockets that joined a room."""
    return f"room:{room_id}"


def user_name(user_id: str) -> str:
    """Return the Socket.IO room of a user's sockets."""
    return f"user:{user_id}"
