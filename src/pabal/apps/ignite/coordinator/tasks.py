"""Tasks and their progress: tasks are assigned, taken back when lost, and given up after three tries.

A task is assigned when all tasks that it depends on are completed. A worker has one task at a time. The first report of
success counts, from any worker; later reports about the task change nothing.

Progress is reported to the leader: at least two seconds apart, at most five reports within ten seconds. A report is
made when it is sent, so a report that was held back is late and never out of date. The last one is never held back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from pabal.apps.ignite.coordinator.records import EVALUATOR, Outgoing, Records, Roster, Status, Task, about_task
from pabal.apps.ignite.team import USER
from pabal.jsontext import Json
from pabal.message import PRIORITIES

LOST_AFTER = 1800.0  # seconds without a sign of life from its worker
TRIES = 3
_PASSED = frozenset({"pass", "passed", "approved", "success"})
GAP = 2.0  # seconds between two reports
MOST, SPAN = 5, 10.0  # reports within seconds
NO_REPOSITORY = "local"
_OWN = frozenset({"dependencies", "phase"})  # fields of a task that its worker need not know


def assign(records: Records, roster: Roster, now: float) -> list[Outgoing]:
    """Assign tasks whose dependencies are completed to idle workers: urgent tasks first, then in their order."""
    busy = {task.assigned_to for task in records.tasks(Status.IN_PROGRESS)}
    idle = [worker for worker in roster.workers if worker not in busy and worker not in roster.gone]
    outgoing = []
    for task in ready(records) if idle else ():
        if not idle:
            break
        needed = [records.task(task.thread, name) for name in task.dependencies]
        worker = _choose(idle, task)
        idle.remove(worker)
        outgoing.append(_begin(records, task, worker, [other for other in needed if other is not None], now))
    return outgoing


def ready(records: Records, more: Sequence[Task] = ()) -> list[Task]:
    """Return the queued tasks, and more, whose dependencies are completed: urgent ones first, then in their order."""
    found = [*records.tasks(Status.QUEUED), *more]
    waiting = sorted(found, key=lambda task: (-PRIORITIES.get(task.priority, 0), task.place))
    return [task for task in waiting if not waits_for(records, task)]


def waits_for(records: Records, task: Task) -> list[str]:
    """Return the ids of the tasks that must be completed before this one."""
    needed = {name: records.task(task.thread, name) for name in task.dependencies}
    return [name for name, other in needed.items() if other is None or other.status is not Status.COMPLETED]


def _choose(idle: list[str], task: Task) -> str:
    """Choose the same worker for a revision; after a loss or a failure another one, if there is one."""
    if task.result and "overall_status" in task.result and task.assigned_to in idle:
        return task.assigned_to
    return min(idle, key=lambda name: name == task.assigned_to)


def _begin(records: Records, task: Task, worker: str, done: list[Task], now: float) -> Outgoing:
    begun = replace(
        task,
        status=Status.IN_PROGRESS,
        assigned_to=worker,
        tries=task.tries + 1,
        started_at=now,
        touched_at=now,
        result=None,
    )
    records.put(begun)
    judged = task.result if task.result and "overall_status" in task.result else None
    body = _work_for(task, done)
    if task.tries:
        body |= {"attempt": begun.tries, "previous_failure": failure_of(task)}
    if judged is not None:
        body["issues"] = judged.get("issues_found") or judged.get("recommendations") or []
    kind = "task_assignment" if judged is None else "revision_request"
    return replace(about_task(task, worker, kind, body, task.priority), id=assignment_id(begun))


def _work_for(task: Task, done: list[Task]) -> dict[str, Json]:
    """Return the body of an assignment: the task as its list has it, and the deliverables that it depends on."""
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
    """Return the id of the message that assigned a task to its worker."""
    mark = sha256(f"{task.thread}/{task.task_id}/{task.tries}/{task.started_at}".encode()).hexdigest()
    return f"{int(task.started_at)}.0.{mark[:20]}"


def complete(
    records: Records, roster: Roster, task: Task, *, sender: str, report: dict[str, Any], now: float
) -> list[Outgoing]:
    """Apply a worker's report: a success goes to the evaluator, an error puts the task back into the list."""
    if task.status is Status.COMPLETED:
        return []
    if report.get("status") == "success":
        done = replace(task, status=Status.COMPLETED, assigned_to=sender, result=report, completed_at=now)
        records.put(done)
        return [_evaluation(done)] if EVALUATOR in roster.agents else []
    if task.status is not Status.IN_PROGRESS or task.assigned_to != sender:
        return []  # the task was taken from this worker before
    return requeue(records, roster, task, report)


