"""Proposals of new issues: one for each task, the grave ones go to the leader, each is answered."""

from __future__ import annotations

from typing import Any

from pabal.ignite.clerk.books import Books
from pabal.ignite.clerk.values import Letter, Roster, Task, letter_about
from pabal.jsontext import Json

GRAVE = frozenset({"critical", "major"})


def answer_proposal(
    books: Books, roster: Roster, task: Task | None, *, sender: str, thread: str, proposal: dict[str, Any], now: float
) -> list[Letter]:
    """Decide on a proposal: forwarded if grave, noted if not, merged if the task has one, else asked to say more."""
    about = task or Task(thread=thread, task_id=str(proposal["task_id"]), place=0, title="")
    title, severity = str(proposal["title"]), str(proposal["severity"])
    if severity in GRAVE and not proposal.get("description"):
        return [_ack(about, sender, "needs_clarification", f"Describe what is {severity} about it.")]
    if (first := books.proposed(about.thread, about.task_id)) is not None:
        return [_ack(about, sender, "merged", f"Kept with the first proposal of this task: {first}")]
    decision = "forwarded" if severity in GRAVE else "received"
    books.note_proposal(about.thread, about.task_id, severity=severity, title=title, decision=decision, at=now)
    letters = [_ack(about, sender, decision, "")]
    if decision == "forwarded":
        body: dict[str, Json] = {**proposal, "original_from": sender}
        priority = "critical" if severity == "critical" else "high"
        letters.append(letter_about(about, roster.leader, "issue_proposal_forwarded", body, priority))
    return letters


def _ack(task: Task, sender: str, decision: str, reason: str) -> Letter:
    body: dict[str, Json] = {"task_id": task.task_id, "decision": decision}
    if reason:
        body["reason"] = reason
    return letter_about(task, sender, "issue_proposal_ack", body)
