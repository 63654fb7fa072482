"""A real process of `pabal mcp` whose client is the test: for what no client would send, and for small programs."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.cli.command import COMMAND

_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}


class Lines:
    """A server whose client is the test: each message is a line of JSON."""

    def __init__(self, *arguments: str, folder: Path, modern: bool = True) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "mcp", *arguments],
            cwd=folder,
            env={"PATH": os.environ["PATH"]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._modern = modern
        self._id = 0
        self._buffer = b""
        self._answers: dict[int, Any] = {}
        if not modern:
            about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
            self.answer(self.request("initialize", about))
            self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def request(self, method: str, params: dict[str, Any]) -> int:
        """Send a request; return its id."""
        self._id += 1
        meta = {"_meta": _META} if self._modern else {}
        self.write({"jsonrpc": "2.0", "id": self._id, "method": method, "params": {**params, **meta}})
        return self._id

    def call(self, name: str, **arguments: Any) -> int:
        return self.request("tools/call", {"name": name, "arguments": arguments})

    def cancel(self, id: int) -> None:
        self.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})

    def write(self, message: object) -> None:
        self.write_raw(json.dumps(message).encode() + b"\n")

    def write_raw(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def answer(self, id: int, seconds: float = 60.0) -> Any:
        """Return the answer to a request; every line on the way must be JSON-RPC."""
        end = time.monotonic() + seconds
        assert self.process.stdout is not None
        while time.monotonic() < end:
            if id in self._answers:
                return self._answers.pop(id)
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                message = json.loads(line)
                assert message["jsonrpc"] == "2.0"
                if "id" in message:
                    self._answers[message["id"]] = message.get("result") or message["error"]
            elif select.select([self.process.stdout], [], [], 0.2)[0]:
                data = os.read(self.process.stdout.fileno(), 1 << 16)
                assert data, "the server ended"
                self._buffer += data
        raise AssertionError(f"no answer to {id}")

    def result(self, name: str, **arguments: Any) -> Any:
        """Call a tool that must succeed."""
        found = self.answer(self.call(name, **arguments))
        assert not found.get("isError"), found
        return found["structuredContent"]

    def end(self) -> tuple[int, bytes]:
        """Close stdin; return the exit status and what was printed on stderr."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.communicate()
