"""The examples run as their pages say, with real processes, and survive what they say they survive."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pabal.ignite import mail
from pabal.ignite.clerk.desk import Desk
from pabal.ignite.clerk.values import Status
from pabal.ignite.workspace import Workspace
from pabal.store import State
from tests.cli.command import COMMAND
from tests.services.postgres import PostgresServer
from tests.test_docs import blocks_of, commands_of, matches, run

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
    tasks = Desk(workspace.memory.database).tasks()
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
        tries = {task.task_id: task.tries for task in Desk(workspace.memory.database).tasks()}
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
