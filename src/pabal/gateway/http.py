"""Requests over HTTP: their bodies, within limits, and clients that have gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pabal.errors import TooLarge

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed its connection before it had its answer."""


class Stopping(Exception):
    """The gateway is being stopped, and a call that waits was ended."""


async def read_body(receive: Receive, most: int) -> bytes:
    """Read the body of a request; refuse one that is too large. The server ends one that comes too slowly."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise TooLarge(f"a request has at most {most} bytes")
        if not message.get("more_body", False):
            return b"".join(parts)


class Waits:
    """Calls that wait, such as long polls: each ends with its client, and all of them with the gateway."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[Any]] = set()

    async def while_there(self, receive: Receive, act: Awaitable[T]) -> T:
        """Return the result of a call; raise ClientGone if its client goes, or Stopping if the gateway is stopped."""
        acting = asyncio.ensure_future(act)
        going = asyncio.ensure_future(client_gone(receive))
        self._tasks.add(acting)
        try:
            await asyncio.wait([acting, going], return_when=asyncio.FIRST_COMPLETED)
            if not acting.done():
                raise ClientGone
            if acting.cancelled():
                raise Stopping
            return acting.result()
        finally:
            self._tasks.discard(acting)
            acting.cancel()
            going.cancel()

    def end(self) -> None:
        """End them all: what they would have taken stays in its queue, and clients ask again."""
        for task in self._tasks:
            task.cancel()


async def client_gone(receive: Receive) -> None:
    """Return when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
