"""Tasks in progress: assigned when all they depend on is completed, taken back when lost, given up after three tries.

A worker has one task at a time. The first report that a task succeeded counts, whoever it comes from; what comes later
about it changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from pabal.ignite.clerk.books import Books
from pabal.ignite.clerk.values import EVALUATOR, Letter, Roster, Status, Task, letter_about
from pabal.jsontext import Json
from pabal.message import PRIORITIES

LOST_AFTER = 1800.0  # seconds without a sign from its worker
TRIES = 3
_PASSED = frozenset({"pass", "passed", "approved", "success"})
_OWN = frozenset({"dependencies", "phase"})  # of a list's task: what its worker need not know


def assign(books: Books, roster: Roster, now: float) -> list[Letter]:
    """Give tasks whose dependencies are completed to workers that have none: urgent ones first, then in order."""
    busy = {task.assigned_to for task in books.tasks(Status.IN_PROGRESS)}
    idle = [worker for worker in roster.workers if worker not in busy and worker not in roster.gone]
    waiting = sorted(books.tasks(Status.QUEUED), key=lambda task: (-PRIORITIES.get(task.priority, 0), task.place))
    letters = []
    for task in waiting:
        if not idle:
            break
        needed = [books.task(task.thread, name) for name in task.dependencies]
        done = [other for other in needed if other is not None and other.status is Status.COMPLETED]
        if len(done) == len(needed):
            worker = _choose(idle, task)
            idle.remove(worker)
            letters.append(_begin(books, task, worker, done, now))
    return letters


def _choose(idle: list[str], task: Task) -> str:
    """Choose who knows the work to do it better, but somebody else, if there is one, where it was lost or failed."""
    if task.result and "overall_status" in task.result and task.assigned_to in idle:
        return task.assigned_to
    return min(idle, key=lambda name: name == task.assigned_to)


def _begin(books: Books, task: Task, worker: str, done: list[Task], now: float) -> Letter:
    begun = replace(
        task,
        status=Status.IN_PROGRESS,
        assigned_to=worker,
        tries=task.tries + 1,
        started_at=now,
        touched_at=now,
        result=None,
    )
    books.put(begun)
    judged = task.result if task.result and "overall_status" in task.result else None
    body = _work_for(task, done)
    if task.tries:
        body |= {"attempt": begun.tries, "previous_failure": failure_of(task)}
    if judged is not None:
        body["issues"] = judged.get("issues_found") or judged.get("recommendations") or []
    kind = "task_assignment" if judged is None else "revision_request"
    return replace(letter_about(task, worker, kind, body, task.priority), id=assignment_id(begun))


def _work_for(task: Task, done: list[Task]) -> dict[str, Json]:
    """Return what a worker is told: all that the list says, and what was made by the tasks before it."""
    body: dict[str, Json] = {name: value for name, value in task.work.items() if name not in _OWN}
    body.setdefault("instructions", str(body.get("description") or task.title))
    if done:
        inputs: list[Json] = [
            {"task_id": other.task_id, "deliverables": _deliverables(other.result or {})} for other in done
        ]
        body["inputs"] = inputs
    for name, value in (("repository", task.repository), ("issue_number", task.issue_number)):
        if value:
            body.setdefault(name, value)
    return body


def assignment_id(task: Task) -> str:
    """Return the id of the message that gave a task to its worker."""
    mark = sha256(f"{task.thread}/{task.task_id}/{task.tries}/{task.started_at}".encode()).hexdigest()
    return f"{int(task.started_at)}.0.{mark[:20]}"


def complete(
    books: Books, roster: Roster, task: Task, *, sender: str, report: dict[str, Any], now: float
) -> list[Letter]:
    """Take in a worker's report: completed goes to the evaluator, an error is another try for somebody."""
    if task.status is Status.COMPLETED:
        return []
    if report.get("status") == "success":
        done = replace(task, status=Status.COMPLETED, assigned_to=sender, result=report, completed_at=now)
        books.put(done)
        return [_evaluation(done)] if EVALUATOR in roster.agents else []
    if task.status is not Status.IN_PROGRESS or task.assigned_to != sender:
        return []  # it was taken from this worker already
    return give_back(books, roster, task, report)


def revise(books: Books, roster: Roster, task: Task, judgement: dict[str, Any]) -> list[Letter]:
    """Take in an evaluator's judgement: what did not pass is to be done better."""
    passed = str(judgement.get("overall_status")).lower() in _PASSED or judgement.get("next_action") == "approve"
    return [] if passed or task.status is not Status.COMPLETED else give_back(books, roster, task, judgement)


def give_back(books: Books, roster: Roster, task: Task, report: dict[str, Any]) -> list[Letter]:
    """Put a task back into the list, or give it up and tell the leader if that was its last try."""
    over = task.tries >= TRIES
    after = replace(task, status=Status.FAILED if over else Status.QUEUED, result=report)
    books.put(after)
    return [_escalation(after, roster.leader)] if over else []


def reclaim(books: Books, roster: Roster, now: float, died: Mapping[str, str]) -> list[Letter]:
    """Take back tasks whose worker is gone, could not handle the message, or has given no sign for half an hour.

    `died` has the assignments that were given up, by id, with the reasons.
    """
    letters = []
    for task in books.tasks(Status.IN_PROGRESS):
        if (reason := died.get(assignment_id(task))) is not None:
            why = f"{task.assigned_to} could not handle it: {reason}"
        elif task.assigned_to in roster.gone or task.assigned_to not in roster.agents:
            why = f"{task.assigned_to} is gone"
        elif now - task.touched_at > LOST_AFTER:
            why = f"no sign from {task.assigned_to} for {(now - task.touched_at) / 60:.0f} minutes"
        else:
            continue
        letters += give_back(books, roster, task, {"status": "error", "error": {"type": "lost", "message": why}})
    return letters


def failure_of(task: Task) -> str:
    """Say in one line why a task's last try came to nothing."""
    result = task.result or {}
    if "overall_status" in result:
        issues = result.get("issues_found") or [""]
        first = issues[0].get("description", "") if isinstance(issues[0], dict) else issues[0]
        return f"evaluated as {result['overall_status']}{f': {first}' if first else ''}"
    error = result.get("error") or {}
    return ": ".join(str(error[name]) for name in ("type", "message") if error.get(name)) or "no reason given"


def _deliverables(report: dict[str, Any]) -> list[Json]:
    found = report.get("deliverables")
    return found if isinstance(found, list) else []


def _evaluation(task: Task) -> Letter:
    accepted = task.work.get("acceptance_criteria")
    criteria = accepted if isinstance(accepted, dict) else {}
    body: dict[str, Json] = {
        "task_id": task.task_id,
        "title": task.title,
        "deliverables": _deliverables(task.result or {}),
        "requirements": criteria.get("must") or [],
        "criteria": criteria.get("should") or [],
    }
    if task.repository:
        body["repository"] = task.repository
    return letter_about(task, EVALUATOR, "evaluation_request", body, task.priority)


def _escalation(task: Task, leader: str) -> Letter:
    body: dict[str, Json] = {
        "task_id": task.task_id,
        "title": task.title,
        "original_assignee": task.assigned_to,
        "failure_reason": failure_of(task),
        "retry_count": task.tries,
        "max_retries": TRIES,
        "recommended_action": "manual_review",
        "notes": "The tasks that depend on it wait. Send a new task_list in this thread to go on another way.",
    }
    return letter_about(task, leader, "escalation", body, "critical")
