"""Agents over streamable HTTP at a gateway in a process of its own, with the SDK's own client on a real socket."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from click.testing import CliRunner
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

import pabal
from mcp import Client
from pabal.cli.exits import Exit
from pabal.cli.main import cli
from pabal.mcp.http import HttpAgents
from pabal.store import State
from tests.apps.ignite.table import Served, ignite
from tests.gateway.conftest import Running, gateway
from tests.gateway.http_client import ask
from tests.gateway.places import answer_in_team, make_team
from tests.mcp.stdio import ERAS, call, text_of
from tests.mcp.test_tools import NAMES
from tests.waiting import until

eras = pytest.mark.parametrize("era", ERAS)
PROBE = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}


@pytest.fixture(autouse=True)
def no_places_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IGNITE_ROOT", raising=False)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/jobs.db"


@pytest.fixture
def served(url: str, tmp_path: Path) -> Iterator[Running]:
    with gateway(url, tmp_path / "log") as running:
        yield running


@pytest.fixture
def jobs(url: str) -> Iterator[pabal.Queue]:
    with pabal.connect(url) as mq:
        yield mq.queue("jobs")


def token_of(running: Running) -> str:
    return running.dashboard.partition("token=")[2]


def test_without_the_extra_both_ways_say_what_to_install(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = "raise ModuleNotFoundError(\"No module named 'mcp'\", name='mcp')\n"
    (tmp_path / "mcp.py").write_text(missing)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    remedy = "needs mcp: install Pabal with its extra 'mcp' (README, Extras)"
    with gateway(url, tmp_path / "log") as running:
        head = {"Authorization": f"Bearer {token_of(running)}"}
        answer = httpx2.post(f"{running.address}/mcp", json=PROBE, headers=head)
        assert (answer.status_code, answer.json()["error"]["message"]) == (501, f"/mcp {remedy}")
    program = "from pabal.cli.main import main; main()"
    command = [sys.executable, "-c", program, "mcp", "--url", url]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == Exit.EXTRA and done.stderr == f"pabal: ExtraMissing: pabal mcp {remedy}\n"


@asynccontextmanager
async def agent(
    running: Running, era: str, path: str = "/mcp", token: str = "", **headers: str
) -> AsyncIterator[Client]:
    """A client of the SDK that is signed in."""
    given = {"Authorization": f"Bearer {token or token_of(running)}", **headers}
    async with httpx2.AsyncClient(headers=given, timeout=90) as http:
        async with Client(streamable_http_client(f"{running.address}{path}", http_client=http), mode=era) as client:
            yield client


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        with anyio.fail_after(120):
            await work()

    anyio.run(main)


async def waiting(place: Path, queue: str) -> None:
    """Wait until somebody waits for a message of this queue: then it has a bell."""
    while not (place / "jobs.db.bells" / queue).exists():
        await anyio.sleep(0.02)


@eras
def test_an_agent_works_on_queues_and_others_wait_for_its_messages(
    served: Running, jobs: pabal.Queue, era: str
) -> None:
    async def work() -> None:
        async with agent(served, era, "/mcp?agent=ann") as ann, agent(served, era, "/mcp?agent=ben") as ben:
            assert [tool.name for tool in (await ann.list_tools()).tools] == NAMES
            async with anyio.create_task_group() as group:
                found: list[Any] = []

                async def wait() -> None:  # a long wait that ends with the message
                    found.append(await call(ann, "receive", queue="jobs", wait=50))

                group.start_soon(wait)
                await call(ben, "send", to="jobs", body={"n": 1})
            [message] = found[0]["messages"]
            assert (message["from"], message["body"]) == ("ben", {"n": 1})
            assert (await call(ben, "status"))["held"] == [] and (await call(ann, "status"))["held"]
            await call(ann, "ack", receipt=message["receipt"])
        assert jobs.counts()[State.DONE] == 1

    run(work)


@eras
def test_a_cancelled_wait_takes_nothing(served: Running, tmp_path: Path, era: str) -> None:
    async def work() -> None:
        async with agent(served, era, "/mcp?agent=ann") as ann:
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: call(ann, "receive", queue="jobs", wait=50))
                await waiting(tmp_path, "jobs")
                group.cancel_scope.cancel()
            await call(ann, "send", to="jobs", body=1)
            found: Any = {"messages": []}
            while not found["messages"]:
                found = await call(ann, "receive", queue="jobs", wait=1)
                if era != "legacy" and "held" in found:
                    return  # the answer crossed the end of its stream, which nobody can tell the server
            assert found["messages"][0]["body"] == 1

    run(work)


@eras
def test_a_stop_ends_waits_with_an_answer_and_what_is_held_is_settled_at_the_next_gateway(
    url: str, tmp_path: Path, jobs: pabal.Queue, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PABAL_GATEWAY_TOKEN", "a token that stays the same")
    jobs.create(pabal.Policy(visibility=600))
    jobs.publish("first")

    async def work() -> None:
        with gateway(url, tmp_path / "log") as running:
            token = "a token that stays the same"
            async with agent(running, era, "/mcp?agent=ann", token) as ann:
                [held] = (await call(ann, "receive", queue="jobs"))["messages"]
                answered: list[Any] = []

                async def wait() -> None:
                    answered.append(await call(ann, "receive", queue="waited", wait=50))

                async with anyio.create_task_group() as group:
                    group.start_soon(wait)
                    await waiting(tmp_path, "waited")
                    running.process.terminate()
                assert answered[0]["messages"] == [] and answered[0]["held"] == [held["receipt"]]
            assert await anyio.to_thread.run_sync(running.process.wait, 30) == 0
            assert jobs.counts()[State.INFLIGHT] == 1
            running.kill()
            running.start()
            async with agent(running, era, "/mcp?agent=ann", token) as ann:  # it connects again
                assert await call(ann, "ack", receipt=held["receipt"]) == {"done": held["id"]}
        assert jobs.counts()[State.DONE] == 1

    run(work)


def test_a_client_that_ends_its_last_session_gives_back_what_it_held(served: Running, jobs: pabal.Queue) -> None:
    jobs.publish(1)

    async def work() -> None:
        async with agent(served, "legacy") as one:
            async with agent(served, "legacy") as two:
                assert (await call(two, "receive", queue="jobs"))["messages"]
            assert jobs.counts()[State.INFLIGHT] == 1  # another session of the same agent goes on
            assert len((await call(one, "status"))["held"]) == 1
        await anyio.to_thread.run_sync(lambda: until(lambda: jobs.counts()[State.READY] == 1))

    run(work)


@eras
def test_a_key_names_the_agent_and_decides_about_tools_and_queues(url: str, tmp_path: Path, era: str) -> None:
    keys = tmp_path / "keys"

    def key(*options: str) -> str:
        done = CliRunner().invoke(cli, ["gateway-keys", "add", "--keys", str(keys), "--json", *options])
        found = json.loads(done.output)
        return f"{found['accessKey']}:{found['secret']}"

    cleo = key("--name", "cleo", "--queue", "orders-*")
    looks = key("--name", "dan", "--right", "look")
    with pabal.connect(url) as mq, gateway(url, tmp_path / "log", "--keys", str(keys)) as running:
        mq.queue("secret").publish("x", id="s1")
        receipt = str(mq.queue("secret").lease()[0].receipt)

        async def work() -> None:
            async with agent(running, era, token=cleo) as client:
                await call(client, "send", to="orders-1", body=1)
                status = await call(client, "status")
                assert status["agent"] == "cleo" and [each["queue"] for each in status["queues"]] == ["orders-1"]
                for name, arguments in (
                    ("send", {"to": "secret", "body": 1}),
                    ("send", {"to": "orders-1", "body": 1, "reply_to": "secret"}),
                    ("receive", {"queue": "secret"}),
                    ("ack", {"receipt": receipt}),
                    ("fail", {"receipt": receipt, "reason": "x"}),
                    ("extend", {"receipt": receipt, "seconds": 60}),
                    ("look", {"queue": "secret"}),
                    ("ask_human", {"question": "May I?"}),
                ):
                    refused = await client.call_tool(name, arguments)
                    assert refused.is_error and "your key may not use the queue" in text_of(refused), name
                assert (await client.call_tool("look", {"id": "s1"})).is_error
                assert (await call(client, "look", search="x"))["messages"] == []
            async with agent(running, era, token=looks) as client:
                assert [tool.name for tool in (await client.list_tools()).tools] == ["look", "status"]
                with pytest.raises(MCPError, match="no tool 'send'"):
                    await client.call_tool("send", {"to": "orders-1", "body": 1})

        run(work)
        assert mq.queue("orders-1").counts()[State.READY] == 1
        head = {"authorization": f"Bearer {cleo}"}
        assert ask(running.address, "POST", "/mcp?agent=eve", PROBE, **head).status == 403


@eras
def test_a_gateway_that_only_shows_has_tools_that_only_show(url: str, tmp_path: Path, era: str) -> None:
    with pabal.connect(url) as mq:
        mq.queue("jobs").publish(1)
    with gateway(url, tmp_path / "log", "--read-only") as running:

        async def work() -> None:
            async with agent(running, era) as client:
                assert [tool.name for tool in (await client.list_tools()).tools] == ["look", "status"]
                assert len((await call(client, "look", queue="jobs"))["messages"]) == 1

        run(work)
        head = {"authorization": f"Bearer {token_of(running)}"}
        assert ask(running.address, "POST", "/mcp/mail?agent=worker", PROBE, **head).status == 403


def test_strangers_pages_and_large_requests_are_refused(served: Running) -> None:
    head = {"accept": "application/json, text/event-stream", "authorization": f"Bearer {token_of(served)}"}
    for wrong in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer local:wrong"}):
        refused = ask(served.address, "POST", "/mcp", PROBE, **{**head, "authorization": "", **wrong})
        assert refused.status == 401 and refused.headers["www-authenticate"].startswith("Bearer")
    signed_in = ask(served.address, "GET", f"/?token={token_of(served)}").headers["set-cookie"].partition(";")[0]
    assert ask(served.address, "POST", "/mcp", PROBE, cookie=signed_in).status == 401
    for foreign in ({"origin": "http://evil.example"}, {"host": "evil.example"}, {"sec_fetch_site": "cross-site"}):
        assert ask(served.address, "POST", "/mcp", PROBE, **head, **foreign).status == 403
    assert ask(served.address, "POST", "/mcp", b"x" * (5 << 20), **head).status == 413
    assert ask(served.address, "POST", "/mcp/other", PROBE, **head).status == 404
    assert ask(served.address, "POST", "/mcp?agent=a%2Fb", PROBE, **head).status == 400
    assert ask(served.address, "POST", "/mcp/mail?agent=worker", PROBE, **head).status == 404  # there is no team
    assert ask(served.address, "POST", "/mcp/mail", PROBE, **head).status == 400
    unknown = ask(served.address, "POST", "/mcp", PROBE, **head, mcp_session_id="nobody")
    assert unknown.status == 404


@eras
def test_an_agent_of_a_team_gets_its_mail_and_asks_the_person(served: Running, tmp_path: Path, era: str) -> None:
    team = make_team(tmp_path)
    monitor = Served(team)
    try:
        ignite(team, "say", "worker", "paint the fence", "--from", "leader")

        async def work() -> None:
            async with agent(served, era, "/mcp/mail?agent=worker") as worker:
                found = await call(worker, "receive", wait=50)
                [message] = found["messages"]
                assert message["from"] == "leader" and message["body"] == {"text": "paint the fence"}
                asked = await call(worker, "ask_human", question="Which colour?", wait=0)
                head = {"authorization": f"Bearer {token_of(served)}"}
                answer = {"place": str(team), "id": asked["question_id"], "text": "green"}
                done = await anyio.to_thread.run_sync(
                    lambda: ask(served.address, "POST", "/needs/answer", answer, **head)
                )
                assert done.status == 200
                again = await call(worker, "ask_human", question_id=asked["question_id"], wait=50)
                assert (again["answered"], again["answer"]) == (True, "green")
                await call(worker, "ack", receipt=message["receipt"], reply="done")
                assert answer_in_team(team, asked["question_id"]).state == "answered"

        run(work)
    finally:
        monitor.stop()


@pytest.mark.anyio
async def test_the_agent_that_was_silent_for_longest_makes_room(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pabal.mcp.http._MOST_AGENTS", 2)
    agents = HttpAgents(url, lambda: None)
    answered: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        answered.append(message)

    async def ask_as(name: str) -> None:
        scope = {"type": "http", "method": "POST", "path": "/mcp", "query_string": b"", "headers": []}
        await agents.serve("key", name, ["look"], lambda queue: True, scope, receive, send, mail=False)

    try:
        for name in ("ann", "ben", "ann", "cleo"):
            await ask_as(name)
        assert [name for _, name, _ in agents._agents] == ["ann", "cleo"]
        assert [message["status"] for message in answered if "status" in message] == [400] * 4  # no JSON
    finally:
        await agents.close()
