"""The examples run as their pages say, with real processes, and survive what they say they survive."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import pabal
from pabal.apps.ignite import mail
from pabal.apps.ignite.coordinator.decisions import Decisions
from pabal.apps.ignite.coordinator.records import Status
from pabal.apps.ignite.workspace import Workspace
from pabal.cli.text import width
from pabal.store import State
from tests.cli.command import COMMAND
from tests.services.postgres import PostgresServer, free_port
from tests.test_docs import blocks_of, commands_of, matches, run
from tests.waiting import until

TEAM = Path(__file__).parent.parent / "examples" / "ignite-team"
ALL = ["leader", "strategist", "architect", "evaluator", "innovator", "coordinator"] + [
    f"ignitian_{number}" for number in (1, 2, 3)
]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A copy of the example; whoever still serves it at the end is stopped."""
    place = tmp_path / "ignite-team"
    shutil.copytree(TEAM, place, ignore=shutil.ignore_patterns("__pycache__", ".ignite", "work"))
    (place / ".ignite").mkdir()
    shutil.copy(place / "team.yaml", place / ".ignite" / "team.yaml")
    yield place
    subprocess.run([*COMMAND, "ignite", "down"], cwd=place, capture_output=True)


class Server:
    """`pabal ignite up` as a process."""

    def __init__(self, place: Path) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.process = subprocess.Popen(
            [*COMMAND, "ignite", "up"], cwd=place, env={**os.environ, "PATH": path}, stdout=subprocess.DEVNULL
        )

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


def reached(place: Path, patience: float) -> bool:
    end = time.monotonic() + patience
    while not (place / "work" / "result.md").exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def settled(workspace: Workspace, patience: float = 100.0) -> bool:
    """Wait until nobody has or expects any mail."""
    end = time.monotonic() + patience
    while any(open_mail(workspace, name) for name in ALL):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def open_mail(workspace: Workspace, name: str) -> int:
    counts = workspace.queue(name).counts()
    return sum(counts[state] for state in (State.READY, State.DELAYED, State.INFLIGHT))


def check_outcome(place: Path, workspace: Workspace) -> None:
    assert settled(workspace)
    for name in ALL:
        counts = workspace.queue(name).counts()
        assert (counts[State.DEAD], counts[State.CORRUPT]) == (0, 0), name
    tasks = Decisions(workspace.memory.database).tasks()
    assert [task.task_id for task in tasks] == ["chapter_1", "chapter_2", "chapter_3", "guide"]
    assert {task.status for task in tasks} == {Status.COMPLETED}
    guide = (place / "work" / "guide.md").read_text()
    assert guide.count("## Summary") == 3
    assert "Contents: Chapter 1: Horses; Chapter 2: Stations; Chapter 3: Letters" in guide


def test_the_page_of_the_ignite_team_is_true(place: Path) -> None:
    shutil.rmtree(place / ".ignite")
    for block in blocks_of(place / "README.md"):
        for command, shown in commands_of(block) if block.kind == "console" else []:
            printed = run(["bash", "-c", command], place)
            assert matches(shown, printed), f"$ {command}\nshown:\n{shown}\nprinted:\n{printed}"


def test_the_ignite_team_takes_a_goal_to_an_evaluated_result(place: Path) -> None:
    with Workspace.open(place / ".ignite") as workspace:
        workspace.prepare()
        mail.send(workspace, sender="user", to="leader", type="user_goal", body={"goal": "a guide"}, thread_id="goal")
        server = Server(place)
        assert reached(place, 150)
        check_outcome(place, workspace)
        assert server.end(signal.SIGTERM) == 0
        tries = {task.task_id: task.tries for task in Decisions(workspace.memory.database).tasks()}
        assert tries["chapter_2"] == 2  # it was sent back once


def test_the_ignite_team_works_with_its_mail_on_a_server(place: Path, postgres: PostgresServer) -> None:
    team = place / ".ignite" / "team.yaml"
    with postgres.schema() as schema:
        team.write_text(f"{team.read_text()}\nqueues: {postgres.url}?schema={schema}\n")
        with Workspace.open(place / ".ignite") as workspace:
            workspace.prepare()
            body = {"goal": "a guide"}
            mail.send(workspace, sender="user", to="leader", type="user_goal", body=body, thread_id="goal")
            server = Server(place)
            assert reached(place, 150)
            check_outcome(place, workspace)
            assert server.end(signal.SIGTERM) == 0


