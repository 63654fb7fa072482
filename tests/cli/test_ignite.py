"""The commands of a team, as its users and agents give them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.apps.ignite.table import COMMAND, Served, Table, ignite, soon

WORK = """
agents:
  leader: {wake: hook}
  worker: {wake: exec, command: [/bin/sh, -c, "%s"]}
retry: {limit: 0}
"""
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def text(root: Path, *arguments: str, code: int = 0) -> str:
    ran = ignite(root, *arguments)
    assert ran.returncode == code, ran
    return (ran.stdout if code in (0, 1) else ran.stderr).decode()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    text(tmp_path / "ws", "init", "--ignitians", "2")
    return tmp_path / "ws"


def test_init_makes_a_tree_that_people_know(root: Path) -> None:
    for agent in ("leader", "coordinator", "ignitian_1", "ignitian_2", "dead_letter"):
        assert (root / "queue" / agent / "processed").is_dir()
    assert "leader" in (root / "team.yaml").read_text()
    (root / "team.yaml").write_text("agents: {leader: {wake: hook}, painter: {wake: hook}}")
    text(root, "init")
    assert (root / "queue/painter").is_dir()


def test_the_script_of_the_original_runs_unchanged(tmp_path: Path) -> None:
    run = {"cwd": tmp_path, "env": {**os.environ, "PATH": PATH}, "check": True, "capture_output": True, "timeout": 60}
    subprocess.run([*COMMAND, "ignite", "--root", "workspace", "init", "--scripts"], **run)  # type: ignore[call-overload]  # as one set of settings
    line = (
        'python3 scripts/lib/ignite_mime.py build --from user --to leader --type user_goal --body "goal: fly" '
        '-o "workspace/queue/leader/user_goal_$(date +%s%6N).mime" && find workspace/queue -name "*.mime" | wc -l'
    )
    done = subprocess.run(["sh", "-c", line], **run)  # type: ignore[call-overload]  # likewise
    assert done.stdout.split() == [b"1"]
    assert len((tmp_path / "scripts/lib/ignite_mime.py").read_text().splitlines()) == 3


def test_a_message_is_sent_awaited_read_and_done(root: Path) -> None:
    served = Served(root)
    try:
        id = text(root, "send", "--to", "leader", "--type", "user_goal", "--body", "goal: fly").strip()
        path = text(root, "inbox", "leader", "--wait", "20").strip()
        assert text(root, "read", "--body", path) == "goal: fly\n"
        assert id in text(root, "inbox", "leader")
        assert json.loads(text(root, "inbox", "leader", "--json"))["id"] == id
        text(root, "beat", "leader")
        assert text(root, "done", id) == f"done {id}\n"
        assert "no agent holds" in text(root, "done", id, code=3)
        assert soon(lambda: "done" in text(root, "inbox", "leader").splitlines()[-1])
        assert text(root, "inbox", "leader", "--wait", "0.1", code=1) == ""
    finally:
        served.stop()


def test_an_answer_is_sent_with_done(root: Path, tmp_path: Path) -> None:
    served = Served(root)
    try:
        text(root, "send", "--to", "ignitian_1", "--type", "task_assignment", "--body", "{task_id: t, title: x}")
        path = text(root, "inbox", "ignitian-1", "--wait", "20").strip()
        answer = tmp_path / "answer.mime"
        subprocess.run(
            [*COMMAND, "mime", "build", "--from", "ignitian_1", "--to", "leader", "--type", "user_goal"]
            + ["--body", "goal: next", "-o", str(answer)],
            check=True,
            timeout=60,
        )
        text(root, "done", path, "--then", str(answer))
        got = text(root, "inbox", "leader", "--wait", "20").strip()
        assert "goal: next" in text(root, "read", got)
        answer.write_text("no mail")
        assert "NotMime" in text(root, "done", got, "--then", str(answer), code=2)
    finally:
        served.stop()


def test_a_failed_message_is_listed_and_replayed(root: Path) -> None:
    served = Served(root)
    try:
        id = text(root, "send", "--to", "ignitian_1", "--type", "task_assignment", "--body", "{task_id: t, title: x}")
        id = id.strip()
        text(root, "inbox", "ignitian_1", "--wait", "20")
        text(root, "fail", id, "--bury", "--reason", "no such task")
        listed = text(root, "dlq")
        assert id in listed and "no such task" in listed
        assert json.loads(text(root, "dlq", "ignitian_1", "--json"))["id"] == id
        assert list(root.glob("queue/dead_letter/*.mime"))
        assert text(root, "replay", id).strip() == id
        assert not list(root.glob("queue/dead_letter/*.mime"))
        assert text(root, "dlq", code=1) == ""
        assert "not among the dead" in text(root, "replay", "nothing", code=3)
        assert text(root, "inbox", "ignitian_1", "--wait", "20")
    finally:
        served.stop()


def test_status_and_top_show_the_team(root: Path) -> None:
    body = ["--type", "user_goal", "--ttl", "1h", "--body", "goal: fly"]
    text(root, "send", "--to", "leader", "--cc", "ignitian-2", *body)
    shown = text(root, "status")
    assert "nobody serves it: 2 messages wait" in shown and "ignitian_2" in shown
    served = Served(root)
    try:
        assert soon(lambda: "busy" in text(root, "status"))
        assert " fly" in text(root, "top")
        document = json.loads(text(root, "status", "--json"))
        assert document["monitor"]["pid"] == served.process.pid  # type: ignore[union-attr]  # it runs
        leader = next(agent for agent in document["agents"] if agent["name"] == "leader")
        assert leader["inflight"] == 1 and leader["presence"]["presence"] == "busy"
        assert soon(lambda: (root / "state/task_health.json").exists())
    finally:
        served.stop()


def test_status_names_a_way_to_wake_that_there_is_not(root: Path) -> None:
    path = root / "team.yaml"
    path.write_text("agents:\n  leader: {wake: hok}\n")
    told = "agents.leader: no way to wake is called 'hok'; there are exec, tmux, hook, webhook"
    assert f"! {told}" in text(root, "status")
    [problem] = json.loads(text(root, "status", "--json"))["problems"]
    assert problem.startswith(told)


def test_up_in_the_background_and_down(root: Path) -> None:
    assert "serving" in text(root, "up", "--detach")
    assert "is served already" in text(root, "up", "--detach", code=6)
    assert "stopped" in text(root, "down")
    assert "nobody serves" in text(root, "down", code=3)
    assert "serving" in text(root, "logs")


def test_a_wake_test_tells_whether_it_worked(tmp_path: Path) -> None:
    table = Table(tmp_path, WORK % "echo here", serve=False)
    table.close()
    assert "woken by exec" in text(table.root, "wake-test", "worker")
    assert "here" in text(table.root, "logs", "worker")
    assert "woken by hook" in text(table.root, "wake-test", "leader")
    (table.root / "team.yaml").write_text(WORK % "exit 3")
    assert "exit status 3" in text(table.root, "wake-test", "worker", code=6)


def test_a_wake_test_runs_a_command_that_settles_its_message(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    root.mkdir()
    work = tmp_path / "work.sh"
    work.write_text(
        f"#!/bin/sh\nset -e\n{shlex.join(COMMAND)} mime build --from worker --to leader --type task_completed"
        f' --body "{{task_id: t, title: x, status: success}}" -o answer.mime\n'
        f'{shlex.join(COMMAND)} ignite $1 $2 "$IGNITE_MESSAGE"\n'
    )
    work.chmod(0o755)
    for words, explicit, code in (
        ("done, --then=answer.mime", "explicit", 0),
        ("read, --body", "explicit", 6),
        ("read, --body", "status", 0),
        ("fail, --reason=no", "status", 6),
    ):
        worker = f"{{wake: exec, command: [./work.sh, {words}], done: {explicit}}}"
        (root / "team.yaml").write_text(f"agents: {{leader: {{}}, worker: {worker}}}")
        text(root, "init", "--no-teach")
        out = text(root, "wake-test", "worker", code=code)
        assert "woken by exec" in out or "pabal ignite" in out
    assert not list(root.glob("queue/leader/*.mime"))


def test_commands_find_the_workspace_from_any_folder_and_worktree(root: Path, tmp_path: Path) -> None:
    def run(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        variables = {**os.environ, **more}
        return subprocess.run(
            [*COMMAND, "ignite", *arguments], cwd=folder, env=variables, capture_output=True, text=True, timeout=60
        )

    project = tmp_path / "project"
    (project / "src/deep").mkdir(parents=True)
    for command in (
        ["init", "-q"],
        ["-c", "user.email=a@b", "-c", "user.name=a", "commit", "-qm", "x", "--allow-empty"],
    ):
        subprocess.run(["git", *command], cwd=project, check=True, timeout=60)
    subprocess.run(["git", "worktree", "add", "-q", str(tmp_path / "tree")], cwd=project, check=True, timeout=60)
    assert run(project, "init", "--no-teach").returncode == 0
    assert subprocess.run(["git", "status", "--short", "-uall"], cwd=project, capture_output=True).stdout.split() == [
        *(b"??", b".ignite/.gitignore"),
        *(b"??", b".ignite/team.yaml"),
    ]
    clone = tmp_path / "clone"
    for place in (tmp_path / "tree", clone):  # the team file may be in git
        shutil.copytree(project / ".ignite", place / ".ignite", ignore=lambda at, names: {*names} - {"team.yaml"})
    for folder in (project / "src/deep", tmp_path / "tree"):
        assert json.loads(run(folder, "status", "--json").stdout)["root"] == str(project / ".ignite")
    for command in (["status"], ["doctor"], ["say", "leader", "x"], ["inbox", "leader"]):
        refused = run(clone, *command)
        assert refused.returncode in (1, 3) and "`pabal ignite init` makes" in refused.stdout + refused.stderr
    assert [path.name for path in clone.rglob("*")] == [".ignite", "team.yaml"]  # nothing is made by looking
    assert run(tmp_path, "status").returncode == 3
    served = Served(project / ".ignite")
    try:
        for to_env in ({}, {"IGNITE_ROOT": str(root)}):
            send = ("send", "--to", "leader", "--type", "user_goal", "--body", "goal: x")
            id = run(tmp_path / "tree", *send).stdout.strip()
            path = run(project, "inbox", "leader", "--wait", "20").stdout.strip()
            done = run(tmp_path, "done", path, **to_env)
            assert done.stdout == f"done {id}\n", done
    finally:
        served.stop()


def test_a_mistake_in_the_team_file_stops_no_command_of_a_running_team(root: Path) -> None:
    served = Served(root)
    try:
        id = text(root, "send", "--to", "leader", "--type", "user_goal", "--body", "goal: fly").strip()
        text(root, "inbox", "leader", "--wait", "20")
        (root / "team.yaml").write_text("agents: {leader: {wakes: hook}}")
        for arguments in (["status"], ["logs"], ["inbox", "leader"], ["beat", "leader"], ["read", id], ["done", id]):
            ran = ignite(root, *arguments)
            assert ran.returncode == 0 and b"wakes" in ran.stderr, ran
        assert served.process is not None
        os.kill(served.process.pid, signal.SIGHUP)
        assert soon(lambda: b"team not reloaded" in (root / "logs/queue_monitor.jsonl").read_bytes())
    finally:
        served.stop()
    assert "wakes" in text(root, "up", code=2)


def test_each_mistake_in_the_team_file_has_a_line(root: Path) -> None:
    (root / "team.yaml").write_text("agents: {painter: {wake: exec}}")
    first, *mistakes = text(root, "status", code=2).splitlines()
    assert first.startswith("pabal: InvalidConfig: 2 mistakes in ")
    assert mistakes == [
        "  agents.painter.command or preset: wake: exec needs one",
        "  leader: leader is none of the agents",
    ]


def test_a_place_that_is_no_workspace_is_named(tmp_path: Path) -> None:
    assert "pabal ignite init" in text(tmp_path / "nowhere", "status", code=3)
    assert not (tmp_path / "nowhere").exists()
