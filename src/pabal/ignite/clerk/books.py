"""The clerk's tables, read and written inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from pabal.ignite.clerk.values import Letter, Status, Task
from pabal.sql.migrate import Runner, migrate

COMPONENT = "clerk"
_COLUMNS = ", ".join(Task.__struct_fields__)
_PLACES = ", ".join("?" for _ in Task.__struct_fields__)
_FORGET_THREADS = """
delete from tasks where thread in (
  select thread from tasks group by thread
  having max(touched_at) < ? and max(completed_at) < ? and sum(status in ('queued', 'in_progress')) = 0)
"""
_JSON = frozenset({"dependencies", "work", "result"})
_letters = msgspec.json.Decoder(list[Letter])


def prepare(connection: Runner) -> None:
    """Bring the clerk's tables up to date, inside a transaction."""
    migrate(connection, COMPONENT, __package__ or "")


class Books:
    """The books, open within one transaction."""

    def __init__(self, connection: Runner) -> None:
        self._run = connection.execute

    # Tasks

    def put(self, task: Task) -> None:
        """Write a task down, in place of what was known of it."""
        values = [_cell(name, getattr(task, name)) for name in Task.__struct_fields__]
        self._run(f"insert or replace into tasks ({_COLUMNS}) values ({_PLACES})", tuple(values))

    def task(self, thread: str, task_id: str) -> Task | None:
        return next(iter(self._tasks("where thread = ? and task_id = ?", (thread, task_id))), None)

    def thread(self, thread: str) -> list[Task]:
        """Return the tasks of one thread in the order of their lists."""
        return self._tasks("where thread = ? order by place", (thread,))

    def tasks(self, *statuses: Status) -> list[Task]:
        """Return the tasks that stand so, or all, oldest lists first."""
        which = f"where status in ({', '.join('?' for _ in statuses)})" if statuses else ""
        return self._tasks(f"{which} order by place, task_id", tuple(map(str, statuses)))

    def meant(self, thread: str, task_id: str, worker: str) -> Task | None:
        """Return the task that a worker speaks of, though it may not have named the thread."""
        if (exact := self.task(thread, task_id)) is not None:
            return exact
        alike = self._tasks("where task_id = ? order by place desc", (task_id,))
        own = [task for task in alike if task.assigned_to == worker]
        open_ones = [task for task in own or alike if task.status is Status.IN_PROGRESS]
        return next(iter(open_ones or own or alike), None)

    def last_place(self) -> int:
        return int(self._one("select coalesce(max(place), 0) from tasks") or 0)

    # Decisions and letters

    def decided(self, message_id: str) -> list[Letter] | None:
        found = self._one("select letters from decisions where message_id = ?", (message_id,))
        return None if found is None else _letters.decode(found)

    def decide(self, message_id: str, letters: list[Letter], at: float) -> None:
        text = msgspec.json.encode(letters).decode()
        self._run("insert into decisions (message_id, letters, at) values (?, ?, ?)", (message_id, text, at))

    def forget(self, *, decisions: float, threads: float) -> None:
        """Remove decisions, and threads in which nothing is left to do, that are older than these instants."""
        self._run("delete from decisions where at < ?", (decisions,))
        self._run(_FORGET_THREADS, (threads, threads))
        for table in ("helps", "proposals"):
            self._run(f"delete from {table} where at < ?", (threads,))

    def post(self, letters: Iterable[tuple[str, Letter]]) -> None:
        """Put letters into the outbox, each under the id that its message will have."""
        for id, letter in letters:
            self._run("insert into outbox (id, letter) values (?, ?)", (id, msgspec.json.encode(letter).decode()))

    def outbox(self) -> list[tuple[str, Letter]]:
        rows = self._run("select id, letter from outbox order by id")
        return [(id, msgspec.json.decode(letter, type=Letter)) for id, letter in rows]

    def sent(self, ids: Iterable[str]) -> None:
        for id in ids:
            self._run("delete from outbox where id = ?", (id,))

    # Help, proposals, progress

    def help_asked(self, thread: str, task_id: str, help_type: str) -> float | None:
        """Return when help of this kind was last asked for."""
        key = (thread, task_id, help_type)
        at: float | None = self._one("select at from helps where thread = ? and task_id = ? and help_type = ?", key)
        return at

    def note_help(self, thread: str, task_id: str, help_type: str, at: float) -> None:
        self._run("insert or replace into helps values (?, ?, ?, ?)", (thread, task_id, help_type, at))

    def proposed(self, thread: str, task_id: str) -> str | None:
        """Return the title of what was proposed for this task."""
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
    return msgspec.convert(found, Task)
