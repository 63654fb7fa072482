"""A coordinator of its own with a clock that stands still, and the messages that it sends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pabal.apps.ignite import types
from pabal.apps.ignite.coordinator.decisions import Decisions
from pabal.apps.ignite.coordinator.records import Outgoing, Roster, Status, Task
from pabal.apps.ignite.coordinator.role import Sweep
from pabal.ids import IdMaker
from pabal.message import Message
from pabal.sql.sqlite import Database
from pabal.testing import ManualClock

WORKERS = ("ignitian_1", "ignitian_2", "ignitian_3")
AGENTS = frozenset({"leader", "strategist", "architect", "evaluator", "coordinator", "innovator", *WORKERS})


class Office:
    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.database = Database(folder / "memory.db", prepare=lambda db: None, committed=lambda rings: None)
        self.decisions = Decisions(self.database)
        self.gone: frozenset[str] = frozenset()
        self.posted: list[tuple[str, Outgoing]] = []
        self._ids = IdMaker(self.clock)
        self.sweep = Sweep(
            self.decisions,
            roster=self.roster,
            died=lambda tasks: {},
            send=self.post,
            clock=self.clock,
            ids=self._ids,
        )

    def roster(self) -> Roster:
        return Roster(AGENTS, WORKERS, "leader", self.gone)

    def post(self, outgoing: Sequence[tuple[str, Outgoing]]) -> None:
        for _, message in outgoing:
            types.check(message.type, message.body)
        self.posted += outgoing

    def message(self, sender: str, type: str, body: dict[str, Any], thread: str = "goal-1") -> Message:
        return Message(id=self._ids(), sender=sender, type=type, body=body, thread_id=thread)

    def take(self, sender: str, type: str, body: dict[str, Any], thread: str = "goal-1") -> list[Outgoing]:
        """Let a message come in; return the outgoing that follow from it."""
        outgoing = self.decisions.decide(self.message(sender, type, body, thread), self.roster(), self.clock.now())
        for message in outgoing:
            types.check(message.type, message.body)
        return outgoing

    def take_list(self, *tasks: dict[str, Any], thread: str = "goal-1") -> list[Outgoing]:
        return self.take("leader", "task_list", {"goal": "A guide", "tasks": list(tasks)}, thread)

    def succeed(self, worker: str, task_id: str, thread: str = "goal-1") -> list[Outgoing]:
        report = {
            "task_id": task_id,
            "title": task_id,
            "status": "success",
            "deliverables": [{"file": f"{task_id}.md"}],
        }
        return self.take(worker, "task_completed", report, thread)

    def fail(self, worker: str, task_id: str, reason: str = "no room") -> list[Outgoing]:
        report = {"task_id": task_id, "title": task_id, "status": "error", "error": {"type": "disk", "message": reason}}
        return self.take(worker, "task_completed", report)

    def round(self) -> list[Outgoing]:
        """Make a round after the usual pause; return what was sent."""
        self.posted = []
        self.clock.advance(5)
        self.sweep.step()
        return [message for _, message in self.posted]

    def task(self, task_id: str, thread: str = "goal-1") -> Task:
        return next(task for task in self.decisions.tasks() if (task.thread, task.task_id) == (thread, task_id))

    def standing(self) -> dict[str, Status]:
        return {task.task_id: task.status for task in self.decisions.tasks()}

    def close(self) -> None:
        self.database.close()


def task(task_id: str, *needs: str, **more: Any) -> dict[str, Any]:
    return {"task_id": task_id, "title": f"Write {task_id}", "dependencies": list(needs), **more}


def sent(outgoing: list[Outgoing], type: str) -> list[Outgoing]:
    return [message for message in outgoing if message.type == type]


def assigned(outgoing: list[Outgoing]) -> dict[str, str]:
    """Return which task each worker was given."""
    return {str(message.body["task_id"]): message.to for message in sent(outgoing, "task_assignment")}
