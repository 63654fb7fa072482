"""The coordinator's records: tasks, decisions and outgoing messages, in the tables of the team's database.

Records are read and written inside the transaction of the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from pabal import jsontext
from pabal.jsontext import Json
from pabal.sql.migrate import Runner, migrate

COMPONENT = "coordinator"
EVALUATOR = "evaluator"
WORKER = "ignitian"  # the name of the agents that work on tasks, before its number


class Status(StrEnum):
    """The status of a task."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A task. `work` is the task as its list has it, `result` the last report of its worker."""

    thread: str
    task_id: str
    place: int
    title: str
    status: Status = Status.QUEUED
    priority: str = "normal"
    assigned_to: str = ""  # the worker; of a queued task the last one
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


class Outgoing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that the coordinator is going to send."""

    to: str
    type: str
    body: dict[str, Json]
    priority: str = "normal"
    thread_id: str = ""
    in_reply_to: str = ""
    repository: str = ""
    issue: str = ""
    id: str = ""  # with which the coordinator later finds the outcome of the message


class Roster(NamedTuple):
    """The members of the team: all agents, the workers, the leader, agents that are gone, last signs of life."""

    agents: frozenset[str]
    workers: tuple[str, ...]
    leader: str
    gone: frozenset[str] = frozenset()
    seen: Mapping[str, float] = MappingProxyType({})


def about_task(task: Task, to: str, type: str, body: dict[str, Json], priority: str = "normal") -> Outgoing:
    """Make a message in the thread of a task."""
    return Outgoing(
        to=to,
        type=type,
        body=body,
        priority=priority,
        thread_id=task.thread,
        repository=task.repository,
        issue=task.issue_number,
    )


_COLUMNS = ", ".join(Task.__struct_fields__)
_PLACES = ", ".join("?" for _ in Task.__struct_fields__)
_FORGET_THREADS = """
delete from tasks where thread in (
  select thread from tasks group by thread
  having max(touched_at) < ? and max(completed_at) < ? and sum(status in ('queued', 'in_progress')) = 0)
