"""`pabal ignite tasks | coordinate | watch`: the coordinator's turn and books, watchers by hand and with `up`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pabal.apps.ignite import mail
from pabal.apps.ignite.watchers.publish import lock_path
from pabal.apps.ignite.workspace import Workspace
from pabal.message import Message
from pabal.runtime.role_lock import holder
from pabal.store import State
from tests.apps.ignite.workplace import make_workspace
from tests.cli.command import Pabal
from tests.waiting import until

WATCHERS = """
watchers:
  inbox: {kind: files, folders: [inbox], interval: 0.1, settle: 0.2, to: strategist, description: what comes by hand}
  other: {kind: files, folders: [inbox], auto_start: false}
  broken: {kind: command, command: ["/bin/false"], enabled: false}
"""


@pytest.fixture
def workspace(pabal: Pabal) -> Iterator[Workspace]:
    pabal.env["IGNITE_ROOT"] = str(pabal.place / "team")
    (pabal.place / "inbox").mkdir()
    with make_workspace(pabal.place / "team", more=WATCHERS) as workspace:
        yield workspace


def mail_of(workspace: Workspace, agent: str, state: State = State.READY) -> list[Message]:
    return [entry.message for entry in workspace.queue(agent).browse(state) if entry.message is not None]


def send_list(workspace: Workspace, *tasks: dict[str, Any]) -> None:
    body = {"goal": "A guide", "tasks": list(tasks)}
    mail.send(workspace, sender="leader", to="coordinator", type="task_list", body=body, thread_id="g1")


def coordinate(pabal: Pabal, workspace: Workspace) -> str:
    """Take the coordinator's turn as the monitor lets it; return what was printed."""
    [delivery] = workspace.queue("coordinator").lease(1, visibility=3600)
    pabal.env["IGNITE_RECEIPT"] = str(delivery.receipt)
    ran = pabal.run("ignite", "coordinate")
    assert ran.code == 0, ran
    return ran.out


def test_coordinate_answers_and_acknowledges_in_one_step(pabal: Pabal, workspace: Workspace) -> None:
    send_list(
        workspace, {"task_id": "a", "title": "Write a"}, {"task_id": "b", "title": "Write b", "dependencies": ["a"]}
    )
    assert "task_assignment to ignitian_1" in coordinate(pabal, workspace)
    assert not mail_of(workspace, "coordinator", State.INFLIGHT)
    assert [message.type for message in mail_of(workspace, "ignitian_1")] == ["task_assignment"]


def test_coordinate_buries_what_cannot_be_acted_upon_and_the_leader_hears_why(
    pabal: Pabal, workspace: Workspace
) -> None:
    send_list(workspace, {"task_id": "a", "title": "Write a", "dependencies": ["a"]})
    assert "buried" in coordinate(pabal, workspace)
    [entry] = workspace.queue("coordinator").browse(State.DEAD)
    assert entry.failure is not None and "wait for each other" in entry.failure.reason
    [told] = mail_of(workspace, "leader")
    assert told.type == "escalation" and isinstance(told.body, dict)
    assert "wait for each other" in str(told.body["failure_reason"])


def test_coordinate_without_a_message_says_who_runs_it(pabal: Pabal, workspace: Workspace) -> None:
    ran = pabal.run("ignite", "coordinate")
    assert ran.code == 2 and "IGNITE_RECEIPT" in ran.err


def test_tasks_shows_who_has_which(pabal: Pabal, workspace: Workspace) -> None:
    root = ("--root", str(workspace.root))
    assert pabal("ignite", "tasks", *root).code == 1
    send_list(
        workspace, {"task_id": "a", "title": "Write \x1b[31ma"}, {"task_id": "b", "title": "B", "dependencies": ["a"]}
    )
    coordinate(pabal, workspace)
    shown = pabal.ok("ignite", "tasks", *root)
    assert "\x1b" not in shown and "in_progress  ignitian_1" in shown
    [first, second] = pabal("ignite", "tasks", *root, "--json").documents
    assert (first["task_id"], first["assigned_to"], first["tries"]) == ("a", "ignitian_1", 1)
    assert (second["status"], second["dependencies"], second["started_at"]) == ("queued", ["a"], None)
    assert len(pabal("ignite", "tasks", *root, "--json", "--status", "queued").documents) == 1
    assert len(pabal("ignite", "tasks", *root, "--json", "--thread", "g1").documents) == 2
    assert pabal("ignite", "tasks", *root, "--thread", "g2").code == 1


def test_watch_once_sends_what_is_new(pabal: Pabal, workspace: Workspace) -> None:
    assert pabal.run("ignite", "watch", "once", "inbox").out == "0 sent\n"
    path = pabal.place / "inbox" / "note.md"
    path.write_text("x")
    os.utime(path, (time.time() - 5, time.time() - 5))
    assert pabal.run("ignite", "watch", "once", "inbox").out == "1 sent\n"
    [message] = mail_of(workspace, "strategist")
    assert (message.sender, message.type) == ("inbox", "user_goal")


