"""The manager as its operator meets it: start, serve, reload, stop, and what it says when something is wrong."""

import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from subprocess import Popen
from tempfile import gettempdir
from typing import Any

import pytest
from click.testing import CliRunner

from pabal.cli.main import cli
from pabal.connect import connect
from pabal.errors import Refused
from pabal.mailbox.client import Mailbox
from pabal.store import State
from tests.mailbox.users import ALICE, BOB, GROUP, STRANGER, as_user
from tests.manager.running import PABAL, YIRANGMQ, Running
from tests.waiting import until

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def start(*arguments: str, up: bool = True) -> Running:
        manager = Running(tmp_path, *arguments)
        running.append(manager)
        if up:
            manager.wait_until_up()
        return manager

    yield start
    for manager in running:
        manager.end()


def ran(command: list[str], folder: Path, **settings: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, **settings
    )


def test_up_then_yirangmq_health_with_no_options(started: Callable[..., Running], tmp_path: Path) -> None:
    manager = started()
    done = ran([*YIRANGMQ, "health"], tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("status          ok\n")
    assert str(manager.pid) in done.stdout
    assert "Try in another terminal" in manager.log and "pabal mq publish --queue jobs" in manager.log


def test_it_logs_json_lines_and_stops_cleanly_on_sigterm(started: Callable[..., Running], tmp_path: Path) -> None:
    manager = started("--log-root", "logs")
    assert manager.stop() == 0
    lines = [json.loads(line) for line in (tmp_path / "logs" / "manager.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["serving", "stopped"]
    assert not (tmp_path / ".pabal" / "manager.heartbeat").exists()


def test_sigterm_answers_what_was_taken(started: Callable[..., Running], tmp_path: Path) -> None:
    manager = started()
    waiting = Popen(
        [*PABAL, "mq", "consume", "--queue", "jobs", "--wait", "60000", "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    until(lambda: list((manager.ipc / "processing").iterdir()))
    assert manager.stop() == 0
    out, _ = waiting.communicate(timeout=30)
    assert (waiting.returncode, json.loads(out)) == (1, {"message": None, "lease": None})
    assert list((manager.ipc / "processing").iterdir()) == []


def test_make_up_serves_and_says_what_to_type(tmp_path: Path) -> None:
    make = ["make", "-f", f"{ROOT}/Makefile", f"VENV={ROOT}/.venv"]
    old = [part for name in ("pyproject.toml", "constraints.txt", f"{ROOT}/.venv/installed") for part in ("-o", name)]
    with open(tmp_path / "log", "w+") as log:
        process = Popen(
            [*make, *old, "up"], cwd=tmp_path, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            until(lambda: '"event":"serving"' in (tmp_path / "log").read_text())
            for verb in ("publish", "status"):
                [trial] = [line for line in (tmp_path / "log").read_text().splitlines() if f" mq {verb}" in line]
                assert ran(["sh", "-c", trial], tmp_path).returncode == 0, trial
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(20)
    assert '"event":"stopped"' in (tmp_path / "log").read_text()


def test_a_second_manager_says_who_has_the_root(started: Callable[..., Running], tmp_path: Path) -> None:
    manager = started()
    done = ran([*PABAL, "up"], tmp_path)
    assert done.returncode == 6
    assert f"AlreadyRunning: {tmp_path}/.pabal is served already: pid {manager.pid} since 20" in done.stderr


def test_other_commands_use_the_same_store_and_wake_who_waits(started: Callable[..., Running], tmp_path: Path) -> None:
    manager = started()
    waiting = Popen(
        [*PABAL, "mq", "consume", "--queue", "jobs", "--wait", "600000", "--json", "--timeout", "900000"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    until(lambda: list((tmp_path / ".pabal/ipc/processing").iterdir()))
    assert ran([*PABAL, "publish", "jobs", '{"a": 1}'], tmp_path).returncode == 0
    out, _ = waiting.communicate(timeout=300)  # woken, long before the wait ends
    assert json.loads(out)["message"]["payload"] == {"a": 1}
    status = ran([*PABAL, "status", "--json"], tmp_path)
    assert json.loads(status.stdout)["inflight"] == 1
    assert manager.ask("status", {"queue": "jobs"})["metrics"]["inflight"] == 1


def test_it_sweeps_without_any_consumer(started: Callable[..., Running], tmp_path: Path) -> None:
    manager = started()
    for number in range(2):
        manager.ask("publish", {"queue": "jobs", "message": {"n": number}})
    taken = manager.ask("consume_next", {"queue": "jobs", "visibilityTimeoutSec": 0.2})
    assert taken["message"]["attempt"] == 1
    until(lambda: manager.ask("status", {"queue": "jobs"})["metrics"]["delayed"] == 1)


def test_sighup_takes_over_a_changed_configuration(started: Callable[..., Running], tmp_path: Path) -> None:
    config = tmp_path / "pabal.toml"
    config.write_text('[[queues]]\nname = "jobs"\npolicy.visibilityTimeoutSec = 5\n')
    manager = started()
    assert manager.ask("status", {"queue": "jobs"})["policy"]["visibilityTimeoutSec"] == 5
    config.write_text('[[queues]]\nname = "jobs"\npolicy.visibilityTimeoutSec = 7\n')
    manager.signal(signal.SIGHUP)
    until(lambda: manager.ask("status", {"queue": "jobs"})["policy"]["visibilityTimeoutSec"] == 7)
    config.write_text('[[queues]]\nname = "jobs"\npolicy.visibilityTimeoutSec = "x"\n')
    manager.signal(signal.SIGHUP)
    until(lambda: "configuration not reloaded" in manager.log)
    assert '"queues[0].policy.visibilityTimeoutSec: expected a number"' in manager.log
    assert manager.ask("status", {"queue": "jobs"})["policy"]["visibilityTimeoutSec"] == 7


def test_sighup_brings_in_new_queues_and_names_what_needs_a_restart(
    started: Callable[..., Running], tmp_path: Path
) -> None:
    config = tmp_path / "pabal.toml"
    config.write_text('[[queues]]\nname = "jobs"\n')
    manager = started()
    with pytest.raises(Refused, match="no queue more"):
        manager.ask("publish", {"queue": "more", "message": 1})
    config.write_text('nodeId = "other"\n[[queues]]\nname = "jobs"\n[[queues]]\nname = "more"\n')
    manager.signal(signal.SIGHUP)
    until(lambda: '"needs_restart":["node_id"]' in manager.log)
    assert manager.ask("publish", {"queue": "more", "message": 1})["messageId"]
    assert manager.ask("health")["nodeId"] == "local-01"


def test_a_mistake_stops_the_start_and_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "main_mq_configuration.json").write_text('{"backend": "oracle", "lease": {"sweepIntervalMs": 0}}')
    done = ran([*PABAL, "up"], tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"pabal: InvalidConfig: 2 mistakes in {tmp_path}/main_mq_configuration.json",
        "  backend: expected one of sqlite, filesystem, fs, hybrid; found 'oracle'",
        "  lease.sweepIntervalMs: expected a whole number >= 1; found 0",
    ]
    assert not (tmp_path / ".pabal").exists()


def test_the_command_line_goes_before_the_file(started: Callable[..., Running], tmp_path: Path) -> None:
    (tmp_path / "pabal.toml").write_text('backend = "sqlite"\nnodeId = "file"\n')
    manager = started("--backend", "hybrid", "--node-id", "cli", "--visibility-timeout", "9", "--data-root", ".pabal")
    health = manager.ask("health")
    assert (health["backend"], health["nodeId"]) == ("hybrid", "cli")
    manager.ask("publish", {"queue": "jobs", "message": {}})
    until(lambda: manager.ask("status", {"queue": "jobs"})["policy"]["visibilityTimeoutSec"] == 9)


@pytest.mark.parametrize("backend", ["sqlite", "filesystem", "hybrid"])
def test_what_was_published_is_there_after_kill_9(
    backend: str, started: Callable[..., Running], tmp_path: Path
) -> None:
    manager = started("--backend", backend)
    key = manager.ask("publish", {"queue": "jobs", "message": {"a": 1}})["messageKey"]
    manager.kill()
    manager.start()
    manager.wait_until_up()
    assert manager.ask("consume_next", {"queue": "jobs"})["message"]["messageKey"] == key


def test_a_request_written_while_nobody_serves_is_answered_later(
    started: Callable[..., Running], tmp_path: Path
) -> None:
    manager = started()
    manager.kill()
    request = {"requestId": "r1", "clientId": "script", "command": "publish"}
    request |= {"payload": {"queue": "jobs", "message": {"a": 1}}}  # type: ignore[dict-item]  # a document
    draft = tmp_path / "draft"
    draft.write_text(json.dumps(request))
    subprocess.run(["mv", draft, manager.ipc / "requests" / "r1.json"], check=True)
    manager.start()
    answer = manager.ipc / "responses" / "script" / "r1.json"
    until(answer.exists)
    assert json.loads(answer.read_text())["ok"] is True


def test_a_hung_manager_looks_hung(started: Callable[..., Running], tmp_path: Path) -> None:
    manager = started()
    until((tmp_path / ".pabal" / "manager.heartbeat").exists)
    manager.signal(signal.SIGSTOP)
    try:
        done = ran([*YIRANGMQ, "health", "--timeout", "1500"], tmp_path)
    finally:
        manager.signal(signal.SIGCONT)
    assert done.returncode == 6
    assert "NoAnswer" in done.stderr and f"pid {manager.pid} finished its last pass" in done.stderr
    manager.kill()
    gone = ran([*YIRANGMQ, "health", "--timeout", "300"], tmp_path)
    assert f"its manager, pid {manager.pid}, is gone" in gone.stderr


SEED_LAYOUT = {
    "paths": {"dataRoot": "./data"},
    "ipc": {"root": "./ipc", "requestsDir": "in", "responsesDir": "out", "processingDir": "work", "deadDir": "bad"},
}


def test_a_mailbox_says_where_its_folders_and_its_heartbeat_are(
    started: Callable[..., Running], tmp_path: Path
) -> None:
    (tmp_path / "main_mq_configuration.json").write_text(json.dumps(SEED_LAYOUT))
    manager = started(up=False)
    manager.ipc = tmp_path / "ipc"
    until(lambda: '"event":"serving"' in manager.log)
    manager.wait_until_up()
    assert json.loads((tmp_path / "ipc/mailbox.json").read_text()) == {
        "requestsDir": "in",
        "responsesDir": "out",
        "heartbeat": str(tmp_path / "data/manager.heartbeat"),
    }
    assert (tmp_path / "ipc/mailbox.json").stat().st_mode & 0o777 == 0o600
    assert ran([*YIRANGMQ, "publish", "--queue", "jobs", "--message", "1"], tmp_path).returncode == 0
    with connect(f"mailbox://{tmp_path}/ipc") as mq:
        assert [each.body for each in mq.queue("jobs").lease(5)] == [1]
    until((tmp_path / "data/manager.heartbeat").exists)
    manager.signal(signal.SIGSTOP)
    try:
        hung = ran([*YIRANGMQ, "health", "--timeout", "500"], tmp_path)
    finally:
        manager.signal(signal.SIGCONT)
    assert f"pid {manager.pid} finished its last pass" in hung.stderr
    assert manager.stop() == 0
    assert "no manager serves it" in ran([*YIRANGMQ, "health", "--timeout", "50ms"], tmp_path).stderr


def test_in_a_terminal_one_line_tells_how_it_goes(tmp_path: Path) -> None:
    parent, child = pty.openpty()
    manager = Popen([*PABAL, "up", "--no-gateway"], cwd=tmp_path, stdin=child, stdout=child, stderr=child)
    os.close(child)
    shown = b""
    end = time.monotonic() + 30
    while b"up " not in shown.split(b"Ctrl-C")[-1] and time.monotonic() < end:
        if select.select([parent], [], [], 0.1)[0]:
            shown += os.read(parent, 4096)
    manager.send_signal(signal.SIGINT)
    while select.select([parent], [], [], 5)[0]:
        try:
            shown += os.read(parent, 4096)
        except OSError:
            break
    assert manager.wait(20) == 0
    os.close(parent)
    text = shown.decode()
    assert "0 queues: 0 ready, 0 delayed, 0 inflight, 0 dead | 0 requests" in text
    assert "stopped; everything is on disk" in text and '"event"' not in text
    assert (tmp_path / ".pabal" / "manager.jsonl").read_text().count("\n") == 2


def test_hybrid_is_checked_and_mended_at_the_start(started: Callable[..., Running], tmp_path: Path) -> None:
    with connect(f"hybrid:{tmp_path}/.pabal/hybrid") as mq:
        mq.queue("jobs").publish("kept", id="kept")
        mq.queue("jobs").publish("lost", id="lost")
    [body] = [path for path in (tmp_path / ".pabal/hybrid/bodies").rglob("*") if path.name.startswith("lost")]
    body.unlink()
    started("--backend", "hybrid").stop()
    with connect(f"hybrid:{tmp_path}/.pabal/hybrid") as mq:
        found = mq.queue("jobs").find("lost")
        assert found is not None and found.state is State.DEAD
        assert found.failure is not None and found.failure.code == "MISSING_PAYLOAD"


def test_without_a_watcher_requests_are_looked_for(started: Callable[..., Running], tmp_path: Path) -> None:
    (tmp_path / "pabal.toml").write_text("[ipc]\nuseFolderWatcher = false\npollIntervalMs = 50\n")
    manager = started()
    began = time.monotonic()
    manager.ask("health")
    assert time.monotonic() - began < 0.9


def test_the_original_configuration_serves_as_it_stands(started: Callable[..., Running], tmp_path: Path) -> None:
    from tests.manager.test_config import ORIGINAL, written
    from tests.test_connect_options import TEMPLATE

    written(tmp_path, ORIGINAL)
    (tmp_path / "sqlite_schema.sql").write_text(TEMPLATE)
    manager = started(up=False)
    manager.ipc = tmp_path / "ipc"
    requests = tmp_path / "ipc" / "req"
    until(requests.is_dir)
    ask = {"requestId": "r1", "clientId": "seed", "command": "Publish", "timestampMs": 0, "deadlineMs": 0}
    body = {"queue": "telemetry", "message": '{"deviceId": "d1", "temp": 1}'}
    (requests / "r1.json.tmp").write_text(json.dumps({**ask, "payload": body}))
    (requests / "r1.json.tmp").rename(requests / "r1.json")
    answer = tmp_path / "ipc" / "resp" / "seed" / "r1.json"
    until(answer.exists)
    assert json.loads(answer.read_text())["ok"] is True, answer.read_text()
    body["message"] = '{"temp": -41}'
    (requests / "r2.json").write_text(json.dumps({**ask, "requestId": "r2", "payload": body}))
    refusal = tmp_path / "ipc" / "resp" / "seed" / "r2.json"
    until(refusal.exists)
    error = json.loads(refusal.read_text())["error"]
    assert error["code"] == "VALIDATION_FAILED" and "deviceId: it is missing" in error["message"]
    assert manager.stop() == 0
    assert (tmp_path / "data/yirangmq.db").is_file() and (tmp_path / "logs/manager.jsonl").is_file()


def test_clients_of_other_users_are_served_as_configured(started: Callable[..., Running], tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to be other users")
    for folder in takewhile(lambda each: each != Path(gettempdir()), (tmp_path, *tmp_path.parents)):
        folder.chmod(0o711)
    users = f"group = {GROUP}\n[ipc.clients]\nalice = {ALICE}\nbob = {BOB}\n"
    (tmp_path / "pabal.toml").write_text(f"[ipc]\n{users}")
    refused = ran([*PABAL, "up"], tmp_path)
    assert refused.returncode == 6 and f"{tmp_path}/.pabal lets no client pass: chmod o+x it" in refused.stderr
    (tmp_path / "pabal.toml").write_text(f"[ipc]\nroot = 'box'\n{users}")
    manager = started(up=False)
    manager.ipc = tmp_path / "box"
    until(lambda: '"event":"serving"' in manager.log)

    def ask(client: str, command: str, payload: Any = None) -> Any:
        return Mailbox(manager.ipc, client, timeout=20.0).ask(command, payload)

    assert as_user(ALICE, lambda: ask("alice", "health"))["mode"] == "per-uid"
    command = ["mq", "health", "--ipc-root", str(manager.ipc), "--client-id", "alice"]
    assert "per-uid" in as_user(ALICE, lambda: CliRunner().invoke(cli, command).output)
    assert (manager.ipc / "mailbox.json").stat().st_mode & 0o777 == 0o640
    manager.signal(signal.SIGSTOP)
    unheard = as_user(ALICE, lambda: CliRunner().invoke(cli, [*command, "--timeout", "200"]).output)
    manager.signal(signal.SIGCONT)
    assert "NoAnswer" in unheard and "no manager serves it" not in unheard
    as_user(ALICE, lambda: ask("alice", "publish", {"queue": "jobs", "message": {"a": 1}}))
    taken = as_user(BOB, lambda: ask("bob", "consume", {"queue": "jobs"}))["message"]
    assert (taken["sender"], taken["payload"]) == ("alice", {"a": 1})
    assert as_user(STRANGER, lambda: os.access(manager.ipc / "requests", os.W_OK)) is False
