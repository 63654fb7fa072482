"""Calls the tools of a desk as the server does, without a transport."""

from __future__ import annotations

from typing import Any

from pabal.mcp.desk import Desk
from pabal.mcp.leases import Call


class Agent:
    """An agent at its desk: `agent("send", to="jobs", body=1)`."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._tools = {tool.name: tool for tool in desk.tools}

    def __call__(self, name: str, /, **arguments: Any) -> Any:
        return self.serve(Call(), name, arguments)

    def serve(self, call: Call, name: str, arguments: dict[str, Any]) -> Any:
        """Run a tool in a call that the test may cancel."""
        tool = self._tools[name]
        found = self.desk.serve(name, tool.read(arguments), call)
        assert found.keys() >= tool.result.keys(), f"{name} lacks what its schema promises"
        return found