def test_watch_run_goes_on_until_stopped_and_nobody_else_may_look(pabal: Pabal, workspace: Workspace) -> None:
    process = pabal.start("ignite", "watch", "run", "inbox")
    until((workspace.root / "state" / "watchers" / "inbox.json").exists)
    second = pabal.run("ignite", "watch", "once", "inbox")
    assert second.code == 6 and f"pid {process.pid}" in second.err
    listed = {each["name"]: each for each in pabal.run("ignite", "watch", "list", "--json").documents}
    assert listed["inbox"]["pid"] == process.pid and listed["inbox"]["last_check"]
    assert (listed["other"]["pid"], listed["other"]["last_check"], listed["broken"]["enabled"]) == (None, None, False)
    (pabal.place / "inbox" / "note.md").write_text("x")
    until(lambda: mail_of(workspace, "strategist"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    assert "never" in pabal.run("ignite", "watch", "list").out


def test_watch_names_a_watcher_that_is_not_there(pabal: Pabal, workspace: Workspace) -> None:
    ran = pabal.run("ignite", "watch", "once", "nobody")
    assert ran.code == 2 and "there are inbox, other, broken" in ran.err


def test_up_runs_the_watchers_that_start_by_themselves_and_ends_them(pabal: Pabal, workspace: Workspace) -> None:
    process = pabal.start("ignite", "up")
    until((workspace.root / "state" / "watchers" / "inbox.json").exists)
    assert not (workspace.root / "state" / "watchers" / "other.json").exists()
    (pabal.place / "inbox" / "note.md").write_text("x")
    until(lambda: workspace.held("strategist"))
    pid = next(each["pid"] for each in pabal.run("ignite", "watch", "list", "--json").documents if each["pid"])
    os.kill(pid, signal.SIGKILL)  # it comes back
    (pabal.place / "inbox" / "more.md").write_text("x")
    until(lambda: mail_of(workspace, "strategist"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert not any(each["pid"] for each in pabal.run("ignite", "watch", "list", "--json").documents)


def test_up_runs_the_watchers_it_is_told_to(pabal: Pabal, workspace: Workspace) -> None:
    process = pabal.start("ignite", "up", "--with-watcher", "other")
    until((workspace.root / "state" / "watchers" / "other.json").exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert not (workspace.root / "state" / "watchers" / "inbox.json").exists()


def test_a_changed_team_file_changes_the_watchers_that_run(pabal: Pabal, workspace: Workspace) -> None:
    """SIGHUP ends those that left, begins those that came, begins those anew whose settings changed, lets others be."""

    def pid(name: str) -> int | None:
        return holder(lock_path(workspace, name))

    process = pabal.start("ignite", "up")
    until(lambda: pid("inbox"))
    first, team = pid("inbox"), workspace.root / "team.yaml"
    text = team.read_text()
    team.write_text(text.replace("auto_start: false", "interval: 0.1"))
    process.send_signal(signal.SIGHUP)
    until(lambda: pid("other"))
    assert pid("inbox") == first
    team.write_text(text.replace("interval: 0.1, settle: 0.2", "interval: 0.2, settle: 0.1"))
    process.send_signal(signal.SIGHUP)
    until(lambda: pid("other") is None and pid("inbox") not in (None, first))
    team.write_text(text.replace("kind: files, folders: [inbox], interval: 0.1", "interval: 0"))
    process.send_signal(signal.SIGHUP)  # a mistake changes nothing
    until(lambda: "watchers not reloaded" in (workspace.root / "logs" / "queue_monitor.jsonl").read_text())
    assert pid("inbox")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_up_without_watchers_runs_none(pabal: Pabal, workspace: Workspace) -> None:
    process = pabal.start("ignite", "up", "--no-watcher")
    until((workspace.root / "state" / "heartbeat.json").exists)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert not (workspace.root / "state" / "watchers").exists()


def test_the_leader_is_told_once_of_a_watcher_that_never_works(pabal: Pabal, tmp_path: Path) -> None:
    more = "limits: {starts: 1}\nwatchers:\n  w: {kind: files, folders: [x], colour: red}\n"
    pabal.env["IGNITE_ROOT"] = str(tmp_path / "team")
    with make_workspace(tmp_path / "team", more=more) as workspace:
        process = pabal.start("ignite", "up")
        until(lambda: workspace.held("leader"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        told = [*mail_of(workspace, "leader"), *(held.message for held in workspace.held("leader"))]
        assert len(told) == 1 and isinstance(told[0].body, dict)
        assert told[0].body["title"] == "watcher w is gone"
        assert "colour" in (workspace.root / "logs" / "w.log").read_text()
