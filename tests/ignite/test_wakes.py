"""Ways to wake: each reaches its agent with the path alone, and says so when it cannot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from pabal.errors import WakeFailed
from pabal.ignite import wakes
from pabal.ignite.team import Agent
from pabal.ignite.wakes import Surroundings, Turn
from pabal.message import Message
from pabal.store import Receipt, State
from tests.ignite.conftest import Lay
from tests.ignite.table import COMMAND, soon

EVIL = "'; touch /tmp/owned; $(touch /tmp/owned) `touch /tmp/owned`\n"


def turn(tmp_path: Path, **about: Any) -> Turn:
    message = Message(id="m-1", type="user_goal", body={"goal": EVIL}, sender="user", created_at=1.0)
    path = str(tmp_path / "queue/worker/processed/user_goal_1~a1~l0.mime")
    return Turn("worker", Agent(**about), path, Receipt("worker", "m-1", "0"), message, 1)


def surroundings(tmp_path: Path) -> Surroundings:
    for part in ("logs", "state/hooks"):
        (tmp_path / part).mkdir(parents=True, exist_ok=True)
    return Surroundings(tmp_path, tmp_path, dict(os.environ))


@contextmanager
def server(status: int) -> Iterator[tuple[str, list[Any]]]:
    heard: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Keep quiet."""

    found = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{found.server_port}/wake", heard
    finally:
        found.shutdown()
        thread.join()
        found.server_close()


def test_a_webhook_hears_the_path_and_never_the_text(tmp_path: Path) -> None:
    with server(204) as (url, heard):
        wakes.load("webhook")(surroundings(tmp_path)).wake(turn(tmp_path, url=url))
    assert heard[0]["path"].endswith(".mime") and "touch" not in json.dumps(heard)


def test_a_webhook_that_refuses_or_is_elsewhere_has_not_woken(tmp_path: Path) -> None:
    wake = wakes.load("webhook")(surroundings(tmp_path))
    with server(500) as (url, _), pytest.raises(WakeFailed, match="500"):
        wake.wake(turn(tmp_path, url=url))
    for url in ("http://example.org/", "https://127.0.0.1/", "http://10.0.0.1:80/", "file:///etc/passwd", ""):
        with pytest.raises(WakeFailed, match="on this machine"):
            wake.wake(turn(tmp_path, url=url))


def test_a_hook_touches_its_file_and_ends_a_wait_at_once(lay: Lay) -> None:
    table = lay()
    waiting = subprocess.Popen(
        [*COMMAND, "ignite", "--root", str(table.root), "inbox", "worker", "--wait", "30"], stdout=subprocess.PIPE
    )
    try:
        assert soon(lambda: (table.root / "state/beats/worker").exists())
        table.send()
        held = table.hand()
        out, _ = waiting.communicate(timeout=30)
        assert out.decode().strip() == held.path and waiting.returncode == 0
    finally:
        waiting.kill()
        waiting.wait()


def test_text_of_a_message_is_never_part_of_a_command(tmp_path: Path) -> None:
    place = surroundings(tmp_path)
    wake = wakes.load("exec")(place)
    spy = tmp_path / "spy.sh"
    spy.write_text('#!/bin/sh\necho "$@" > args\nenv > env\ncat > stdin\n')
    spy.chmod(0o755)
    given = turn(tmp_path, command=("./spy.sh", "fixed"))
    wake.wake(given)
    assert isinstance(wake, wakes.Running)
    assert soon(lambda: wake.ending(given))
    assert wake.ending(given) == wakes.Ending("done")
    wake.stop(given)
    assert (tmp_path / "args").read_text() == "fixed\n"
    assert "touch" not in (tmp_path / "env").read_text()
    assert "PYTEST_CURRENT_TEST" not in (tmp_path / "env").read_text()  # only variables that are named
    assert json.loads((tmp_path / "stdin").read_text())["body"] == {"goal": EVIL}
    assert not Path("/tmp/owned").exists()


def test_a_command_that_is_not_there_has_not_woken(tmp_path: Path, lay: Lay) -> None:
    wake = wakes.load("exec")(surroundings(tmp_path))
    for command in ((), ("no-such-program-at-all",), ("./not-there",)):
        with pytest.raises(WakeFailed):
            wake.wake(turn(tmp_path, command=command))
    table = lay("agents: {leader: {wake: hook}, worker: {wake: exec, command: [./gone]}}\nretry: {limit: 1}")
    [sent] = table.send()
    table.until(lambda: table.state(sent.id) is State.DEAD)


def test_a_slow_wake_does_not_hold_up_others(lay: Lay) -> None:
    class Slow(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            time.sleep(1.0)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Keep quiet."""

    found = HTTPServer(("127.0.0.1", 0), Slow)
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{found.server_port}/"
        table = lay(f"agents: {{leader: {{wake: hook}}, worker: {{wake: webhook, url: '{url}'}}}}")
        table.send("worker"), table.send("leader")
        began = time.monotonic()
        table.until(lambda: table.workspace.held("leader"))
        assert time.monotonic() - began < 1.0
        table.hand("worker")
    finally:
        found.shutdown()
        thread.join()
        found.server_close()


@pytest.mark.skipif(shutil.which("tmux") is None and not os.environ.get("CI"), reason="tmux is not installed")
def test_tmux_types_the_path_into_the_pane(tmp_path: Path) -> None:
    socket_folder = tmp_path / "tmux"
    socket_folder.mkdir()
    variables = {**os.environ, "TMUX_TMPDIR": str(socket_folder)}
    variables.pop("TMUX", None)
    subprocess.run(["tmux", "new-session", "-d", "-s", "team", "cat > typed"], env=variables, cwd=tmp_path, check=True)
    try:
        wake = wakes.load("tmux")(Surroundings(tmp_path, tmp_path, variables))
        given = turn(tmp_path, pane="team:0.0")
        wake.wake(given)
        assert soon(lambda: (tmp_path / "typed").read_text() == f"new message: {given.path}\n")
        assert wake.alive(given)
        with pytest.raises(WakeFailed, match="tmux"):
            wake.wake(turn(tmp_path, pane="nobody:0.0"))
    finally:
        subprocess.run(["tmux", "kill-server"], env=variables, check=False)
