"""The coordinator's turn in a real workspace: a message is handled and answered in one step, or comes again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pabal.apps.ignite import mail
from pabal.apps.ignite.coordinator.role import handle, roster_of, sweep_of
from pabal.apps.ignite.memory import Presence
from pabal.apps.ignite.workspace import Workspace
from pabal.store import State
from pabal.testing import ManualClock
from tests.apps.ignite.workplace import make_workspace


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def workspace(tmp_path: Path, clock: ManualClock) -> Iterator[Workspace]:
    with make_workspace(tmp_path / "team", clock=clock) as workspace:
        yield workspace


def send_list(workspace: Workspace, *tasks: dict[str, Any]) -> None:
    body = {"goal": "A guide", "tasks": list(tasks)}
    mail.send(
        workspace, sender="leader", to="coordinator", type="task_list", body=body, thread_id="g1", repository="o/r"
    )


def task(task_id: str, *needs: str, **more: Any) -> dict[str, Any]:
    return {"task_id": task_id, "title": f"Write {task_id}", "dependencies": list(needs), **more}


def turn(workspace: Workspace) -> None:
    """Do what `pabal ignite coordinate` does with the next message."""
    [delivery] = workspace.queue("coordinator").lease()
    delivery.ack(then=handle(workspace, "coordinator", delivery.message))


def waiting(workspace: Workspace, agent: str) -> list[tuple[str, Any]]:
    entries = workspace.queue(agent).browse(State.READY)
    return [(entry.message.type, entry.message.body) for entry in entries if entry.message is not None]


def test_a_list_becomes_assignments_in_the_queues_of_workers(workspace: Workspace) -> None:
    send_list(workspace, task("a", priority="medium"), task("b"), task("c", "a"))
    turn(workspace)
    assert [body["task_id"] for _, body in waiting(workspace, "ignitian_1")] == ["a"]
    assert [body["task_id"] for _, body in waiting(workspace, "ignitian_2")] == ["b"]
    assert [kind for kind, _ in waiting(workspace, "leader")] == ["progress_update"]
    [entry] = workspace.queue("ignitian_1").browse(State.READY)
    assert entry.message is not None
    assert (entry.message.sender, entry.message.thread_id) == ("coordinator", "g1")
    assert entry.message.headers["X-IGNITE-Repository"] == "o/r"


def test_a_coordinator_that_dies_between_deciding_and_answering_gives_the_same_answer(workspace: Workspace) -> None:
    send_list(workspace, task("a"), task("b"))
    [delivery] = workspace.queue("coordinator").lease()
    handle(workspace, "coordinator", delivery.message)
    delivery.release()
    turn(workspace)
    found = [
        kind for name in ("ignitian_1", "ignitian_2", "ignitian_3", "leader") for kind, _ in waiting(workspace, name)
    ]
    assert found == ["task_assignment", "task_assignment", "progress_update"]


def test_the_team_goes_on_when_its_memory_was_deleted(workspace: Workspace, clock: ManualClock) -> None:
    send_list(workspace, task("a"), task("b", "a"))
    turn(workspace)
    root = workspace.root
    workspace.close()
    for path in (root / "state").glob("memory.db*"):
        path.unlink()
    clock.advance(1.0)
    with Workspace.open(root, clock=clock) as again:
        report = {"task_id": "a", "title": "Write a", "status": "success"}
        mail.send(again, sender="ignitian_1", to="coordinator", type="task_completed", body=report, thread_id="g1")
        turn(again)
        assert [kind for kind, _ in waiting(again, "evaluator")] == ["evaluation_request"]
        send_list(again, task("a"), task("b", "a"))
        turn(again)
        assert [body["task_id"] for _, body in waiting(again, "ignitian_1")] == ["a", "b"]


def test_the_task_of_a_worker_that_is_gone_is_taken_over_in_the_next_round(
    workspace: Workspace, clock: ManualClock
) -> None:
    send_list(workspace, task("a"))
    turn(workspace)
    workspace.memory.note([Presence("ignitian_1", "gone", clock.now())])
    assert roster_of(workspace).gone == {"ignitian_1"}
    rounds = sweep_of(workspace)
    rounds.step()
    assert [kind for kind, _ in waiting(workspace, "ignitian_2")] == ["task_assignment"]
    clock.advance(rounds.next_due())
    rounds.step()
    assert len(waiting(workspace, "ignitian_2")) == 1


def test_a_task_whose_assignment_was_given_up_goes_to_another_worker_in_the_next_round(workspace: Workspace) -> None:
    send_list(workspace, task("a"))
    turn(workspace)
    [delivery] = workspace.queue("ignitian_1").lease()
    rounds = sweep_of(workspace)
    rounds.step()
    assert not waiting(workspace, "ignitian_2")
    delivery.bury("no such tool")
    sweep_of(workspace).step()
    [(kind, body)] = waiting(workspace, "ignitian_2")
    assert kind == "task_assignment"
    assert "ignitian_1 could not handle it: no such tool" in body["previous_failure"]


def test_only_numbered_ignitians_get_tasks_and_in_the_order_of_the_team(workspace: Workspace) -> None:
    assert roster_of(workspace).workers == ("ignitian_1", "ignitian_2", "ignitian_3")
