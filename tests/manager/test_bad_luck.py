"""A manager as a process, to which things happen that are nobody's plan: it goes on, or says why it does not."""

import json
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.manager.running import PABAL, Running


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def start(*arguments: str) -> Running:
        manager = Running(tmp_path, *arguments)
        running.append(manager)
        manager.wait_until_up()
        return manager

    yield start
    for manager in running:
        manager.end()


def wait_for_log(manager: Running, text: str, timeout: float = 20.0) -> None:
    end = time.monotonic() + timeout
    while text not in manager.log:
        assert manager.process.poll() is None, manager.log
        assert time.monotonic() < end, f"no {text!r} in {manager.log}"
        time.sleep(0.02)


def test_a_mailbox_that_was_removed_is_made_anew(started: Callable[..., Running]) -> None:
    manager = started()
    shutil.rmtree(manager.ipc)
    wait_for_log(manager, "the mailbox failed")
    manager.wait_until_up()


@pytest.mark.parametrize("command", ["store.publish", "store.extend"])
def test_a_request_that_no_store_can_hold_kills_nobody(started: Callable[..., Running], command: str) -> None:
    manager = started()
    terms = [300.0, 1024, 2**63]
    message = {"messageId": "m", "timestamp": "2025-01-01T00:00:00Z", "payload": 1}
    payload = {
        "store.publish": {"drafts": [{"queue": "jobs", "message": message, "terms": terms}]},
        "store.extend": {"receipts": ["jobs/m/t"], "seconds": 1e308},
    }[command]
    request = {"requestId": "r", "clientId": "evil", "command": command, "payload": payload}
    draft = manager.ipc / "requests" / "r.tmp"
    draft.touch(0o600)
    draft.write_text(json.dumps(request))
    draft.rename(manager.ipc / "requests" / "r.json")
    assert manager.ask("health")["status"] == "ok"
    answered = manager.ipc / "responses/evil/r.json"  # clients are served in turn: it may come after the other's
    while not answered.exists():
        assert manager.process.poll() is None, manager.log
        time.sleep(0.02)
    answer = json.loads(answered.read_text())
    assert answer["error"]["code"] == "ERR_INVALID_REQUEST"


def test_a_log_whose_folder_is_gone_stops_nothing(started: Callable[..., Running], tmp_path: Path) -> None:
    manager = started("--log-root", "logs")
    shutil.rmtree(tmp_path / "logs")
    manager.signal(signal.SIGHUP)
    wait_for_log(manager, "FileNotFoundError")
    assert manager.ask("health")["status"] == "ok"


@pytest.mark.parametrize("text", [None, "queues = " + "[" * 20_000])
def test_a_configuration_that_is_gone_or_absurd_is_not_taken_over(
    started: Callable[..., Running], tmp_path: Path, text: str | None
) -> None:
    config = tmp_path / "pabal.toml"
    config.write_text('[[queues]]\nname = "jobs"\n')
    manager = started()
    if text is None:
        config.unlink()
    else:
        config.write_text(text)
    manager.signal(signal.SIGHUP)
    wait_for_log(manager, "configuration not reloaded")
    assert manager.ask("queues")["queues"] == ["jobs"]


def test_a_reload_while_the_store_fails_is_kept_until_it_is_back(
    started: Callable[..., Running], tmp_path: Path
) -> None:
    manager = started()
    before = resource.prlimit(manager.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(manager.pid, resource.RLIMIT_NOFILE, (8, before[1]))
    (manager.ipc / "requests" / "r.json").write_text("{}")
    wait_for_log(manager, "failed: ")
    (tmp_path / "pabal.toml").write_text('[[queues]]\nname = "late"\n')
    manager.signal(signal.SIGHUP)
    resource.prlimit(manager.pid, resource.RLIMIT_NOFILE, before)
    wait_for_log(manager, "configuration reloaded")
    assert manager.ask("queues")["queues"] == ["late"]


def test_two_roots_cannot_share_a_mailbox(started: Callable[..., Running], tmp_path: Path) -> None:
    (tmp_path / "pabal.toml").write_text('[ipc]\nroot = ".pabal/ipc"\n')
    started()
    other = [*PABAL, "up", "--root", "other"]
    found = subprocess.run(other, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert found.returncode == 6 and "AlreadyRunning: the mailbox" in found.stderr, found.stderr
