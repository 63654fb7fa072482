"""Progress of a thread, reported to the leader: two seconds apart at least, five within ten seconds at most.

A report is drawn up when it is sent, so what is held back is never stale, only later. The last one, when nothing is
left to do, is never held back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pabal.ignite.clerk.books import Books
from pabal.ignite.clerk.values import Letter, Roster, Status, Task, letter_about
from pabal.jsontext import Json

GAP = 2.0  # seconds
MOST, SPAN = 5, 10.0
NOWHERE = "local"  # the repository of work that has none


def pause(times: Sequence[float], now: float) -> float:
    """Return the seconds until another may be shown, given when the last ones were."""
    recent = [at for at in times if now - SPAN < at <= now]
    waits = [recent[-1] + GAP - now] if recent else []
    if len(recent) >= MOST:
        waits.append(recent[-MOST] + SPAN - now)
    return max([0.0, *waits])


def report(books: Books, roster: Roster, thread: str, now: float) -> list[Letter]:
    """Report on a thread, or note that a report is due."""
    tasks = books.thread(thread)
    if not tasks:
        return []
    final = all(task.status in (Status.COMPLETED, Status.FAILED) for task in tasks)
    if not final and pause(books.reports_since(now - SPAN), now) > 0:
        books.set_unreported(thread, True)
        return []
    books.set_unreported(thread, False)
    books.note_report(now, forget=now - SPAN)
    return [letter_about(tasks[0], roster.leader, "progress_update", _body(tasks, final))]


def report_held(books: Books, roster: Roster, now: float) -> list[Letter]:
    """Send what was held back and may go now."""
    return [letter for thread in books.unreported() for letter in report(books, roster, thread, now)]


def _body(tasks: Sequence[Task], final: bool) -> dict[str, Json]:
    count = Counter(task.status for task in tasks)
    done = count[Status.COMPLETED]
    lines = [f"{done} of {len(tasks)} tasks completed", *map(_line, tasks)]
    return {
        "repository": tasks[0].repository or NOWHERE,
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
    said = (task.result or {}).get("message") if task.status is Status.IN_PROGRESS else ""
    who = f" by {task.assigned_to}" if task.assigned_to and task.status is not Status.QUEUED else ""
    return f"- {task.task_id} {task.title}: {task.status}{who}{f' ({said})' if said else ''}"
