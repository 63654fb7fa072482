"""The MCP server: the tools of a desk, in both eras of the protocol.

The transport comes from outside: `pabal.mcp.stdio` serves one client, `pabal.mcp.http` those of a gateway. The maker of
the desk closes it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from pabal import jsontext
from pabal.errors import (
    ExtraMissing,
    InvalidBody,
    InvalidConfig,
    InvalidInput,
    InvalidName,
    InvalidReceipt,
    LeaseLost,
    MessageUnknown,
    NameTaken,
    PabalError,
    QueueFull,
    QueueUnknown,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreMissing,
    TooLarge,
    Uncertain,
)
from pabal.mcp.desk import Desk
from pabal.mcp.leases import Call
from pabal.mcp.tools import INSTRUCTIONS, Arguments, Document, Tool
from pabal.names import suggestion

log = logging.getLogger("pabal.mcp")

T = TypeVar("T")

_THREADS = 64  # calls at the same time that may wait, and others; each needs one
_ANSWERED = 256  # answered calls that a late cancellation still finds
_FRESH = CacheHint(ttl_ms=3_600_000, scope="public")  # the tools change with the version of this package only

# What an agent should do after an error; the first match counts.
_NEXT: tuple[tuple[type[PabalError], str], ...] = (
    (LeaseLost, "you no longer hold this message: do not repeat the work, call receive for the next one"),
    (InvalidReceipt, "give the receipt exactly as receive returned it"),
    (TooLarge, "write the content to a file and send its path"),
    (InvalidConfig, "ask a person to correct the configuration"),
    (NameTaken, "ack without a reply"),
    (QueueUnknown, "call status to see the names"),
    (MessageUnknown, "call look without id to see what is there"),
    (InvalidName, "call status to see the names"),
    (InvalidBody, "correct the body and call again"),
    (InvalidInput, "correct the arguments and call again"),
    (QueueFull, "wait a minute and call again"),
    (StoreMissing, "a send makes a missing store; else ask a person to correct the URL or the workspace"),
    (StoreFull, "the disk is full: ask a person; ack and fail still work"),
    (Uncertain, "call again with the same dedup_key: nothing is stored twice"),
    (StoreBusy, "call again in some seconds"),
    (ExtraMissing, "ask a person to install it"),
    (StoreError, "call again once; if it fails again, ask a person"),
    (PabalError, "ask a person"),
)


class AgentServer:
    """The server of one agent, for any number of connections, with those tools of its desk that it may use.

    Each tool runs in a thread, because the library waits in threads.
    """

    def __init__(self, desk: Desk, names: Collection[str] | None = None) -> None:
        self._desk = desk
        tools = [tool for tool in desk.tools if names is None or tool.name in names]
        self._tools: dict[str, Tool] = {tool.name: tool for tool in tools}
        self._listed = types.ListToolsResult.model_validate({"tools": [tool.document() for tool in tools]})
        self._running: set[Call] = set()
        self._ending = False
        self._limiters: dict[bool, anyio.CapacityLimiter] = {}  # apart for tools that wait, which hold up no others
        self._answered: OrderedDict[tuple[str, types.RequestId], Call] = OrderedDict()
        self.server: Server[Any] = Server(
            "pabal",
            version=version("pabal"),
            title="Pabal",
            description="Durable messages between agents, programs and people",
            instructions=INSTRUCTIONS,
            cache_hints={"tools/list": _FRESH},
            on_list_tools=self._list,
            on_call_tool=self._call,
        )
        self.server.add_notification_handler(
            "notifications/cancelled", types.CancelledNotificationParams, self._cancelled
        )

    def end_waits(self) -> None:
        """Let every call that waits, now or later, answer at once with what it has: the server is being stopped."""
        self._ending = True
        for call in list(self._running):
            call.hurry()

    async def _list(
        self, context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return self._listed

    async def _call(
        self, context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool = self._tools.get(params.name)
        if tool is None:
            hint = suggestion(params.name, list(self._tools))
            raise MCPError(types.INVALID_PARAMS, f"no tool {params.name!r:.80}; {hint}")
        call = Call()
        try:
            arguments = tool.read(params.arguments or {})
        except InvalidInput as exc:
            return _failed(exc)
        self._running.add(call)
        if self._ending:
            call.hurry()
        try:
            found = await self._run(tool.name, arguments, call)
        finally:
            self._running.discard(call)
        if isinstance(found, PabalError):
            return _failed(found)
        if (stream := _stream_of(context)) is not None and context.request_id is not None:
            # A cancellation may cross the answer on its way.
            self._answered[stream, context.request_id] = call
            while len(self._answered) > _ANSWERED:
                self._answered.popitem(last=False)
        text = types.TextContent(type="text", text=jsontext.encode(found).decode())
        return types.CallToolResult(content=[text], structured_content=found)

    async def _run(self, name: str, arguments: Arguments, call: Call) -> Document | PabalError:
        """Run a tool in a thread. If this is cancelled, the tool stops waiting and gives back what it took."""
        answered = False

        async def watch() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                if not answered:
                    call.stop()

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(watch)
                found = await self._in_thread(partial(self._serve, name, arguments, call), hasattr(arguments, "wait"))
                answered = True
                group.cancel_scope.cancel()
            return found
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self._in_thread(call.give_back)
            raise

    def _serve(self, name: str, arguments: Arguments, call: Call) -> Document | PabalError:
        try:
            return self._desk.serve(name, arguments, call)
        except PabalError as exc:
            call.give_back()  # the agent does not get what was taken
            return exc
        except Exception as exc:
            call.give_back()
            log.exception("%(tool)s failed", {"tool": name})
            return PabalError(f"{name} failed unexpectedly: {type(exc).__name__}; the log of the server says more")

    async def _in_thread(self, function: Callable[[], T], waits: bool = False) -> T:
        if waits not in self._limiters:
            self._limiters[waits] = anyio.CapacityLimiter(_THREADS)
        return await anyio.to_thread.run_sync(function, limiter=self._limiters[waits])

    async def _cancelled(self, context: ServerRequestContext[Any], params: types.CancelledNotificationParams) -> None:
        """Give back what an answered call took: the client does not look at the answer of a call that it cancelled."""
        stream = _stream_of(context)
        if stream is None or params.request_id is None:
            return
        call = self._answered.pop((stream, params.request_id), None)
        if call is not None:
            await self._in_thread(call.give_back)


def _stream_of(context: ServerRequestContext[Any]) -> str | None:
    """Return where the ids of requests are unique: stdio, or a session over HTTP; None if each request is alone."""
    return "" if context.request is None else context.request.headers.get("mcp-session-id")


def _failed(exc: PabalError) -> types.CallToolResult:
    """Return an error as the model sees it: what was found, and what to do next."""
    advice = next(text for kind, text in _NEXT if isinstance(exc, kind))
    text = f"{exc.code}: {str(exc).rstrip('.')}. Next: {advice}."
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)
