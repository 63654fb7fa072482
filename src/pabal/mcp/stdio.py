"""The stdio transport: one client, on stdin and stdout of this process.

stdout belongs to the protocol: while the server runs, everything else that is printed goes to stderr. The process ends
when the client closes stdin, or on SIGTERM or SIGINT. In each case it first gives back what its agent holds.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

import anyio
import anyio.to_thread
from mcp.server.stdio import stdio_server

from pabal.mcp.desk import Desk
from pabal.mcp.server import AgentServer

_PIPE_CLOSED = 141


def serve_stdio(desk: Desk) -> None:
    """Serve the client of this process until it closes stdin. On a signal the process ends here."""
    anyio.run(_serve, desk)


async def _serve(desk: Desk) -> None:
    server = AgentServer(desk).server
    async with stdio_server() as (reader, writer):
        number = 0

        async def end_on_signal() -> None:
            nonlocal number
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                number = await anext(signals)
                group.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(end_on_signal)
                try:
                    await server.run(reader, writer, server.create_initialization_options())
                finally:
                    with anyio.CancelScope(shield=True):
                        await anyio.to_thread.run_sync(desk.close)
                group.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():
            if not number:  # only the transport cancels from outside: nobody reads the answers any more
                _leave(_PIPE_CLOSED)
        if number:
            _leave(128 + number)


def _leave(status: int) -> NoReturn:
    """End the process, although a thread may wait for stdin: nothing can end that."""
    sys.stderr.flush()
    os._exit(status)
