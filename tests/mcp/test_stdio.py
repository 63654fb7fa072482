"""`pabal mcp` as a process: both eras of the protocol, and every way in which a client may leave."""

import os
import signal
from pathlib import Path

import anyio
import pytest

from mcp import Client, MCPError
from pabal.policy.policy import Policy
from pabal.store import State
from tests.cli.command import Pabal
from tests.mcp.lines import Lines
from tests.mcp.stdio import ERAS, call, server, text_of, with_client
from tests.mcp.test_tools import NAMES
from tests.waiting import until

each_era = pytest.mark.parametrize("era", ERAS)
modern = pytest.mark.parametrize("modern", [True, False], ids=["2026-07-28", "2025-06-18"])


@each_era
def test_the_official_client_sends_receives_and_settles(pabal: Pabal, era: str, tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        listed = await client.list_tools()
        assert [tool.name for tool in listed.tools] == NAMES
        assert all(tool.output_schema and tool.annotations and tool.title for tool in listed.tools)
        await call(client, "send", to="jobs", body={"n": 1}, reply_to="sums")
        [message] = (await call(client, "receive", queue="jobs"))["messages"]
        assert message["body"] == {"n": 1}
        await call(client, "extend", receipt=message["receipt"], seconds=60)
        await call(client, "ack", receipt=message["receipt"], reply="done")
        await call(client, "send", to="jobs", body=2)
        [second] = (await call(client, "receive", queue="jobs"))["messages"]
        assert (await call(client, "fail", receipt=second["receipt"], reason="no", final=True))["state"] == "dead"
        [answer] = (await call(client, "look", queue="sums"))["messages"]
        assert answer["body"] == '"done"'
        assert not (await call(client, "ask_human", question="Ship it?", wait=0))["answered"]
        status = await call(client, "status")
        assert status["agent"] == "ann" and status["held"] == []

        lost = await client.call_tool("ack", {"receipt": second["receipt"]})
        assert lost.is_error and text_of(lost).startswith("LeaseLost: ") and "Next: you no longer hold" in text_of(lost)
        wrong = await client.call_tool("send", {"to": "jobs", "body": 1, "delay": "soon"})
        assert wrong.is_error and "at `$.delay`" in text_of(wrong) and "Next: correct the arguments" in text_of(wrong)
        large = await client.call_tool("send", {"to": "jobs", "body": "x" * 3_000_000})
        assert large.is_error and "Next: write the content to a file" in text_of(large)
        with pytest.raises(MCPError, match="did you mean receive?"):
            await client.call_tool("recieve", {})

    with_client(server("--url", pabal.url, "--agent", "ann", folder=tmp_path), era, work)
    assert pabal.connect().queues() == ["human", "jobs", "sums"]


def test_a_client_that_probes_finds_the_new_era(pabal: Pabal, tmp_path: Path) -> None:
    async def work(client: Client) -> str | None:
        await call(client, "status")
        return client.session.protocol_version

    found = with_client(server(folder=tmp_path, env={"PABAL_URL": pabal.url}), "auto", work)
    assert found == "2026-07-28"


def test_an_option_counts_before_the_environment(pabal: Pabal, tmp_path: Path) -> None:
    async def work(client: Client) -> object:
        return (await call(client, "status"))["place"]

    env = {"IGNITE_ROOT": str(tmp_path / "team"), "IGNITE_AGENT": "ann", "PABAL_URL": "sqlite:other.db"}
    parameters = server("--url", pabal.url, folder=tmp_path, env=env)
    assert with_client(parameters, "2026-07-28", work) == pabal.url


@each_era
def test_a_client_that_gives_up_a_receive_loses_nothing(pabal: Pabal, era: str, tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        with anyio.move_on_after(0.5):  # the client then sends a cancellation
            await client.call_tool("receive", {"queue": "jobs", "wait": 50})
        await call(client, "send", to="jobs", body=1)
        [message] = (await call(client, "receive", queue="jobs", wait=20))["messages"]
        assert message["attempt"] <= 2

    with_client(server("--url", pabal.url, folder=tmp_path), era, work)
    assert pabal.counts("jobs") == {State.READY: 1}  # given back when the client left


@modern
def test_a_cancellation_that_crosses_the_answer_gives_back(pabal: Pabal, modern: bool, tmp_path: Path) -> None:
    with Lines("--url", pabal.url, folder=tmp_path, modern=modern) as lines:
        lines.result("send", to="jobs", body=1)
        id = lines.call("receive", queue="jobs")
        lines.answer(id)
        lines.cancel(id)
        until(lambda: pabal.counts("jobs") == {State.READY: 1})
        assert lines.result("status")["held"] == []


@modern
def test_a_cancelled_receive_is_not_answered(pabal: Pabal, modern: bool, tmp_path: Path) -> None:
    with Lines("--url", pabal.url, folder=tmp_path, modern=modern) as lines:
        waiting = lines.call("receive", queue="jobs", wait=50)
        lines.result("status")
        lines.cancel(waiting)
        lines.result("send", to="jobs", body=1)
        assert lines.result("receive", queue="jobs", wait=30)["messages"]
        code, err = lines.end()
        assert (code, err) == (0, b"")
    assert pabal.counts("jobs") == {State.READY: 1}


def test_a_client_that_closes_stdin_ends_the_server_and_gives_back(pabal: Pabal, tmp_path: Path) -> None:
    with Lines("--url", pabal.url, folder=tmp_path) as lines:
        lines.result("send", to="jobs", body=1)
        lines.result("receive", queue="jobs")
        lines.call("receive", queue="jobs", wait=50)
        assert lines.end() == (0, b"")
    assert pabal.counts("jobs") == {State.READY: 1}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_while_stdin_is_open(pabal: Pabal, number: signal.Signals, tmp_path: Path) -> None:
    with Lines("--url", pabal.url, folder=tmp_path) as lines:
        lines.result("send", to="jobs", body=1)
        lines.result("receive", queue="jobs")
        lines.call("receive", queue="jobs", wait=50)
        lines.process.send_signal(number)
        assert lines.process.wait(60) == 128 + number
    assert pabal.counts("jobs") == {State.READY: 1}


def test_a_client_that_reads_no_more_ends_the_server(pabal: Pabal, tmp_path: Path) -> None:
    with Lines("--url", pabal.url, folder=tmp_path) as lines:
        lines.result("send", to="jobs", body=1)
        lines.result("receive", queue="jobs")
        assert lines.process.stdout is not None
        lines.process.stdout.close()
        lines.call("status")
        assert lines.process.wait(60) == 141
    assert pabal.counts("jobs") == {State.READY: 1}


def test_a_server_that_is_killed_loses_nothing(pabal: Pabal, tmp_path: Path) -> None:
    with pabal.connect() as mq:
        mq.queue("jobs").configure(Policy(visibility=1.0))
    with Lines("--url", pabal.url, folder=tmp_path) as lines:
        lines.result("send", to="jobs", body=1)
        [first] = lines.result("receive", queue="jobs")["messages"]
        lines.process.kill()
    with Lines("--url", pabal.url, folder=tmp_path) as lines:
        [message] = lines.result("receive", queue="jobs", wait=50)["messages"]
        assert (message["id"], message["attempt"]) == (first["id"], 2)
        late = lines.answer(lines.call("ack", receipt=first["receipt"]))
        assert late["isError"] and "LeaseLost" in late["content"][0]["text"]
        lines.result("ack", receipt=message["receipt"])


def test_the_lease_of_a_living_agent_does_not_run_out(pabal: Pabal, tmp_path: Path) -> None:
    with pabal.connect() as mq, Lines("--url", pabal.url, folder=tmp_path) as lines:
        mq.queue("jobs").configure(Policy(visibility=0.6))
        lines.result("send", to="jobs", body=1)
        [message] = lines.result("receive", queue="jobs")["messages"]
        assert mq.queue("jobs").lease(wait=2) == []
        lines.result("ack", receipt=message["receipt"])


def test_what_is_no_request_is_survived(pabal: Pabal, tmp_path: Path) -> None:
    with Lines("--url", pabal.url, folder=tmp_path) as lines:
        lines.result("send", to="jobs", body=1)
        for garbage in (
            b"\n",
            b"{\n",
            b"\xff\xfe\x00\n",
            b"[1, 2]\n",
            b'{"jsonrpc": "2.0"}\n',
            b"null\n",
            b"x" * 200_000 + b"\n",
        ):
            lines.write_raw(garbage)
        lines.write({"jsonrpc": "2.0", "id": 77, "method": "tools/call"})
        lines.write({"jsonrpc": "2.0", "id": 78, "method": "tools/call", "params": {"name": "ack", "arguments": "x"}})
        lines.cancel(12345)
        assert "code" in lines.answer(77) and "code" in lines.answer(78)
        assert lines.answer(lines.request("tools/remove", {}))["code"] == -32601
        assert lines.result("receive", queue="jobs")["messages"]


def test_many_calls_at_once_are_all_answered(pabal: Pabal, tmp_path: Path) -> None:
    with Lines("--url", pabal.url, folder=tmp_path) as lines:
        waiting = [lines.call("receive", queue="jobs", wait=40) for _ in range(100)]  # more than may wait at once
        sent = [lines.call("send", to="jobs", body=number) for number in range(100)]
        for id in sent:
            lines.answer(id)
        found = [message["body"] for id in waiting for message in lines.answer(id)["structuredContent"]["messages"]]
        assert sorted(found) == list(range(100))


def test_only_the_protocol_is_on_stdout_and_the_log_on_stderr(pabal: Pabal, tmp_path: Path) -> None:
    with Lines("--url", pabal.url, folder=tmp_path) as lines:
        lines.result("send", to="jobs", body=1)
        [message] = lines.result("receive", queue="jobs")["messages"]
        lines.result("fail", receipt=message["receipt"], reason="no\x1b[31m", final=True)
        code, err = lines.end()
    assert code == 0 and b'"event":"message dead"' in err and b"\x1b" not in err


@pytest.mark.parametrize(
    ("arguments", "env", "said"),
    [
        ((), {}, "give --url URL or PABAL_URL"),
        (("--agent", "ann"), {}, "none is assumed"),
        (("--workspace", "w"), {}, "give --agent NAME"),
        ((), {"IGNITE_ROOT": "w", "PABAL_URL": "sqlite:x.db"}, "give --agent NAME"),
        (("--workspace", "w", "--agent", "a", "--url", "sqlite:x.db"), {}, "exclude each other"),
        (("--url", "mysql://x"), {}, "InvalidUrl"),
        (("--url", "sqlite:x.db", "--agent", "a/b"), {}, "InvalidName"),
        (("--url", "sqlite:x.db", "--human-queue", "a/b"), {}, "InvalidName"),
        (("--url", "sqlite:x.db", "--hold", "0"), {}, "above 0"),
    ],
)
def test_a_place_must_be_named(
    pabal: Pabal, tmp_path: Path, arguments: tuple[str, ...], env: dict[str, str], said: str
) -> None:
    pabal.env = {"PATH": os.environ["PATH"], **env}
    (tmp_path / ".pabal").mkdir()
    ran = pabal.run("mcp", *arguments)
    assert ran.code == 2 and ran.out == "" and said in ran.err
