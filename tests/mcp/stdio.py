"""Real processes of `pabal mcp` for the SDK's own client."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import anyio
from mcp_types import CallToolResult, TextContent

from mcp import Client, StdioServerParameters
from tests.cli.command import COMMAND

ERAS = ("legacy", "2026-07-28")
T = TypeVar("T")


def server(*arguments: str, folder: Path, env: Mapping[str, str] | None = None) -> StdioServerParameters:
    """Return how a client starts the server: in a folder of the client, with nearly no environment."""
    return StdioServerParameters(
        command=COMMAND[0], args=[*COMMAND[1:], "mcp", *arguments], cwd=folder, env=dict(env or {})
    )


def with_client(
    parameters: StdioServerParameters, era: str, work: Callable[[Client], Coroutine[Any, Any, T]], seconds: float = 90
) -> T:
    """Run `work` with the SDK's client; return what it returns."""

    async def main() -> T:
        with anyio.fail_after(seconds):
            async with Client(parameters, mode=era) as client:
                return await work(client)

    return anyio.run(main)


async def call(client: Client, name: str, **arguments: Any) -> Any:
    """Call a tool that must succeed; return its structured result, which the text repeats."""
    result = await client.call_tool(name, arguments)
    text = text_of(result)
    assert not result.is_error, text
    assert json.loads(text) == result.structured_content
    return result.structured_content


def text_of(result: CallToolResult) -> str:
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text
