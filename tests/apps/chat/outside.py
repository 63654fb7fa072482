"""The JavaScript client of Socket.IO from npm, in a process of Node.js, told what to do by lines of JSON.

It is installed into `.cache/` once, as `js/package-lock.json` has it.
"""

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.services import bringing
from tests.services.bringing import TIMEOUT, brought

JS = Path(__file__).parent / "js"
MANIFESTS = ("package.json", "package-lock.json", ".npmrc")


class Sent(NamedTuple):
    """A message that a gateway accepted, and the how manyth of its sender it is."""

    name: str
    room: str
    client_msg_id: str
    number: int


class Seen(NamedTuple):
    """A message as a member got it."""

    sequence: int
    client_msg_id: str
    content: str


def missing() -> str:
    """Say what keeps the client from being run here, after trying to bring it; '' if nothing does."""
    return bringing.missing(("node", "npm"), installed, "socket.io-client, which npm")


def installed() -> Path:
    """Return the folder the client is installed in, brought if need be."""
    return brought("socket.io-client", JS / "package-lock.json", _bring)


def _bring(folder: Path) -> None:
    for name in MANIFESTS:
        shutil.copy(JS / name, folder / name)
    command = ["npm", "ci", "--ignore-scripts"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=TIMEOUT)


class Members:
    """Members of rooms in one process of Node.js."""

    def __init__(self, gateways: Sequence[str], tokens: dict[str, str], rooms: Sequence[str], log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                ["node", str(JS / "members.js"), str(installed())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._log = log
        self._buffer = b""
        members = [{"name": name, "token": token} for name, token in tokens.items()]
        self._order({"gateways": list(gateways), "members": members, "rooms": list(rooms)})
        self._answer("ready", 60)

    def send(self, count: int, size: int, progress: Callable[[int], None], seconds: float) -> list[Sent]:
        """Have each member send so many messages of so many letters; return all when the last was accepted."""
        self._order({"do": "send", "count": count, "size": size})
        return [Sent(*found) for found in self._answer("sent", seconds, progress)]

    def seen(self) -> dict[str, dict[str, list[Seen]]]:
        """Return what each member saw in each room, in the order it came."""
        self._order({"do": "report"})
        found = self._answer("seen", 60)
        return {
            name: {room: [Seen(*message) for message in messages] for room, messages in rooms.items()}
            for name, rooms in found.items()
        }

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()

    def _order(self, document: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(document).encode() + b"\n")
        self._process.stdin.flush()

    def _answer(self, name: str, seconds: float, progress: Callable[[int], None] | None = None) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            document = self._line(end)
            if name in document:
                return document[name]
            if progress is not None and "accepted" in document:
                progress(document["accepted"])
        raise AssertionError(f"no {name!r} within {seconds} seconds: {self._log.read_text()[-2000:]}")

    def _line(self, end: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        while b"\n" not in self._buffer:
            if not select.select([self._process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                return {}
            data = os.read(self._process.stdout.fileno(), 1 << 20)
            assert data, f"it ended: {self._log.read_text()[-2000:]}"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found