def revise(records: Records, roster: Roster, task: Task, judgement: dict[str, Any]) -> list[Outgoing]:
    """Apply an evaluator's judgement: a task that did not pass goes back into the list."""
    passed = str(judgement.get("overall_status")).lower() in _PASSED or judgement.get("next_action") == "approve"
    return [] if passed or task.status is not Status.COMPLETED else requeue(records, roster, task, judgement)


def requeue(records: Records, roster: Roster, task: Task, report: dict[str, Any]) -> list[Outgoing]:
    """Put a task back into the list; after its last try mark it as failed and escalate it to the leader."""
    over = task.tries >= TRIES
    after = replace(task, status=Status.FAILED if over else Status.QUEUED, result=report)
    records.put(after)
    return [_escalation(after, roster.leader)] if over else []


def reclaim(records: Records, roster: Roster, now: float, died: Mapping[str, str]) -> list[Outgoing]:
    """Take back tasks whose worker is gone, whose assignment is dead, or without a sign of life for half an hour.

    `died` has the dead assignments, by id, with their reasons.
    """
    outgoing = []
    for task in records.tasks(Status.IN_PROGRESS):
        if why := why_lost(task, roster, now, died):
            outgoing += requeue(records, roster, task, {"status": "error", "error": {"type": "lost", "message": why}})
    return outgoing


def why_lost(task: Task, roster: Roster, now: float, died: Mapping[str, str]) -> str:
    """Return why a task in progress has no worker any more; empty if it has one."""
    silent = now - max(task.touched_at, roster.seen.get(task.assigned_to, 0.0))
    if (reason := died.get(assignment_id(task))) is not None:
        return f"{task.assigned_to} could not handle it: {reason}"
    if task.assigned_to in roster.gone or task.assigned_to not in roster.agents:
        return f"{task.assigned_to} is gone"
    if silent > LOST_AFTER and task.assigned_to != USER:  # a person gives no signs of life
        return f"no sign from {task.assigned_to} for {silent / 60:.0f} minutes"
    return ""


def failure_of(task: Task) -> str:
    """Return in one line why the last try of a task failed."""
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


def _evaluation(task: Task) -> Outgoing:
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
    return about_task(task, EVALUATOR, "evaluation_request", body, task.priority)


def _escalation(task: Task, leader: str) -> Outgoing:
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
    return about_task(task, leader, "escalation", body, "critical")


def report_pause(times: Sequence[float], now: float) -> float:
    """Return the seconds until the next report may be sent, given the times of the last ones."""
    recent = [at for at in times if now - SPAN < at <= now]
    waits = [recent[-1] + GAP - now] if recent else []
    if len(recent) >= MOST:
        waits.append(recent[-MOST] + SPAN - now)
    return max([0.0, *waits])


def report(records: Records, roster: Roster, thread: str, now: float) -> list[Outgoing]:
    """Report on a thread, or record that its report is held back."""
    tasks = records.thread(thread)
    if not tasks:
        return []
    final = all(task.status in (Status.COMPLETED, Status.FAILED) for task in tasks)
    if not final and report_pause(records.reports_since(now - SPAN), now) > 0:
        records.set_unreported(thread, True)
        return []
    records.set_unreported(thread, False)
    records.note_report(now, forget=now - SPAN)
    return [about_task(tasks[0], roster.leader, "progress_update", _progress_body(tasks, final))]


def report_held(records: Records, roster: Roster, now: float) -> list[Outgoing]:
    """Send reports that were held back and may be sent now."""
    return [message for thread in records.unreported() for message in report(records, roster, thread, now)]


def _progress_body(tasks: Sequence[Task], final: bool) -> dict[str, Json]:
    count = Counter(task.status for task in tasks)
    done = count[Status.COMPLETED]
    lines = [f"{done} of {len(tasks)} tasks completed", *map(_line, tasks)]
    return {
        "repository": tasks[0].repository or NO_REPOSITORY,
        "total_tasks": len(tasks),
        "completed": done,
        "in_progress": count[Status.IN_PROGRESS],
        "pending": count[Status.QUEUED],
        "failed": count[Status.FAILED],
        "percent": 100 * done // len(tasks),
        "final": final,
        "summary": "\n".join(lines) + "\n",
    }


def _line(task: Task) -> str:
    remark = (task.result or {}).get("message") if task.status is Status.IN_PROGRESS else ""
    worker = f" by {task.assigned_to}" if task.assigned_to and task.status is not Status.QUEUED else ""
    return f"- {task.task_id} {task.title}: {task.status}{worker}{f' ({remark})' if remark else ''}"
