"""Watchers in a real workspace: their events are mail, once, from them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pabal.apps.ignite.monitor import Monitor
from pabal.apps.ignite.watchers.publish import state_path, watch_loop
from pabal.apps.ignite.watchers.settings import allowed_variables, read_settings
from pabal.apps.ignite.workspace import Workspace
from pabal.errors import InvalidConfig, QueueUnknown
from pabal.message import Message
from pabal.policy.retention import LOOK_SECONDS
from pabal.runtime.wake import FdWatch
from pabal.store import State
from pabal.testing import ManualClock
from tests.apps.ignite.workplace import make_workspace

LINE = '{"key": "k", "type": "%s", "body": {"goal": "g", "text": "t"}, "thread_id": "T", "to": "%s"}'


def watchers(program: str) -> str:
    return f"""
watchers:
  bell:
    kind: command
    interval: 5
    to: strategist
    command: ["{sys.executable}", "-c", "{program}"]
"""


def said(type: str = "user_goal", to: str = "") -> str:
    line = (LINE % (type, to)).replace('"', '\\\\\\"')
    return f'print(\\"{line}\\")'


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[list[Workspace]]:
    workspaces: list[Workspace] = []
    yield workspaces
    for workspace in workspaces:
        workspace.close()


def look(tmp_path: Path, opened: list[Workspace], program: str) -> Workspace:
    workspace = make_workspace(tmp_path / f"team{len(opened)}", more=watchers(program))
    opened.append(workspace)
    watch_loop(workspace, "bell", folder=tmp_path, variables={}).once()
    return workspace


def mail_of(workspace: Workspace, agent: str) -> list[Message]:
    return [entry.message for entry in workspace.queue(agent).browse(State.READY) if entry.message is not None]


def test_an_event_is_mail_from_the_watcher_to_whom_its_settings_name(tmp_path: Path, opened: list[Workspace]) -> None:
    workspace = look(tmp_path, opened, said())
    [message] = mail_of(workspace, "strategist")
    assert (message.sender, message.type, message.thread_id) == ("bell", "user_goal", "T")
    assert message.body == {"goal": "g", "text": "t"}


def test_an_event_may_name_who_hears_of_it(tmp_path: Path, opened: list[Workspace]) -> None:
    workspace = look(tmp_path, opened, said(to="architect"))
    assert len(mail_of(workspace, "architect")) == 1 and not mail_of(workspace, "strategist")


def test_a_watcher_that_died_before_it_remembered_sends_nothing_twice(tmp_path: Path, opened: list[Workspace]) -> None:
    workspace = look(tmp_path, opened, said())
    state_path(workspace, "bell").unlink()
    watch_loop(workspace, "bell", folder=tmp_path, variables={}).once()
    assert len(mail_of(workspace, "strategist")) == 1


@pytest.mark.parametrize(("ends", "known"), [("done", 86000.0), ("removed", 250.0)])
def test_the_id_of_an_event_is_known_for_as_long_as_the_page_says(tmp_path: Path, ends: str, known: float) -> None:
    """Its message being done, for the day that it is kept; its file being removed, for five minutes."""
    clock = ManualClock()
    with make_workspace(tmp_path / "team", more=watchers(said()), clock=clock) as workspace:
        table = FdWatch()
        monitor = Monitor(workspace, watch=table, folder=tmp_path)

        def tell() -> int:
            state_path(workspace, "bell").unlink(missing_ok=True)  # killed before it could write this
            watch_loop(workspace, "bell", folder=tmp_path, variables={}).once()
            for _ in range(5):
                monitor.step()
                table.wait(0.01)
            return len(workspace.held("strategist"))

        assert tell() == 1
        if ends == "done":
            workspace.delivery(workspace.held("strategist")[0]).ack()
        else:
            os.unlink(workspace.held("strategist")[0].path)
        clock.advance(known)
        assert tell() == 0
        clock.advance(500.0)
        workspace.queue("strategist").sweep()
        clock.advance(LOOK_SECONDS)
        workspace.queue("strategist").sweep()
        assert tell() == 1
        monitor.close()
        table.close()


@pytest.mark.parametrize("line", [said("no_such_type"), said("help_request"), said(to="nobody")])
def test_an_event_that_is_no_message_is_told_to_the_leader_and_holds_nothing_up(
    tmp_path: Path, opened: list[Workspace], line: str
) -> None:
    workspace = look(tmp_path, opened, line)
    [message] = mail_of(workspace, "leader")
    assert message.type == "escalation" and message.sender == "bell"
    assert watch_loop(workspace, "bell", folder=tmp_path, variables={}).once() == 0


@pytest.mark.parametrize(
    ("more", "error", "reason"),
    [
        ("  w: {kind: comet}", InvalidConfig, "files, github, command"),
        ("  w: {kind: files}", InvalidConfig, "folders"),
        ("  w: {kind: files, folders: [x], colour: red}", InvalidConfig, "colour"),
        ("  w: {kind: command, command: []}", InvalidConfig, "a program"),
        ("  w: {interval: 1}", InvalidConfig, "kind"),
        ("  w: {kind: files, folders: [x], interval: 0}", InvalidConfig, "interval"),
        ("  w: {kind: files, folders: [x], to: nobody}", QueueUnknown, "nobody"),
        ("  W-1: {kind: files, folders: [x]}", InvalidConfig, "small letters"),
        ("  other: {kind: files, folders: [x]}", InvalidConfig, "there are other"),
    ],
)
def test_settings_that_cannot_be_used_are_named(
    tmp_path: Path, opened: list[Workspace], more: str, error: type[Exception], reason: str
) -> None:
    workspace = make_workspace(tmp_path / "team", more=f"watchers:\n{more}\n")
    opened.append(workspace)
    name = "W-1" if "W-1" in more else "w"
    with pytest.raises(error, match=reason):
        watch_loop(workspace, name, folder=tmp_path, variables={})


def test_a_watcher_sees_only_the_variables_it_may(tmp_path: Path, opened: list[Workspace]) -> None:
    more = """
watchers:
  w: {kind: command, command: [x], variables: [WANTED]}
  github_watcher: {kind: github, repositories: [o/r]}
"""
    workspace = make_workspace(tmp_path / "team", more=more)
    opened.append(workspace)
    given = {"PATH": "/bin", "WANTED": "yes", "GITHUB_TOKEN": "t", "AWS_SECRET": "s"}
    assert set(allowed_variables(workspace.team, "w", given)) == {"PATH", "WANTED"}
    assert set(allowed_variables(workspace.team, "github_watcher", given)) == {"PATH", "GITHUB_TOKEN"}


def test_a_watcher_tells_the_leader_once_a_minute_unless_said_otherwise(
    tmp_path: Path, opened: list[Workspace]
) -> None:
    workspace = make_workspace(tmp_path / "team", more="watchers:\n  w: {kind: files, folders: [x]}\n")
    opened.append(workspace)
    settings = read_settings(workspace.team, "w")
    assert (settings.to, settings.interval, settings.enabled, settings.auto_start) == ("leader", 60, True, True)
