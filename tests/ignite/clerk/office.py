"""A coordinator's desk of its own with a clock that stands still, and the letters it writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pabal.ids import IdMaker
from pabal.ignite import types
from pabal.ignite.clerk.desk import Desk
from pabal.ignite.clerk.rounds import Rounds
from pabal.ignite.clerk.values import Letter, Roster, Status, Task
from pabal.message import Message
from pabal.sql.sqlite import Database
from pabal.testing import ManualClock

WORKERS = ("ignitian_1", "ignitian_2", "ignitian_3")
AGENTS = frozenset({"leader", "strategist", "architect", "evaluator", "coordinator", "innovator", *WORKERS})


class Office:
    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.database = Database(folder / "memory.db", prepare=lambda db: None, committed=lambda rings: None)
        self.desk = Desk(self.database)
        self.gone: frozenset[str] = frozenset()
        self.posted: list[tuple[str, Letter]] = []
        self.rounds = Rounds(self.desk, roster=self.roster, died=lambda tasks: {}, send=self.post, clock=self.clock)
        self._ids = IdMaker(self.clock)

    def roster(self) -> Roster:
        return Roster(AGENTS, WORKERS, "leader", self.gone)

    def post(self, letters: Sequence[tuple[str, Letter]]) -> None:
        for _, letter in letters:
            types.check(letter.type, letter.body)
        self.posted += letters

    def message(self, sender: str, type: str, body: dict[str, Any], thread: str = "goal-1") -> Message:
        return Message(id=self._ids(), sender=sender, type=type, body=body, thread_id=thread)

    def take(self, sender: str, type: str, body: dict[str, Any], thread: str = "goal-1") -> list[Letter]:
        """Let a message come in; return the letters that follow from it."""
        letters = self.desk.decide(self.message(sender, type, body, thread), self.roster(), self.clock.now())
        for letter in letters:
            types.check(letter.type, letter.body)
        return letters

    def take_list(self, *tasks: dict[str, Any], thread: str = "goal-1") -> list[Letter]:
        return self.take("leader", "task_list", {"goal": "A guide", "tasks": list(tasks)}, thread)

    def succeed(self, worker: str, task_id: str, thread: str = "goal-1") -> list[Letter]:
        report = {
            "task_id": task_id,
            "title": task_id,
            "status": "success",
            "deliverables": [{"file": f"{task_id}.md"}],
        }
        return self.take(worker, "task_completed", report, thread)

    def fail(self, worker: str, task_id: str, reason: str = "no room") -> list[Letter]:
        report = {"task_id": task_id, "title": task_id, "status": "error", "error": {"type": "disk", "message": reason}}
        return self.take(worker, "task_completed", report)

    def round(self) -> list[Letter]:
        """Make a round after the usual pause; return what was sent."""
        self.posted = []
        self.clock.advance(5)
        self.rounds.step()
        return [letter for _, letter in self.posted]

    def task(self, task_id: str, thread: str = "goal-1") -> Task:
        return next(task for task in self.desk.tasks() if (task.thread, task.task_id) == (thread, task_id))

    def standing(self) -> dict[str, Status]:
        return {task.task_id: task.status for task in self.desk.tasks()}

    def close(self) -> None:
        self.database.close()


def task(task_id: str, *needs: str, **more: Any) -> dict[str, Any]:
    return {"task_id": task_id, "title": f"Write {task_id}", "dependencies": list(needs), **more}


def sent(letters: list[Letter], type: str) -> list[Letter]:
    return [letter for letter in letters if letter.type == type]


def assigned(letters: list[Letter]) -> dict[str, str]:
    """Return which task each worker was given."""
    return {str(letter.body["task_id"]): letter.to for letter in sent(letters, "task_assignment")}
