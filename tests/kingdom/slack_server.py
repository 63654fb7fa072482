"""A server that speaks the parts of Slack that an envoy uses: the Web API, and Socket Mode over a WebSocket."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import struct
import threading
import time
from itertools import count
from typing import Any
from urllib.parse import parse_qs

from tests.kingdom.servers import Answer, Asked, Server

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Sockets:
    """Takes WebSocket connections, sends envelopes and collects what is acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: list[str] = []
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self._listener.getsockname()[1]}/link?ticket=1"

    @property
    def connected(self) -> bool:
        return bool(self._open)

    def send(self, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        head = bytes([0x81, len(data)]) if len(data) < 126 else bytes([0x81, 126]) + struct.pack(">H", len(data))
        self._open[-1].sendall(head + data)

    def close(self) -> None:
        self._listener.close()
        for connection in self._open:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(4096)
            lines = dict(line.split(b": ", 1) for line in head.split(b"\r\n") if b": " in line)
            accept = base64.b64encode(hashlib.sha1(lines[b"Sec-WebSocket-Key"].strip() + _MAGIC).digest())
            connection.sendall(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
            )
            self._open.append(connection)
            self._read(connection)
        except OSError:
            pass

    def _read(self, connection: socket.socket) -> None:
        def exactly(size: int) -> bytes:
            data = b""
            while len(data) < size:
                part = connection.recv(size - len(data))
                if not part:
                    raise OSError("closed")
                data += part
            return data

        while True:
            first, second = exactly(2)
            size = second & 0x7F
            if size == 126:
                [size] = struct.unpack(">H", exactly(2))
            mask = exactly(4) if second & 0x80 else b"\0\0\0\0"
            data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(exactly(size)))
            if first & 0x0F == 0x9:
                connection.sendall(bytes([0x8A, len(data)]) + data)
            elif first & 0x0F == 0x1:
                self.acknowledged.append(json.loads(data)["envelope_id"])


class SlackServer(Server):
    """Channels with what was posted and the reactions that stand."""

    def __init__(self) -> None:
        self.posts: list[dict[str, str]] = []
        self.reactions: set[tuple[str, str, str]] = set()
        self.sockets = Sockets()
        self._marks = count(1)
        self._envelopes = count(1)
        super().__init__()

    @property
    def api(self) -> str:
        return f"{self.address}/api/"

    def reply(self, asked: Asked) -> Answer:
        method = asked.path.rpartition("/")[2]
        said = {name: values[0] for name, values in parse_qs(asked.body.decode()).items()}
        if "json" in asked.headers.get("Content-Type", ""):
            said = json.loads(asked.body or b"{}")
        key = (said.get("channel", ""), said.get("timestamp", ""), said.get("name", ""))
        if method == "apps.connections.open":
            return Answer(200, {"ok": True, "url": self.sockets.url})
        if method == "chat.postMessage":
            ts = f"{int(time.time())}.{next(self._marks):06}"
            self.posts.append({**said, "ts": ts})
            return Answer(200, {"ok": True, "ts": ts, "channel": said["channel"]})
        if method == "reactions.add":
            self.reactions.add(key)
            return Answer(200, {"ok": True})
        if method == "reactions.remove":
            found = key in self.reactions
            self.reactions.discard(key)
            return Answer(200, {"ok": True} if found else {"ok": False, "error": "no_reaction"})
        return Answer(404, {"ok": False, "error": "unknown_method"})

    def say(self, text: str, ts: str, **fields: Any) -> str:
        """Let a person say something; return the envelope."""
        envelope = f"env-{next(self._envelopes)}"
        event = {"type": "message", "user": "U1", "channel": "C0MAIN", "text": text, "ts": ts, **fields}
        self.sockets.send({"envelope_id": envelope, "type": "events_api", "payload": {"event": event}})
        return envelope

    def close(self) -> None:
        super().close()
        self.sockets.close()
