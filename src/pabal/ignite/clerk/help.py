"""Calls for help: each is answered, what is urgent goes to the leader, and asking is a sign of life.

The same call for the same task within five minutes is a repetition and gets no second answer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec.structs import replace

from pabal.ignite.clerk.books import Books
from pabal.ignite.clerk.tasks import give_back
from pabal.ignite.clerk.values import Letter, Roster, Status, Task, letter_about
from pabal.jsontext import Json

REPEATED_WITHIN = 300.0  # seconds


class _Answer(NamedTuple):
    severity: str
    action: str
    guidance: str
    expected: str


_ANSWERS = {
    "timeout": _Answer("high", "escalating", "Keep what you have; the leader decides how to go on.", "30 minutes"),
    "blocked": _Answer("high", "escalating", "Keep what you have; the leader removes what blocks you.", "30 minutes"),
    "failed": _Answer("medium", "reassigning", "Stop here: somebody else takes this task over.", "now"),
    "stuck": _Answer("low", "investigating", "Try the smallest step that can be checked, then report.", "15 minutes"),
}
_ALONE = _Answer("medium", "investigating", "Nobody else is free: try another way, then report.", "15 minutes")


def answer_help(
    books: Books, roster: Roster, task: Task | None, *, sender: str, thread: str, call: dict[str, Any], now: float
) -> list[Letter]:
    """Decide on a call for help."""
    about = task or Task(thread=thread, task_id=str(call["task_id"]), place=0, title=str(call.get("title", "")))
    kind = str(call["help_type"])
    before = books.help_asked(about.thread, about.task_id, kind)
    if task is not None:
        books.put(replace(task, touched_at=now))
    if before is not None and now - before < REPEATED_WITHIN:
        return []
    books.note_help(about.thread, about.task_id, kind, now)
    answer = _answer(books, roster, task, kind, sender)
    letters = [_ack(about, sender, answer)]
    if answer.action == "reassigning" and task is not None:
        report = {"error": {"type": "help_request", "message": _summary(call)}}
        letters += give_back(books, roster, replace(task, touched_at=now), report)
    if answer.severity == "high":
        letters.append(_forward(about, roster.leader, sender, call, answer))
    return letters


def _answer(books: Books, roster: Roster, task: Task | None, kind: str, sender: str) -> _Answer:
    answer = _ANSWERS[kind]
    if answer.action != "reassigning":
        return answer
    others = {name for name in roster.workers if name not in roster.gone} - {sender}
    own = task is not None and task.status is Status.IN_PROGRESS and task.assigned_to == sender
    busy = {other.assigned_to for other in books.tasks(Status.IN_PROGRESS)}
    return answer if own and others - busy else _ALONE


def _summary(call: dict[str, Any]) -> str:
    context = call.get("context")
    return str(context.get("error_summary") or "" if isinstance(context, dict) else "") or str(call["help_type"])


def _ack(task: Task, sender: str, answer: _Answer) -> Letter:
    body: dict[str, Json] = {
        "task_id": task.task_id,
        "title": task.title,
        "action": answer.action,
        "guidance": answer.guidance,
        "expected_resolution": answer.expected,
    }
    return letter_about(task, sender, "help_ack", body, "high" if answer.severity == "high" else "normal")


def _forward(task: Task, leader: str, sender: str, call: dict[str, Any], answer: _Answer) -> Letter:
    body: dict[str, Json] = {**call, "original_from": sender, "severity": answer.severity}
    return letter_about(task, leader, "help_request_forwarded", body, "high")
