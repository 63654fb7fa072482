"""Redis Streams with `appendfsync always`: a server of its own for each place, flushed before each answer.

    publish      XADD
    lease        XREADGROUP of a group with one consumer
    ack          XACK and XDEL in one pipeline, so that what is done does not stay

A hundred per call: a pipeline of XADD; one XREADGROUP of a hundred; one XACK and one XDEL of a hundred ids.
"""

import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from subject import BODY

_STREAM, _GROUP, _CONSUMER, _FIELD = "bench", "workers", "one", "body"


class RedisStreams:
    """Starts the server, or joins the one that another process has started at this place."""

    def __init__(self, place: Path) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        port = place / "port"
        if not port.exists():
            self._server = _start(place, port)
        self._redis: Any = redis.Redis(port=int(port.read_text()))  # its types leave open whether calls are awaited
        if self._server:
            self._redis.xgroup_create(_STREAM, _GROUP, id="0", mkstream=True)

    def publish(self) -> None:
        self.send(BODY)

    def publish_many(self, count: int) -> None:
        pipe = self._redis.pipeline(transaction=True)
        for _ in range(count):
            pipe.xadd(_STREAM, {_FIELD: BODY})
        pipe.execute()

    def take(self) -> None:
        self.take_many(1)

    def take_many(self, count: int) -> None:
        found = self._lease(count)
        assert len(found) == count
        self._ack([id for id, _fields in found])

    fill = publish_many

    def send(self, body: str) -> None:
        self._redis.xadd(_STREAM, {_FIELD: body})

    def serve(self, seen: Callable[[str], bool], wait: float | None) -> None:
        block = 0 if wait is None else max(1, int(wait * 1000))
        while found := self._lease(1, block=block):
            [(id, fields)] = found
            go_on = seen(fields[_FIELD.encode()].decode())
            self._ack([id])
            if not go_on:
                return

    def close(self) -> None:
        self._redis.close()
        if self._server:
            self._server.terminate()
            self._server.wait()

    def _lease(self, count: int, **options: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        answer = self._redis.xreadgroup(_GROUP, _CONSUMER, {_STREAM: ">"}, count=count, **options)
        return [entry for _stream, entries in answer for entry in entries]

    def _ack(self, ids: list[bytes]) -> None:
        pipe = self._redis.pipeline(transaction=False)
        pipe.xack(_STREAM, _GROUP, *ids)
        pipe.xdel(_STREAM, *ids)
        pipe.execute()


def _start(place: Path, port: Path) -> subprocess.Popen[bytes]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    settings = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", "always")
    server = subprocess.Popen(
        ["redis-server", "--port", str(number), "--dir", str(place), *settings], stdout=subprocess.DEVNULL
    )
    end = time.monotonic() + 10
    while not _answers(number):
        if time.monotonic() > end or server.poll() is not None:
            server.kill()
            raise RuntimeError(f"redis-server did not start at {place}")
        time.sleep(0.01)
    port.write_text(str(number))
    return server


def _answers(port: int) -> bool:
    try:
        return bool(redis.Redis(port=port).ping())
    except redis.ConnectionError:
        return False