"""
_JSON = frozenset({"dependencies", "work", "result"})
_outgoing = jsontext.decoder(list[Outgoing])


def prepare(connection: Runner) -> None:
    """Bring the tables up to date, inside a transaction."""
    migrate(connection, COMPONENT, __package__ or "")


class Records:
    """The records within one transaction."""

    def __init__(self, connection: Runner) -> None:
        self._run = connection.execute

    # Tasks

    def put(self, task: Task) -> None:
        """Insert or replace a task."""
        values = [_cell(name, getattr(task, name)) for name in Task.__struct_fields__]
        self._run(f"insert or replace into tasks ({_COLUMNS}) values ({_PLACES})", tuple(values))

    def task(self, thread: str, task_id: str) -> Task | None:
        return next(iter(self._tasks("where thread = ? and task_id = ?", (thread, task_id))), None)

    def thread(self, thread: str) -> list[Task]:
        """Return the tasks of one thread in the order of their lists."""
        return self._tasks("where thread = ? order by place", (thread,))

    def tasks(self, *statuses: Status) -> list[Task]:
        """Return the tasks with one of these statuses, or all, the oldest lists first."""
        which = f"where status in ({', '.join('?' for _ in statuses)})" if statuses else ""
        return self._tasks(f"{which} order by place, task_id", tuple(map(str, statuses)))

    def find_task(self, thread: str, task_id: str, worker: str) -> Task | None:
        """Return the task that a worker means, also if its message names no thread."""
        if (exact := self.task(thread, task_id)) is not None:
            return exact
        alike = self._tasks("where task_id = ? order by place desc", (task_id,))
        own = [task for task in alike if task.assigned_to == worker]
        open_ones = [task for task in own or alike if task.status is Status.IN_PROGRESS]
        return next(iter(open_ones or own or alike), None)

    def last_place(self) -> int:
        return int(self._one("select coalesce(max(place), 0) from tasks") or 0)

    # Decisions and outgoing messages

    def decision_on(self, message_id: str) -> list[Outgoing] | None:
        found = self._one("select outgoing from decisions where message_id = ?", (message_id,))
        return None if found is None else _outgoing(found)

    def add_decision(self, message_id: str, outgoing: list[Outgoing], at: float) -> None:
        text = msgspec.json.encode(outgoing).decode()
        self._run("insert into decisions (message_id, outgoing, at) values (?, ?, ?)", (message_id, text, at))

    def forget(self, *, decisions: float, threads: float) -> None:
        """Remove decisions and finished threads that are older than these instants."""
        self._run("delete from decisions where at < ?", (decisions,))
        self._run(_FORGET_THREADS, (threads, threads))
        for table in ("helps", "proposals"):
            self._run(f"delete from {table} where at < ?", (threads,))

    def add_outgoing(self, outgoing: Iterable[tuple[str, Outgoing]]) -> None:
        """Put messages into the outbox, each with its id."""
        for id, message in outgoing:
            self._run("insert into outbox (id, message) values (?, ?)", (id, msgspec.json.encode(message).decode()))

    def outbox(self) -> list[tuple[str, Outgoing]]:
        rows = self._run("select id, message from outbox order by id")
        return [(id, jsontext.decode_as(message, Outgoing)) for id, message in rows]

    def remove_sent(self, ids: Iterable[str]) -> None:
        for id in ids:
            self._run("delete from outbox where id = ?", (id,))

    # Help, proposals, progress

    def help_asked(self, thread: str, task_id: str, help_type: str) -> float | None:
        """Return when a worker last asked for help of this kind."""
        key = (thread, task_id, help_type)
        at: float | None = self._one("select at from helps where thread = ? and task_id = ? and help_type = ?", key)
        return at

    def note_help(self, thread: str, task_id: str, help_type: str, at: float) -> None:
        self._run("insert or replace into helps values (?, ?, ?, ?)", (thread, task_id, help_type, at))

    def proposed(self, thread: str, task_id: str) -> str | None:
        """Return the title of the proposal for this task."""
        title: str | None = self._one("select title from proposals where thread = ? and task_id = ?", (thread, task_id))
        return title

    def note_proposal(self, thread: str, task_id: str, *, severity: str, title: str, decision: str, at: float) -> None:
        self._run("insert into proposals values (?, ?, ?, ?, ?, ?)", (thread, task_id, severity, title, decision, at))

    def reports_since(self, at: float) -> list[float]:
        return [row[0] for row in self._run("select at from reports where at > ? order by at", (at,))]

    def note_report(self, at: float, *, forget: float) -> None:
        self._run("delete from reports where at < ?", (forget,))
        self._run("insert into reports (at) values (?)", (at,))

    def unreported(self) -> list[str]:
        return [row[0] for row in self._run("select thread from unreported order by thread")]

    def set_unreported(self, thread: str, waits: bool) -> None:
        self._run("delete from unreported where thread = ?", (thread,))
        if waits:
            self._run("insert into unreported values (?)", (thread,))

    def _tasks(self, rest: str, bindings: tuple[Any, ...]) -> list[Task]:
        return [_task(row) for row in self._run(f"select {_COLUMNS} from tasks {rest}", bindings)]

    def _one(self, statement: str, bindings: tuple[Any, ...] = ()) -> Any:
        return next((row[0] for row in self._run(statement, bindings)), None)


def _cell(name: str, value: Any) -> Any:
    if name in _JSON:
        return None if value is None else msgspec.json.encode(value).decode()
    return str(value) if isinstance(value, Status) else value


def _task(row: tuple[Any, ...]) -> Task:
    found = {
        name: msgspec.json.decode(value) if name in _JSON and value is not None else value
        for name, value in zip(Task.__struct_fields__, row, strict=True)
    }
    return jsontext.convert(found, Task)
