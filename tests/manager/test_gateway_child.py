"""The gateway beside a manager: `pabal up` starts it, keeps it running, and leaves none behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError

import pytest

import pabal
from pabal.manager.gateway_child import gateway_token
from tests.gateway.conftest import client_of
from tests.manager.running import PABAL, Running
from tests.waiting import until

PORT = ("--gateway-port", "0")


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path, *PORT, gateway=True)
    running.wait_until_up()
    yield running
    running.end()


def address(manager: Running) -> str:
    found = re.findall(r"^gateway  (\S+)$", manager.log, re.MULTILINE)
    return str(found[-1])


def answers(where: str) -> bool:
    try:
        with urllib.request.urlopen(f"{where}/healthz", timeout=5) as answer:
            return bool(answer.read() == b"ok\n")
    except (URLError, OSError):
        return False


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def test_up_serves_clients_of_sqs_and_ends_with_its_gateway(manager: Running, tmp_path: Path) -> None:
    where = address(manager)
    until(lambda: answers(where))
    sqs = client_of(where)
    queue = sqs.create_queue(QueueName="orders")["QueueUrl"]
    sqs.send_message(QueueUrl=queue, MessageBody="hello")
    taken = manager.ask("consume_next", {"queue": "orders", "consumerId": "me"})
    assert taken["message"]["payload"] == "hello"
    [gateway] = children(manager.pid)
    assert manager.stop() == 0
    assert not answers(where)
    with pytest.raises(ProcessLookupError):
        os.kill(gateway, 0)


def test_the_gateway_shows_the_topics_of_the_variable_by_a_path_of_this_folder(tmp_path: Path) -> None:
    with pabal.connect_topics(f"sqlite:{tmp_path}/my events.db") as topics:
        topics.topic("orders").create(partitions=1)
    env = {**os.environ, "PABAL_TOPICS": "sqlite:my%20events.db"}
    manager = Running(tmp_path, *PORT, env=env, gateway=True)
    try:
        manager.wait_until_up()
        until(lambda: answers(address(manager)))
        token = gateway_token(tmp_path / ".pabal")
        asked = urllib.request.Request(f"{address(manager)}/topics", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(asked, timeout=30) as answer:
            assert [topic["topic"] for topic in json.load(answer)["topics"]] == ["orders"]
    finally:
        manager.end()


def test_up_has_a_dashboard_whose_token_stays_the_same(manager: Running, tmp_path: Path) -> None:
    file = tmp_path / ".pabal" / "gateway.token"
    token = file.read_text().strip()
    assert file.stat().st_mode & 0o777 == 0o600 and len(token) >= 16
    assert f"open     {address(manager)}/, with the token in .pabal/gateway.token" in manager.log
    assert token not in manager.log
    until(lambda: answers(address(manager)))
    asked = urllib.request.Request(f"{address(manager)}/queues", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert answer.status == 200
    assert gateway_token(tmp_path / ".pabal") == token
    file.write_text("short")
    assert len(gateway_token(tmp_path / ".pabal")) >= 16


def test_a_gateway_that_is_killed_comes_back_at_the_same_address(manager: Running) -> None:
    where = address(manager)
    until(lambda: answers(where))
    [before] = children(manager.pid)
    os.kill(before, signal.SIGKILL)
    until(lambda: children(manager.pid) not in ([before], []) and answers(where))


def test_a_manager_that_is_killed_leaves_no_gateway(manager: Running) -> None:
    where = address(manager)
    until(lambda: answers(where))
    manager.kill()
    until(lambda: not answers(where))


def test_up_runs_without_a_gateway_if_the_port_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        running = Running(tmp_path, "--gateway-port", port, gateway=True)
        try:
            running.wait_until_up()
            [line] = [line for line in running.log.splitlines() if line.startswith("gateway  none: ")]
            assert f"port {port}: Address already in use" in line and "--gateway-port" in line
            assert children(running.pid) == [] and running.stop() == 0
        finally:
            running.end()
        asked = [*PABAL, "up", "--gateway", "--gateway-port", port]
        refused = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert refused.returncode == 2 and "no gateway can be started" in refused.stderr


def test_up_says_what_to_install_if_the_extra_is_missing(tmp_path: Path) -> None:
    hide = "import sys; sys.modules['uvicorn'] = None; from pabal.cli.main import main; main()"
    running = subprocess.Popen(
        [sys.executable, "-c", hide, "up"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert running.stdout is not None
        lines = iter(running.stdout.readline, "")
        line = next(line for line in lines if line.startswith("gateway"))
        assert "none: it needs the extra 'gateway'" in line
    finally:
        running.kill()
        running.communicate()


def test_a_manager_with_several_users_needs_keys(tmp_path: Path) -> None:
    from pabal.manager.config import read_config
    from pabal.manager.gateway_child import plan_gateway

    (tmp_path / "pabal.toml").write_text("[ipc]\ngroup = 0\nclients = { me = 0 }\n[gateway]\nport = 0\n")
    plan = plan_gateway(read_config(tmp_path / "pabal.toml", folder=tmp_path))
    assert plan.address == "" and "gateway.keys" in plan.reason
    (tmp_path / "keys").touch()
    plan = plan_gateway(read_config(tmp_path / "pabal.toml", folder=tmp_path, gateway={"keys": "keys"}))
    assert plan.arguments[-2:] == ("--keys", str(tmp_path / "keys"))
    with pytest.raises(pabal.errors.InvalidConfig, match="gateway.keys"):
        plan_gateway(read_config(tmp_path / "pabal.toml", folder=tmp_path, gateway={"enabled": True}))


@pytest.mark.parametrize(
    ("given", "said"), [({"host": "0.0.0.0"}, "can be reached from elsewhere"), ({"keys": "nowhere"}, "no keys at")]
)
def test_a_gateway_that_could_not_serve_is_not_started(tmp_path: Path, given: dict[str, object], said: str) -> None:
    from pabal.manager.config import read_config
    from pabal.manager.gateway_child import plan_gateway

    (tmp_path / "pabal.toml").write_text("[gateway]\nport = 0\n")
    plan = plan_gateway(read_config(tmp_path / "pabal.toml", folder=tmp_path, gateway=given))
    assert plan.address == "" and said in plan.reason
    with pytest.raises(pabal.errors.InvalidConfig, match=said):
        plan_gateway(read_config(tmp_path / "pabal.toml", folder=tmp_path, gateway={**given, "enabled": True}))
