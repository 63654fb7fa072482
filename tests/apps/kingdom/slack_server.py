"""A server that speaks the parts of Slack that an envoy uses: the Web API, and Socket Mode over a WebSocket."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import struct
import threading
import time
from itertools import count
from typing import Any
from urllib.parse import parse_qs

from tests.apps.kingdom.servers import Answer, Asked, Server

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Refusal(Exception):
    """The error that Slack names in its answer."""


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
    """Channels with what was posted and the reactions that stand.

    As in Slack, a channel has an id and a name. A message may be posted to either, or to a person; every answer and
    every event carries the id, and all other methods take only the id. An app reads and reacts where it is a member.
    """

    def __init__(self) -> None:
        self.channels = {"dev-eddy": "C0EDDY", "general": "C0GENERAL"}  # by name; ids alone exist too
        self.missing: set[str] = set()  # ids of channels that do not exist
        self.not_joined: set[str] = set()
        self.scopes = "chat:write,channels:read,channels:history,reactions:write,app_mentions:read,im:history"
        self.posts: list[dict[str, Any]] = []
        self.reactions: set[tuple[str, str, str]] = set()
        self.sockets = Sockets()
        self._marks = count(1)
        self._envelopes = count(1)
        super().__init__()

    @property
    def api(self) -> str:
        return f"{self.address}/api/"

    def reply(self, asked: Asked) -> Answer:
        method = asked.path.partition("?")[0].rpartition("/")[2]
        said: dict[str, Any] = {name: values[0] for name, values in parse_qs(asked.body.decode()).items()}
        said |= {name: values[0] for name, values in parse_qs(asked.path.partition("?")[2]).items()}
        if "json" in asked.headers.get("Content-Type", ""):
            said = json.loads(asked.body or b"{}")
        handler = {
            "apps.connections.open": self._connect,
            "auth.test": self._whoami,
            "chat.postMessage": self._post,
            "chat.update": self._update,
            "chat.delete": self._delete,
            "conversations.info": self._info,
            "conversations.list": self._list,
            "conversations.replies": self._replies,
            "reactions.add": self._react,
            "reactions.remove": self._unreact,
        }.get(method)
        if handler is None:
            return Answer(404, {"ok": False, "error": "unknown_method"})
        token = asked.headers.get("Authorization", "").removeprefix("Bearer ")
        if not token.startswith("xapp-" if method == "apps.connections.open" else "xoxb-"):
            return Answer(200, {"ok": False, "error": "not_allowed_token_type" if token else "not_authed"})
        if token.endswith("-revoked"):
            return Answer(200, {"ok": False, "error": "invalid_auth"})
        try:
            answer = {"ok": True, **handler(said)}
        except Refusal as exc:
            answer = {"ok": False, "error": str(exc)}
        return Answer(200, answer, {"X-OAuth-Scopes": self.scopes})

    def _connect(self, said: dict[str, Any]) -> dict[str, Any]:
        return {"url": self.sockets.url}

    def _whoami(self, said: dict[str, Any]) -> dict[str, Any]:
        return {"user": "kingdom", "user_id": "U0BOT", "team": "town", "bot_id": "B0BOT", "url": "https://town/"}

    def _channel(self, text: str, *, by_name: bool = False) -> str:
        """Return the id of a channel; only postMessage may name it otherwise."""
        if by_name and text.startswith("U"):
            return f"D{text[1:]}"
        id = self.channels.get(text.removeprefix("#"), text) if by_name else text
        if id in self.missing or not re.fullmatch("[CDG][A-Z0-9]+", id):
            raise Refusal("channel_not_found")
        return id

    def _joined(self, text: str, *, by_name: bool = False) -> str:
        if (id := self._channel(text, by_name=by_name)) in self.not_joined:
            raise Refusal("not_in_channel")
        return id

    def _post(self, said: dict[str, Any]) -> dict[str, Any]:
        if not said.get("channel"):
            raise Refusal("channel_not_found")
        channel = self._joined(said["channel"], by_name=True)
        ts = f"{int(time.time())}.{next(self._marks):06}"
        post = {**said, "channel": channel, "ts": ts}
        self.posts.append(post)
        return {"channel": channel, "ts": ts, "message": self._message(post)}

    @staticmethod
    def _message(post: dict[str, Any]) -> dict[str, Any]:
        names = ("text", "ts", "thread_ts", "blocks")
        own = {str(name): post[name] for name in names if name in post}
        return {"type": "message", "user": "U0BOT", "bot_id": "B0BOT", **own}

    def find(self, channel: str, ts: str) -> dict[str, Any]:
        for post in self.posts:
            if (post["channel"], post["ts"]) == (channel, ts):
                return post
        raise Refusal("message_not_found")

    def _update(self, said: dict[str, Any]) -> dict[str, Any]:
        post = self.find(self._channel(said["channel"]), said["ts"])
        post |= {name: said[name] for name in ("text", "blocks") if name in said}
        return {"channel": post["channel"], "ts": post["ts"], "text": post.get("text", "")}

    def _delete(self, said: dict[str, Any]) -> dict[str, Any]:
        self.posts.remove(self.find(self._channel(said["channel"]), said["ts"]))
        return {"channel": said["channel"], "ts": said["ts"]}

    def _info(self, said: dict[str, Any]) -> dict[str, Any]:
        id = self._channel(said["channel"])
        names = [name for name, each in self.channels.items() if each == id]
        return {"channel": {"id": id, "name": (names or [id.lower()])[0], "is_member": id not in self.not_joined}}

    def _list(self, said: dict[str, Any]) -> dict[str, Any]:
        found = [{"id": id, "name": name, "is_member": id not in self.not_joined} for name, id in self.channels.items()]
        return {"channels": found, "response_metadata": {"next_cursor": ""}}

    def _replies(self, said: dict[str, Any]) -> dict[str, Any]:
        if "channels:history" not in self.scopes:
            raise Refusal("missing_scope")
        id, ts = self._joined(said["channel"]), said["ts"]
        found = [each for each in self.posts if each["channel"] == id and ts in (each["ts"], each.get("thread_ts"))]
        if not found:
            raise Refusal("thread_not_found")
        return {"messages": [self._message(each) for each in found], "has_more": False}

    def _react(self, said: dict[str, Any]) -> dict[str, Any]:
        self.reactions.add((self._channel(said["channel"]), said["timestamp"], said["name"]))
        return {}

    def _unreact(self, said: dict[str, Any]) -> dict[str, Any]:
        key = (self._channel(said["channel"]), said["timestamp"], said["name"])
        if key not in self.reactions:
            raise Refusal("no_reaction")
        self.reactions.discard(key)
        return {}

    def say(self, text: str, ts: str, **fields: Any) -> str:
        """Let a person say something; return the envelope. `channel` is an id, as in every event of Slack."""
        event = {"type": "message", "user": "U1", "channel": "C0MAIN", "text": text, "ts": ts, **fields}
        payload = {"type": "event_callback", "team_id": "T1", "event": event, "event_id": f"Ev{ts}", "event_time": 1}
        return self._send("events_api", {"payload": payload, "retry_attempt": 0, "retry_reason": ""})

    def press(self, post: dict[str, Any], value: str, user: str = "U1", name: str = "ann") -> str:
        """Let a person press the button of a posted message that has this value; return the envelope."""
        payload = interaction(post, value, user=user, name=name)
        return self._send("interactive", {"payload": payload, "accepts_response_payload": False})

    def _send(self, type: str, fields: dict[str, Any]) -> str:
        envelope = f"env-{next(self._envelopes)}"
        self.sockets.send({"envelope_id": envelope, "type": type, **fields})
        return envelope

    def close(self) -> None:
        super().close()
        self.sockets.close()


def interaction(post: dict[str, Any], value: str, *, user: str = "U1", name: str = "ann") -> dict[str, Any]:
    """Return the payload that Slack sends when the button with this value is pressed."""
    blocks = post["blocks"] if isinstance(post["blocks"], list) else json.loads(post["blocks"])
    [(block, button)] = [
        (block, each) for block in blocks for each in block.get("elements", []) if each.get("value") == value
    ]
    container = {"type": "message", "message_ts": post["ts"], "channel_id": post["channel"], "is_ephemeral": False}
    if "thread_ts" in post:
        container["thread_ts"] = post["thread_ts"]
    action = {name: button[name] for name in ("action_id", "text", "value", "type")}
    return {
        "type": "block_actions",
        "user": {"id": user, "username": name, "name": name, "team_id": "T1"},
        "api_app_id": "A1",
        "team": {"id": "T1", "domain": "town"},
        "channel": {"id": post["channel"], "name": "dev-eddy"},
        "container": container,
        "trigger_id": "1.2.3",
        "message": {"type": "message", "user": "U0BOT", "bot_id": "B0BOT", "ts": post["ts"], "text": post["text"]},
        "state": {"values": {}},
        "response_url": "https://hooks.slack.com/actions/T1/1/x",
        "actions": [{**action, "block_id": block.get("block_id", "b1"), "action_ts": "1700000600.000100"}],
    }
