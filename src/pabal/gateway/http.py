"""Requests over HTTP: their bodies, within limits, and clients that have gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pabal.errors import TooLarge

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

BODY_SECONDS = 30.0  # in which the body of a request must have come


class ClientGone(Exception):
    """The client closed its connection before it had its answer."""


async def read_body(receive: Receive, most: int) -> bytes:
    """Read the body of a request; refuse one that is too large (TooLarge) or comes too slowly (TimeoutError)."""
    parts, size = [], 0
    async with asyncio.timeout(BODY_SECONDS):
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


async def client_gone(receive: Receive) -> None:
    """Return when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
