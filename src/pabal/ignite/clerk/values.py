"""What the clerk works with: a task, a letter to be sent, who is in the team."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from pabal.jsontext import Json

EVALUATOR = "evaluator"
WORKER = "ignitian"  # the name, before its number, of those that work on tasks


class Status(StrEnum):
    """Where a task stands."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A task of a list. `work` is what the list says of it, `result` what its worker reported last."""

    thread: str
    task_id: str
    place: int
    title: str
    status: Status = Status.QUEUED
    priority: str = "normal"
    assigned_to: str = ""  # of a queued one: who had it last
    delegated_by: str = ""
    repository: str = ""
    issue_number: str = ""
    dependencies: tuple[str, ...] = ()
    work: dict[str, Any] = {}
    result: dict[str, Any] | None = None
    tries: int = 0
    started_at: float = 0.0
    touched_at: float = 0.0
    completed_at: float = 0.0


class Letter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that the coordinator will send, before it is a message."""

    to: str
    type: str
    body: dict[str, Json]
    priority: str = "normal"
    thread_id: str = ""
    in_reply_to: str = ""
    repository: str = ""
    issue: str = ""
    id: str = ""  # of the message, where somebody will ask what became of it


class Roster(NamedTuple):
    """Who is in the team: all agents, those that work on tasks, and those that are gone for now."""

    agents: frozenset[str]
    workers: tuple[str, ...]
    leader: str
    gone: frozenset[str] = frozenset()


def letter_about(task: Task, to: str, type: str, body: dict[str, Json], priority: str = "normal") -> Letter:
    """Return a letter in the task's thread."""
    return Letter(
        to=to,
        type=type,
        body=body,
        priority=priority,
        thread_id=task.thread,
        repository=task.repository,
        issue=task.issue_number,
    )
