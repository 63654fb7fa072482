"""Task lists: read whole or refused whole, so that nothing waits for a task that will never come."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from msgspec.structs import replace

from pabal.errors import ValidationFailed
from pabal.ignite.clerk.books import Books
from pabal.ignite.clerk.values import Status, Task
from pabal.message import PRIORITIES, Message


def store_list(books: Books, message: Message, *, thread: str, repository: str, issue: str) -> None:
    """Write down, as queued, the tasks of a list that are not known yet or were given up.

    Raise ValidationFailed if one waits for a task that is nowhere or, in the end, for itself.
    """
    body: dict[str, Any] = message.body if isinstance(message.body, dict) else {}
    known = {task.task_id: task for task in books.thread(thread)}
    whole = Task(
        thread=thread,
        task_id="",
        place=books.last_place(),
        title="",
        delegated_by=message.sender,
        repository=str(body.get("repository") or repository),
        issue_number=issue,
    )
    listed = {str(work["task_id"]): _task(whole, number, work) for number, work in enumerate(body["tasks"], 1)}
    _check_dependencies(listed, known)
    for name, task in listed.items():
        if _is_new(known.get(name)):
            books.put(task)


def _task(whole: Task, number: int, work: dict[str, Any]) -> Task:
    """Return a task of a list, with what holds for the whole list where it says nothing itself."""
    return replace(
        whole,
        task_id=str(work["task_id"]),
        place=whole.place + number,
        title=str(work["title"]),
        priority=_priority(work),
        repository=str(work.get("repository") or whole.repository),
        issue_number=str(work.get("issue_number") or whole.issue_number),
        dependencies=tuple(map(str, work.get("dependencies") or ())),
        work=work,
    )


def _priority(work: Mapping[str, Any]) -> str:
    found = str(work.get("priority", "normal")).lower()
    return found if found in PRIORITIES else "normal"  # lists are written by people and models: "medium" is common


def _is_new(before: Task | None) -> bool:
    return before is None or before.status is Status.FAILED


def _check_dependencies(listed: Mapping[str, Task], known: Collection[str]) -> None:
    for task in listed.values():
        for needed in task.dependencies:
            if needed not in listed and needed not in known:
                raise ValidationFailed(f"task_list: {task.task_id} depends on {needed}, which is not in the list")
    try:
        TopologicalSorter({task.task_id: task.dependencies for task in listed.values()}).prepare()
    except CycleError as exc:
        raise ValidationFailed(f"task_list: tasks wait for each other: {' -> '.join(exc.args[1])}") from exc
