"""The chat as its operator meets it: up, status, gateways and workers apart, and what is refused."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
import socketio

from pabal.cli.exits import Exit
from tests.cli.command import Pabal
from tests.waiting import until


def first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def up(pabal: Pabal, *more: str) -> tuple["subprocess.Popen[str]", str]:
    process = pabal.start("chat", "up", "--root", "chat", "--port", "0", *more)
    return process, first_line(process).split()[1]


def stop(process: "subprocess.Popen[str]") -> str:
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    lines = [json.loads(line) for line in err.splitlines()]
    assert {line["level"] for line in lines} <= {"info"}, err
    return out


def test_up_serves_until_sigterm_and_keeps_everything(pabal: Pabal) -> None:
    process, address = up(pabal)
    account = {"email": "ann@example.org", "password": "long enough"}
    assert httpx2.get(f"{address}/health").text == "ok"
    assert httpx2.post(f"{address}/auth/register", json=account).status_code == 201
    assert "stopped; everything is on disk" in stop(process)
    folder = pabal.place / "chat"
    assert stat.S_IMODE((folder / "secret").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    process, address = up(pabal)
    assert httpx2.post(f"{address}/auth/login", json=account).status_code == 200
    stop(process)


def test_what_ends_is_started_again_and_one_folder_has_one_chat(pabal: Pabal) -> None:
    process, address = up(pabal)
    second = pabal.run("chat", "up", "--root", "chat", "--port", "0")
    assert second.code == Exit.STORE and "is up already" in second.err
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    before = children.read_text().split()
    assert len(before) == 2
    for pid in before:
        os.kill(int(pid), signal.SIGKILL)
    until(lambda: len(found := children.read_text().split()) == 2 and not set(found) & set(before))

    def healthy() -> bool:
        try:
            return httpx2.get(f"{address}/health").text == "ok"
        except httpx2.TransportError:
            return False

    until(healthy)
    log = [json.loads(line) for line in (pabal.place / "chat" / "chat.log").read_text().splitlines() if line[0] == "{"]
    ended = [line for line in log if line.get("status") == -signal.SIGKILL]
    assert {line["child"] for line in ended} == {"gateway", "worker"} and {line["node"] for line in ended} == {"up"}
    stop(process)


def test_status_says_how_a_chat_is(pabal: Pabal) -> None:
    missing = pabal("chat", "status", "--root", str(pabal.place / "none"))
    assert missing.code == Exit.UNKNOWN and "no chat in" in missing.err
    process, address = up(pabal)
    root = str(pabal.place / "chat")

    def at_work() -> Any:
        [found] = pabal("chat", "status", "--root", root, "--json").documents
        reads = found["gateways"] and sum(worker["partitions"] for worker in found["workers"]) == 3
        return found if reads and found["gateway"] == found["worker"] == "ok" else None

    found = until(at_work)
    assert found["address"] == address and found["pid"] == process.pid
    assert {"gateway": "ok", "database": "ok", "toStore": 0, "toPublish": 0, "rejected": 0}.items() <= found.items()
    assert found["gateways"] == [{"name": "gateway", "lag": 0}]
    [worker] = found["workers"]
    assert (worker["partitions"], worker["lag"]) == (3, 0)
    assert found["restarts"] == {"gateway": 0, "worker": 0} and found["registration"] == "open"
    ready = httpx2.get(f"{address}/ready")
    assert ready.status_code == 200 and set(ready.json().values()) == {"ok"}
    assert "pabal_chat_database_up 1" in httpx2.get(f"{address}/metrics").text
    urls = ("--topics", f"sqlite:{root}/topics.db", "--db", f"sqlite:{root}/chat.db")
    assert "database    ok" in pabal.ok("chat", "status", *urls)
    assert pabal("chat", "status", *urls[:2]).code == Exit.INVALID
    stop(process)
    gone = pabal("chat", "status", "--root", root)
    assert gone.code == Exit.NOTHING and "nothing is stored" in gone.err
    assert "not up" in gone.out and "gateway     gone" in gone.out
    assert "GATEWAY" not in gone.out and "WORKER" not in gone.out  # what is gone is not listed


def test_operators_look_after_users_rooms_and_old_messages(pabal: Pabal) -> None:
    process, address = up(pabal)
    root = ("--root", str(pabal.place / "chat"))
    people = [{"email": f"{name}@example.org", "password": "long enough", "name": name} for name in ("ann", "bob")]
    tokens = []
    for person in people:
        assert httpx2.post(f"{address}/auth/register", json=person).status_code == 201
        tokens.append(httpx2.post(f"{address}/auth/login", json=person).json()["accessToken"])
    ann, bob = ({"Authorization": f"Bearer {token}"} for token in tokens)
    room = httpx2.post(f"{address}/rooms", json={"name": "kitchen"}, headers=ann).json()["id"]
    assert [user["name"] for user in pabal("chat", "users", *root, "--json").documents] == ["ann", "bob"]
    assert "ann@example.org" in pabal.ok("chat", "users", *root)
    [found] = pabal("chat", "rooms", *root, "--json").documents
    assert (found["id"], found["name"], found["members"]) == (room, "kitchen", 1)
    assert "kitchen" in pabal.ok("chat", "rooms", *root)
    [made] = pabal("chat", "invite", room, *root, "--json").documents
    assert made["link"].startswith(f"{address}/#join={room}.")
    body = {"invitation": made["invitation"]}
    assert httpx2.post(f"{address}/rooms/{room}/join", json=body, headers=bob).status_code == 200
    assert pabal("chat", "invite", "x", *root).code == Exit.STORE
    url = f"{address}/rooms/{room}/messages"
    until(lambda: httpx2.get(url, headers=ann).json()["messages"])
    socket = socketio.SimpleClient()
    socket.connect(address, auth={"token": tokens[0]}, transports=["polling"])
    [reset] = pabal("chat", "reset-password", "ANN@example.org", *root, "--json").documents
    assert socket.receive(20) == ["expired", {}]  # before the gateway would have asked the database again
    again = {"email": "ann@example.org", "password": reset["password"]}
    assert httpx2.post(f"{address}/auth/login", json=again).status_code == 200
    assert "registration is closed" in pabal.ok("chat", "registration", "closed", *root)
    late = {"email": "late@example.org", "password": "long enough"}
    assert httpx2.post(f"{address}/auth/register", json=late).status_code == 403
    pabal.ok("chat", "registration", "open", *root)
    assert "0 messages" in pabal.ok("chat", "retention", "--older-than", "1d", *root)
    assert "nothing was deleted" in pabal.ok("chat", "retention", "--older-than", "1ms", *root)
    [gone] = pabal("chat", "retention", "--older-than", "1ms", "--delete", *root, "--json").documents
    assert (gone["messages"], gone["deleted"]) == (1, True)
    assert httpx2.get(url, headers=bob).json()["messages"] == []
    acts = [line["act"] for line in pabal("chat", "audit", *root, "--json").documents]
    assert acts == ["invite", "reset-password", "registration", "registration", "retention"]
    assert "reset-password" in pabal.ok("chat", "audit", *root)
    assert pabal("chat", "users", "--root", "nowhere").code == Exit.UNKNOWN
    stop(process)


@pytest.mark.parametrize("command", ["up", "status"])
def test_without_what_a_chat_needs_it_says_what_to_install(pabal: Pabal, command: str) -> None:
    program = "import sys; sys.modules['jwt'] = None; from pabal.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "chat", command], cwd=pabal.place, env=pabal.env, capture_output=True, text=True
    )
    assert done.returncode == Exit.EXTRA and "ExtraMissing" in done.stderr
    assert "its extra 'chat'" in done.stderr and "Traceback" not in done.stderr


def test_a_gateway_and_a_worker_run_apart(pabal: Pabal) -> None:
    places = ("--topics", "sqlite:topics.db", "--db", "sqlite:chat.db")
    (pabal.place / "secret").write_text("s" * 32)
    (pabal.place / "secret").chmod(0o600)
    gateway = pabal.start("chat", "gateway", *places, "--port", "0", "--secret-file", "secret", "--name", "one")
    address = first_line(gateway).split()[1].rstrip(",")
    worker = pabal.start("chat", "worker", *places)
    people = [{"email": f"{name}@example.org", "password": "long enough"} for name in ("ann", "bob")]
    tokens = []
    for person in people:
        assert httpx2.post(f"{address}/auth/register", json=person).status_code == 201
        tokens.append(httpx2.post(f"{address}/auth/login", json=person).json()["accessToken"])
    ann, bob = ({"Authorization": f"Bearer {token}"} for token in tokens)
    room = httpx2.post(f"{address}/rooms", json={"name": "r", "open": True}, headers=ann).json()["id"]
    assert httpx2.post(f"{address}/rooms/{room}/join", json={}, headers=bob).status_code == 200
    url = f"{address}/rooms/{room}/messages"
    [message] = until(lambda: httpx2.get(url, headers=ann).json()["messages"])
    assert json.loads(message["content"])["event"] == "joined"
    for process in (gateway, worker):
        stop(process)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--host", "0.0.0.0"), "in the clear"),
        (("--limit", "nothing=1"), "limits are"),
        (("--limit", "rooms=many"), "whole number"),
        (("--allow-origin", "example.org"), "an origin is written"),
        (("--tls-cert", "secret"), "go together"),
        (("--name", "a b"), "gateway"),
    ],
)
def test_what_makes_no_sense_is_refused(pabal: Pabal, arguments: tuple[str, ...], said: str) -> None:
    secret = pabal.place / "secret"
    secret.write_text("s" * 32)
    secret.chmod(0o600)
    if "--tls-cert" in arguments:
        arguments = ("--tls-cert", str(secret))
    places = ("--topics", f"sqlite:{pabal.place}/t.db", "--db", f"sqlite:{pabal.place}/c.db")
    ran = pabal("chat", "gateway", *places, "--secret-file", str(secret), *arguments)
    assert ran.code == Exit.INVALID and said in ran.err


def test_a_secret_is_needed_and_must_be_long_and_private(pabal: Pabal) -> None:
    places = ("--topics", f"sqlite:{pabal.place}/t.db", "--db", f"sqlite:{pabal.place}/c.db")
    assert "PABAL_CHAT_SECRET" in pabal("chat", "gateway", *places).err
    secret = pabal.place / "secret"
    secret.write_text("short")
    secret.chmod(0o600)
    assert "at least 32 bytes" in pabal("chat", "gateway", *places, "--secret-file", str(secret)).err
    secret.chmod(0o644)
    assert "UnsafeMode" in pabal("chat", "gateway", *places, "--secret-file", str(secret)).err


def test_a_port_that_is_taken_is_named(pabal: Pabal) -> None:
    process, address = up(pabal)
    port = address.rpartition(":")[2]
    ran = pabal("chat", "up", "--root", str(pabal.place / "other"), "--port", port)
    assert ran.code == Exit.INVALID and port in ran.err
    stop(process)


def test_every_limit_and_every_code_stands_in_the_reference() -> None:
    from dataclasses import fields

    from pabal.apps.chat.gateway.answers import STATUS
    from pabal.apps.chat.gateway.limits import Limits

    root = Path(__file__).parent.parent.parent
    page = (root / "docs" / "reference" / "chat-api.md").read_text()
    for field in fields(Limits):
        assert f"| `{field.name}` | {field.default} |" in page, field.name
    source = "".join(path.read_text() for path in (root / "src" / "pabal" / "apps" / "chat" / "gateway").glob("*.py"))
    codes = set(re.findall(r'RequestRefused\(\s*\d{3}, "(\w+)"', source))
    assert len(codes) > 10
    codes |= {kind.__name__ for kind, status in STATUS if status < 500}
    for code in codes:
        assert f"`{code}`" in page, code
