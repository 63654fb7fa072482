"""Judged by others: the official conformance runner over HTTP, the official inspector over stdio, and a tokenizer."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp import Client
from pabal.mcp.tools import Tool, tokens
from tests.cli.command import COMMAND
from tests.mcp.npm import counted_by_o200k, installed, run_js
from tests.mcp.stdio import ERAS, call
from tests.mcp.test_tools import NAMES, SETS

ROOT = Path(__file__).parent.parent.parent

# Scenarios that any server can pass, whichever tools it has.
ANY_SERVER = {
    "2025-11-25": {
        "dns-rebinding-protection",
        "ping",
        "server-initialize",
        "server-session-lifecycle",
        "server-sse-multiple-streams",
        "server-sse-polling",
        "tools-list",
    },
    "2026-07-28": {
        "dns-rebinding-protection",
        "http-header-validation",
        "input-required-result-ignore-extra-params",
        "input-required-result-missing-input-response",
        "input-required-result-unsupported-methods",
        "input-required-result-validate-input",
        "sep-2164-resource-not-found",
        "server-sse-multiple-streams",
        "tasks-status-notifications",
        "tools-list",
    },
}
# Why a check cannot pass here: it calls a tool of the runner's own test server, or a method of a capability that this
# server does not have and does not announce.
NOT_OURS = re.compile(r"no tool '|Tool '\w+' not found|Method not found|Not testable")
# Checks that need such a tool too, and do not say so.
NEED_A_TOOL = {"sep-2322-multi-round-r1", "sep-2322-reject-tampered-state"}


@pytest.fixture
def http(tmp_path: Path) -> Iterator[str]:
    """The address of the server over streamable HTTP."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.mcp.http_mount", f"sqlite:{tmp_path}/store.db"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    yield f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize("revision", ANY_SERVER)
def test_the_official_conformance_runner_finds_nothing_wrong(revision: str, http: str, tmp_path: Path) -> None:
    runner = installed() / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
    done = run_js(runner, "server", "--url", http, "--requirements", revision, "-o", str(tmp_path / "found"))
    passed: set[str] = set()
    wrong: list[str] = []
    for path in (tmp_path / "found").glob("**/checks.json"):
        scenario = re.sub(r"^server-|-\d{4}-\d\d-\d\dT.*$", "", path.parent.name)
        failed = [check for check in json.loads(path.read_text()) if check["status"] == "FAILURE"]
        if not failed:
            passed.add(scenario)
        wrong += [
            f"{scenario}: {check['id']}: {check.get('errorMessage')}"
            for check in failed
            if not NOT_OURS.search(check.get("errorMessage", ""))
            and check["id"] not in NEED_A_TOOL
            and not scenario.startswith("tasks-")  # an extension, which is not announced
        ]
    assert wrong == [] and passed >= ANY_SERVER[revision], done.stdout[-5000:]


@pytest.mark.parametrize("era", ERAS)
def test_a_client_over_http_that_goes_away_while_it_waits_takes_nothing(era: str, http: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with Client(http, mode=era) as client:
            with anyio.move_on_after(1):
                await client.call_tool("receive", {"queue": "jobs", "wait": 50})
            await call(client, "send", to="jobs", body=1)
            [message] = (await call(client, "receive", queue="jobs", wait=30))["messages"]
            await call(client, "ack", receipt=message["receipt"])

    anyio.run(main)


def inspect(era: str, url: str, *arguments: str) -> Any:
    """Run the inspector's command line on a server of its own."""
    program = installed() / "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
    modern = "modern" if era != "legacy" else "legacy"
    command = [*COMMAND, "mcp", "--url", url]
    done = run_js(program, "--cli", "--protocol-era", modern, *arguments, "--", *command)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.parametrize("era", ERAS)
def test_the_official_inspector_has_no_complaint(era: str, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/store.db"
    assert [tool["name"] for tool in inspect(era, url, "--method", "tools/list", "--strict")["tools"]] == NAMES
    body = json.dumps({"to": "jobs", "body": {"n": 1}})
    sent = inspect(era, url, "--method", "tools/call", "--tool-name", "send", "--tool-args-json", body)
    found = inspect(era, url, "--method", "tools/call", "--tool-name", "look", "--tool-arg", "queue=jobs")
    assert [row["id"] for row in found["structuredContent"]["messages"]] == sent["structuredContent"]["ids"]


@SETS
def test_our_count_of_tokens_is_not_below_that_of_a_real_tokenizer(tools: tuple[Tool, ...]) -> None:
    texts = [json.dumps(tool.document(), separators=(",", ":")) for tool in tools]
    texts += [tool.text for tool in tools]
    for text, real in zip(texts, counted_by_o200k(texts), strict=True):
        assert real <= tokens(text) <= 2 * real, text