def test_the_ignite_team_reaches_its_goal_though_all_of_it_is_killed_again_and_again(place: Path) -> None:
    team = place / ".ignite" / "team.yaml"
    # Every kill is a failed try of whatever ran.
    team.write_text(team.read_text().replace("limit: 3, base: 1", "limit: 20, base: 0.1"))
    with Workspace.open(place / ".ignite") as workspace:
        workspace.prepare()
        mail.send(workspace, sender="user", to="leader", type="user_goal", body={"goal": "a guide"}, thread_id="goal")
        for _ in range(6):
            server = Server(place)
            reached(place, 1.5)
            server.end(signal.SIGKILL)
        server = Server(place)
        assert reached(place, 150)
        check_outcome(place, workspace)
        assert server.end(signal.SIGTERM) == 0


# The demo of a queue

DEMO = Path(__file__).parent.parent / "examples" / "demo"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(DEMO)
    return import_module


class Events:
    """A screen that keeps what it was asked to show."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def event(self, scene: object, tone: str, text: str) -> None:
        self.shown.append(text)


def test_the_demo_accounts_for_every_message(demo: Callable[[str], ModuleType], tmp_path: Path) -> None:
    url, screen = f"sqlite:{tmp_path}/demo.db", Events()
    with pabal.connect(url) as mq:
        scenario = demo("scenario").Scenario(mq, url, screen)
        queue = mq.queue("demo")
        for id in ("mail-001", "flaky-005", "broken-015"):
            queue.publish(1, id=id)
            scenario._inbox.put({"event": "published", "id": id})
        first, second, third = queue.lease(3)
        first.ack()
        third.bury("no such address")
        scenario._inbox.put({"event": "failed", "id": "flaky-005", "attempt": 1, "reason": "reset", "dead": False})
        scenario._inbox.put({"event": "failed", "id": "broken-015", "attempt": 3, "reason": "bad", "dead": True})
        scenario._inbox.put({"event": "took", "id": "slow-001", "attempt": 2})
        scenario._take_events()
        assert scenario.summary()[1] == "3 published: 1 done, 1 inflight, 1 dead; 0 lost."
        second.ack()
        assert scenario.summary()[1] == "3 published: 2 done, 1 dead; 0 lost."
        scenario._inbox.put({"event": "published", "id": "mail-002"})
        scenario._take_events()
        assert scenario.summary()[1] == "4 published: 2 done, 1 dead, 1 lost; LOST SOME."
    assert screen.shown == [
        "flaky-005 failed at attempt 1, reset: again in 1.5s",
        "broken-015 failed at attempt 3, bad: set aside as dead",
        "slow-001 came back when its lease ran out: attempt 2",
    ]


def test_the_demo_suggests_commands_that_work(tmp_path: Path) -> None:
    printed = run([sys.executable, str(DEMO / "demo.py"), "--seconds", "1"], tmp_path)
    assert re.search(r"\d+ published: .*; 0 lost\.", printed) and "\x1b" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    suggested = [line.split("  ")[1] for line in printed.splitlines() if line.startswith("  pabal ")]
    assert [line.split()[1] for line in suggested] == ["list-dlq", "reprocess", "consume"]
    for line in suggested:
        assert (
            "no queue"
            not in subprocess.run(
                [*COMMAND, *line.split()[1:], "--url", "sqlite:.pabal/demo/pabal.db"],
                cwd=tmp_path,
                capture_output=True,
                text=True,
            ).stderr
        )


def test_the_demo_ends_with_sigterm_and_leaves_no_process_behind(tmp_path: Path) -> None:
    command = [sys.executable, str(DEMO / "demo.py"), "--seconds", "60"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as running:
        listed = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        until(lambda: len(listed.read_text().split()) == 2)
        children = listed.read_text().split()
        second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert second.returncode == 2 and "another demo is running" in second.stderr
        running.terminate()
        assert running.wait(timeout=30) == 143
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


def test_the_frame_of_the_demo_is_a_rectangle(demo: Callable[[str], ModuleType]) -> None:
    view = demo("view")
    scene = view.Scene("sqlite:/a/very/long/place/indeed/that/does/not/fit/in/the/title/of/the/frame.db", elapsed=12.3)
    scene.counts = {State.READY: 10**9, State.DEAD: 1}
    scene.worker = "worker 123456"
    for number in range(30):
        scene.events.append((number, "bad", "x" * number * 5))
    lines = view.frame(scene)
    assert {width(line) for line in lines} == {78}
    assert len(lines) == len(view.frame(view.Scene("u")))


class Web:
    """The FastAPI example as a process."""

    def __init__(self, place: Path, port: int) -> None:
        app = Path(__file__).parent.parent / "examples" / "fastapi-jobs"
        command = [sys.executable, "-m", "uvicorn", "--app-dir", str(app), "app:app", "--port", str(port)]
        self._url = f"http://127.0.0.1:{port}/jobs"
        self.process = subprocess.Popen([*command, "--log-level", "warning"], cwd=place)
        until(self._answers)

    def _answers(self) -> bool:
        try:
            self.get("nobody")
        except urllib.error.HTTPError as exc:
            return exc.code == 404
        except OSError:
            return False
        return True

    def get(self, id: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self._url}/{id}", timeout=30) as answer:
            return json.load(answer)  # type: ignore[no-any-return]

    def post(self, job: dict[str, Any]) -> str:
        request = urllib.request.Request(
            self._url, json.dumps(job).encode(), {"content-type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 202
            return str(json.load(answer)["id"])

    def state(self, id: str) -> str:
        return str(self.get(id)["state"])


def test_jobs_of_the_web_service_survive_its_kill(tmp_path: Path) -> None:
    port = free_port()
    web = Web(tmp_path, port)
    try:
        with pabal.connect(f"sqlite:{tmp_path}/jobs.db") as mq:
            mq.queue("jobs").configure(pabal.Policy(visibility=2, retry=pabal.RetryPolicy(limit=3, initial=0, max=0)))
        quick = [web.post({"n": n}) for n in range(20)]
        until(lambda: all(web.state(id) == "done" for id in quick))
        bad, slow = web.post({"fail": True}), [web.post({"seconds": 1}) for _ in range(5)]
        until(lambda: web.state(bad) == "dead")
        assert "cannot be done" in web.get(bad)["failure"]
        web.process.kill()
        web.process.wait()
        web = Web(tmp_path, port)
        until(lambda: all(web.state(id) == "done" for id in slow))
        waiting = web.post({"seconds": 30})
        until(lambda: web.state(waiting) == "inflight")
        web.process.terminate()
        assert web.process.wait(30) == -signal.SIGTERM or web.process.returncode == 0
        with pabal.connect(f"sqlite:{tmp_path}/jobs.db") as mq:
            assert mq.queue("jobs").counts()[State.READY] == 1
    finally:
        web.process.kill()
        web.process.wait()


def test_the_thumbnails_are_made_by_supervised_processes(tmp_path: Path) -> None:
    example = Path(__file__).parent.parent / "examples" / "thumbnails" / "thumbnails.py"
    shutil.copy(example, tmp_path)
    pixels = bytes(range(256)) * 3 * 100  # 320 × 80
    for name in ("a", "b"):
        (tmp_path / f"{name}.ppm").write_bytes(b"P6\n320 80\n255\n" + pixels)
    names = ["a.ppm", "b.ppm", "missing.ppm"]
    subprocess.run([sys.executable, "thumbnails.py", *names], cwd=tmp_path, check=True, capture_output=True)
    again = subprocess.run([sys.executable, "thumbnails.py", "a.ppm"], cwd=tmp_path, capture_output=True, text=True)
    assert "waits already" in again.stdout
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen([*COMMAND, "work", "thumbnails:app", "--processes", "2"], cwd=tmp_path, stderr=log)
    try:
        thumbs = [tmp_path / "thumbs" / f"{name}-64.ppm" for name in ("a", "b")]
        until(lambda: all(path.exists() for path in thumbs))
        assert (
            thumbs[0].read_bytes().startswith(b"P6\n64 16\n255\n") and len(thumbs[0].read_bytes()) == 13 + 64 * 16 * 3
        )
        with pabal.connect(f"sqlite:{tmp_path}/thumbnails.db") as mq:
            assert [each.name for each in mq.schedules()] == ["nightly"]
            mq.queue("cleaning").publish({"older_than": time.time() + 60})
        until(lambda: not any(path.exists() for path in thumbs))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0 and b"No such file" in (tmp_path / "log").read_bytes()
    finally:
        process.kill()
        process.wait()
