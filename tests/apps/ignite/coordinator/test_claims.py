"""Agents of any name take tasks themselves: each task has one owner, and a lost claim is ready again."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pabal.apps.ignite import inbox
from pabal.apps.ignite.coordinator.claims import Claims
from pabal.apps.ignite.coordinator.records import Records, Status
from pabal.apps.ignite.coordinator.role import roster_of, sweep_of
from pabal.apps.ignite.team import read_team
from pabal.apps.ignite.workspace import Workspace
from pabal.errors import InvalidConfig, InvalidInput, MessageUnknown, NameTaken
from pabal.store import State
from pabal.testing import ManualClock
from tests.apps.ignite.conftest import Lay
from tests.apps.ignite.table import ignite

TEAM = "agents: {leader: {}, red: {}, blue: {}}"
ALL = f"{TEAM[:-1]}, coordinator: {{}}, evaluator: {{}}}}\nworkers: [blue]"


def test_what_is_ready_is_claimed_released_and_finished(lay: Lay, clock: ManualClock) -> None:
    table = lay(TEAM, clock=clock, serve=False)
    claims = Claims(table.workspace)
    assert claims.ready() == [] and claims.claim("red") is None
    claims.add("schema", sender="leader", task_id="schema")
    claims.add("api", sender="leader", task_id="api", needs=["schema"])
    other = claims.add("docs", sender="leader", priority="high", description="the guide")
    assert [task.task_id for task in claims.ready()] == [other.task_id, "schema"]
    first = claims.claim("red")
    assert first is not None and first.task_id == other.task_id and first.work["description"] == "the guide"
    assert claims.claim("red") == first  # after a crash it gets its own again
    with pytest.raises(NameTaken, match="red has it"):
        claims.claim("blue", other.task_id)
    with pytest.raises(NameTaken, match="api waits for schema"):
        claims.claim("blue", "api")
    with pytest.raises(NameTaken, match="blue has not claimed .*: red has it"):
        claims.finish("blue", other.task_id)
    assert claims.release("red", other.task_id).tries == 0
    with pytest.raises(NameTaken, match="it is queued"):
        claims.release("red", other.task_id)
    assert claims.claim("user", "schema") is not None
    assert claims.finish("user", "schema", notes="in docs").status is Status.COMPLETED
    assert [task.task_id for task in claims.ready()] == [other.task_id, "api"]
    for wrong, error in (
        ({"task_id": "api"}, NameTaken),
        ({"needs": ["nothing"]}, MessageUnknown),
        ({"needs": ["api"], "thread": "other"}, InvalidInput),
        ({"priority": "soon"}, InvalidInput),
        ({"task_id": "a/b"}, InvalidInput),
    ):
        with pytest.raises(error):
            claims.add("x", sender="leader", **wrong)
    with pytest.raises(InvalidInput, match="title"):
        claims.add(" ", sender="leader")


def test_a_claim_without_a_sign_of_life_is_lost_and_escalated_after_three(lay: Lay, clock: ManualClock) -> None:
    table = lay(TEAM, clock=clock, serve=False)
    claims = Claims(table.workspace)
    claims.add("schema", sender="leader", task_id="schema")
    claims.claim("red", "schema")
    clock.advance(1700)
    (table.root / "state/beats/red").touch()
    os.utime(table.root / "state/beats/red", (clock.now(), clock.now()))
    clock.advance(1700)
    with pytest.raises(NameTaken, match="red has it"):  # its beat counts
        claims.claim("blue", "schema")
    clock.advance(1801)
    assert claims.claim("blue", "schema") is not None
    assert claims.finish("blue", "schema", failed="no server").status is Status.QUEUED
    claims.claim("blue")
    assert claims.finish("blue", "schema", failed="no server").status is Status.FAILED
    [told] = inbox.inbox(table.workspace, "leader")
    assert told.type == "escalation" and isinstance(told.body, dict) and "no server" in str(told.body["failure_reason"])


def test_a_task_whose_owner_is_lost_is_ready_and_looking_changes_nothing(lay: Lay, clock: ManualClock) -> None:
    table = lay(f"{TEAM}\nlimits: {{waiting: 1}}", clock=clock, serve=False)
    claims = Claims(table.workspace)
    for name in ("lost", "of_user"):
        claims.add(name, sender="leader", task_id=name)
    claims.claim("red", "lost")
    claims.claim("user", "of_user")
    assert claims.ready() == []
    clock.advance(1900)  # the person gives no signs of life, and keeps the task
    for _ in range(2):
        assert [(task.task_id, str(task.status)) for task in claims.ready()] == [("lost", "queued")]
    # What follows from a task is told when there is room; the task is finished all the same.
    table.send("leader")
    for _ in range(2):
        assert claims.claim("blue", "lost") is not None
        clock.advance(1900)
    assert claims.claim("blue") is None  # failed after three, which the leader will be told
    assert [item.type for item in inbox.inbox(table.workspace, "leader")] == ["task_assignment"]
    table.workspace.store.purge("leader", State.READY, limit=1)
    assert claims.claim("blue") is None
    assert [item.type for item in inbox.inbox(table.workspace, "leader")] == ["escalation"]


def test_of_many_at_once_each_gets_another_task(lay: Lay) -> None:
    table = lay("leader: agent_1\nagents: {agent: {count: 8}}", serve=False)
    claims = Claims(table.workspace)
    for number in range(6):
        claims.add(f"task {number}", sender="agent_1")

    def claim(name: str) -> str:
        with Workspace.open(table.root) as workspace:
            found = Claims(workspace).claim(name)
            return found.task_id if found is not None else ""

    with ThreadPoolExecutor(8) as pool:
        got = [id for id in pool.map(claim, table.workspace.team.agents) if id]
    assert len(got) == len(set(got)) == 6


def test_the_coordinator_and_claims_share_the_tasks(lay: Lay, clock: ManualClock) -> None:
    table = lay(ALL, clock=clock, serve=False)
    assert roster_of(table.workspace).workers == ("blue",)
    claims = Claims(table.workspace)
    for name in ("one", "two"):
        claims.add(name, sender="leader", task_id=name)
    sweep = sweep_of(table.workspace)
    sweep.step()
    assert [(item.type, item.subject) for item in inbox.inbox(table.workspace, "blue")] == [("task_assignment", "one")]
    claims.claim("red")
    claims.finish("red", "two", notes="done")
    assert [item.type for item in inbox.inbox(table.workspace, "evaluator")] == ["evaluation_request"]
    clock.advance(10)
    sweep.step()
    assert "progress_update" in [item.type for item in inbox.inbox(table.workspace, "leader")]


def test_what_follows_from_a_claim_is_sent_by_the_next_one_after_a_crash(
    lay: Lay, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lay(f"{TEAM[:-1]}, evaluator: {{}}}}", serve=False)
    claims = Claims(table.workspace)
    claims.add("one", sender="leader", task_id="one")
    claims.claim("red")
    publish = table.workspace.store.publish

    def die(drafts: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(table.workspace.store, "publish", die)
    with pytest.raises(KeyboardInterrupt):
        claims.finish("red", "one")
    monkeypatch.setattr(table.workspace.store, "publish", publish)
    assert inbox.inbox(table.workspace, "evaluator") == []
    assert claims.claim("blue") is None
    assert [item.type for item in inbox.inbox(table.workspace, "evaluator")] == ["evaluation_request"]
    assert table.workspace.memory.database.read(lambda db: Records(db).outbox()) == []


def test_the_commands_of_tasks(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    root.mkdir()
    (root / "team.yaml").write_text(TEAM)

    def text(*arguments: str, code: int = 0) -> str:
        done = ignite(root, *arguments)
        assert done.returncode == code, done
        return (done.stdout or done.stderr).decode()

    text("init", "--no-teach")
    assert text("task", "add", "write the schema", "--id", "schema", "--agent", "leader") == "schema\n"
    id = text("task", "add", "write the API", "--needs", "schema", "--description", "REST\nv2").strip()
    assert "write the schema" in text("tasks", "--ready") and id not in text("tasks", "--ready")
    assert text("task", "claim", "--agent", "red") == "schema: write the schema\n"
    assert text("tasks", "--ready", code=1) == ""
    assert "schema" in text("tasks", "--agent", "red")
    assert "red has it" in text("task", "claim", "schema", "--agent", "blue", code=2)
    assert text("task", "release", "schema", "--agent", "red") == "released schema\n"
    text("task", "claim", "schema", "--agent", "blue")
    assert text("task", "done", "schema", "--agent", "blue", "--notes", "in docs") == "completed schema\n"
    assert json.loads(text("task", "claim", "--json"))["description"] == "REST\nv2"
    (root / "team.yaml").write_text(f"{TEAM}\nworkers: [nobody]")
    with pytest.raises(InvalidConfig, match="workers: nobody is none"):
        read_team(root / "team.yaml")
