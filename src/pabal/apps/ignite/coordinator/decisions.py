"""Decisions: what follows from a message to the coordinator, decided and recorded in one transaction.

A decision is kept with the id of its message. So a coordinator that dies between deciding and answering gives the same
answer when the message comes again, and no task is assigned twice for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from msgspec.structs import replace

from pabal.apps.ignite import types
from pabal.apps.ignite.coordinator.records import Outgoing, Records, Roster, Status, Task, about_task, prepare
from pabal.apps.ignite.coordinator.tasks import TRIES, assign, complete, report, requeue, revise
from pabal.codecs.mime.fields import ISSUE, REPOSITORY
from pabal.errors import ValidationFailed
from pabal.jsontext import Json
from pabal.message import PRIORITIES, Message
from pabal.sql.sqlite import Database

REPEATED_WITHIN = 300.0  # seconds
SERIOUS = frozenset({"critical", "major"})  # severities of a proposal that the leader decides on


class Case(NamedTuple):
    """A message to decide on, and what the decision needs."""

    records: Records
    roster: Roster
    message: Message
    now: float

    @property
    def thread(self) -> str:
        return self.message.thread_id or self.message.id

    @property
    def body(self) -> dict[str, Any]:
        return self.message.body if isinstance(self.message.body, dict) else {}

    def task(self) -> Task | None:
        return self.records.find_task(self.thread, str(self.body.get("task_id", "")), self.message.sender)


class Decisions:
    """Decides on the coordinator's messages."""

    def __init__(self, database: Database) -> None:
        self.database = database
        database.write(lambda tx: prepare(tx.connection), durable=False)

    def decide(self, message: Message, roster: Roster, now: float) -> list[Outgoing]:
        """Return the messages that follow from a message, the same ones if it comes again.

        Raise ValidationFailed if the coordinator cannot act on it; then nothing was recorded.
        """
        types.check(message.type, message.body)

        def work(tx: Any) -> list[Outgoing]:
            case = Case(Records(tx.connection), roster, message, now)
            known = case.records.decision_on(message.id)
            if known is not None:
                return known
            outgoing = [replace(each, in_reply_to=message.id) for each in _decision(case)]
            case.records.add_decision(message.id, outgoing, now)
            return outgoing

        return self.database.write(work, durable=True)

    def tasks(self, *statuses: Status) -> list[Task]:
        """Return the tasks with one of these statuses, or all."""
        return self.database.read(lambda connection: Records(connection).tasks(*statuses))


def _decision(case: Case) -> list[Outgoing]:
    decide = _DECISIONS.get(case.message.type)
    if decide is None:
        raise ValidationFailed(
            f"{case.message.type}: a coordinator takes {', '.join(_DECISIONS)}; send this to whom it concerns"
        )
    return decide(case)


def _task_list(case: Case) -> list[Outgoing]:
    """Record the tasks of a list that are new or had failed, as queued. A list is stored whole or refused whole.

    Raise ValidationFailed if a task depends on a task that does not exist, or on itself through others.
    """
    records, headers = case.records, case.message.headers
    known = {task.task_id: task for task in records.thread(case.thread)}
    whole = Task(
        thread=case.thread,
        task_id="",
        place=records.last_place(),
        title="",
        delegated_by=case.message.sender,
        repository=str(case.body.get("repository") or headers.get(REPOSITORY, "")),
        issue_number=headers.get(ISSUE, ""),
    )
    listed = {str(work["task_id"]): _task(whole, number, work) for number, work in enumerate(case.body["tasks"], 1)}
    _check_dependencies(listed, known)
    for name, task in listed.items():
        if name not in known or known[name].status is Status.FAILED:
            records.put(task)
    return [*assign(records, case.roster, case.now), *report(records, case.roster, case.thread, case.now)]


def _task_completed(case: Case) -> list[Outgoing]:
    task = case.task() or _unknown(case)
    outgoing = complete(case.records, case.roster, task, sender=case.message.sender, report=case.body, now=case.now)
    outgoing += assign(case.records, case.roster, case.now)
    return [*outgoing, *report(case.records, case.roster, task.thread, case.now)]


def _unknown(case: Case) -> Task:
    """Return a task of which only this report is known, as after a loss of the records; it counts as its last try."""
    return Task(
        thread=case.thread,
        task_id=str(case.body["task_id"]),
        place=case.records.last_place() + 1,
        title=str(case.body["title"]),
        status=Status.IN_PROGRESS,
        assigned_to=case.message.sender,
        tries=TRIES,
    )


def _evaluation_result(case: Case) -> list[Outgoing]:
    task = case.task()
    if task is None:
        return []
    outgoing = revise(case.records, case.roster, task, case.body)
    outgoing += assign(case.records, case.roster, case.now)
    return [*outgoing, *report(case.records, case.roster, task.thread, case.now)] if outgoing else []


def _progress_update(case: Case) -> list[Outgoing]:
    """Take a worker's message as a sign of life, and keep its text for the next report."""
    task = case.task()
    if task is None:
        own = case.records.tasks(Status.IN_PROGRESS)
        task = next((each for each in own if each.assigned_to == case.message.sender), None)
    if task is None or task.status is not Status.IN_PROGRESS:
        return []
    remark = {"message": case.body.get("message") or str(case.body.get("summary", "")).strip().partition("\n")[0]}
    case.records.put(replace(task, touched_at=case.now, result=remark))
    return report(case.records, case.roster, task.thread, case.now)


def _task(whole: Task, number: int, work: dict[str, Any]) -> Task:
    """Return a task of a list; fields that it lacks are those of the whole list."""
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


def _check_dependencies(listed: Mapping[str, Task], known: Collection[str]) -> None:
    for task in listed.values():
        for needed in task.dependencies:
            if needed not in listed and needed not in known:
                raise ValidationFailed(f"task_list: {task.task_id} depends on {needed}, which is not in the list")
    try:
        TopologicalSorter({task.task_id: task.dependencies for task in listed.values()}).prepare()
    except CycleError as exc:
        raise ValidationFailed(f"task_list: tasks wait for each other: {' -> '.join(exc.args[1])}") from exc


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


def _help_request(case: Case) -> list[Outgoing]:
    """Decide on a request for help. It is a sign of life; an urgent one goes to the leader too.

    The same request for the same task within five minutes is a repetition and gets no second answer.
    """
    outgoing = _help_answers(case, case.task(), case.message.sender)
    return [*outgoing, *assign(case.records, case.roster, case.now)]


def _help_answers(case: Case, task: Task | None, sender: str) -> list[Outgoing]:
    records, roster, request, now = case.records, case.roster, case.body, case.now
    about = task or Task(
        thread=case.thread, task_id=str(request["task_id"]), place=0, title=str(request.get("title", ""))
    )
    kind = str(request["help_type"])
    before = records.help_asked(about.thread, about.task_id, kind)
    if task is not None:
        records.put(replace(task, touched_at=now))
    if before is not None and now - before < REPEATED_WITHIN:
        return []
    records.note_help(about.thread, about.task_id, kind, now)
    answer = _answer(records, roster, task, kind, sender)
    outgoing = [_help_ack(about, sender, answer)]
    if answer.action == "reassigning" and task is not None:
        failure = {"error": {"type": "help_request", "message": _summary(request)}}
        outgoing += requeue(records, roster, replace(task, touched_at=now), failure)
    if answer.severity == "high":
        body: dict[str, Json] = {**request, "original_from": sender, "severity": answer.severity}
        outgoing.append(about_task(about, roster.leader, "help_request_forwarded", body, "high"))
    return outgoing


def _answer(records: Records, roster: Roster, task: Task | None, kind: str, sender: str) -> _Answer:
    answer = _ANSWERS[kind]
    if answer.action != "reassigning":
        return answer
    others = {name for name in roster.workers if name not in roster.gone} - {sender}
    own = task is not None and task.status is Status.IN_PROGRESS and task.assigned_to == sender
    busy = {other.assigned_to for other in records.tasks(Status.IN_PROGRESS)}
    return answer if own and others - busy else _ALONE


def _summary(request: dict[str, Any]) -> str:
    context = request.get("context")
    return str(context.get("error_summary") or "" if isinstance(context, dict) else "") or str(request["help_type"])


def _help_ack(task: Task, sender: str, answer: _Answer) -> Outgoing:
    body: dict[str, Json] = {
        "task_id": task.task_id,
        "title": task.title,
        "action": answer.action,
        "guidance": answer.guidance,
        "expected_resolution": answer.expected,
    }
    return about_task(task, sender, "help_ack", body, "high" if answer.severity == "high" else "normal")


def _issue_proposal(case: Case) -> list[Outgoing]:
    """Decide on a proposal of a new issue.

    A serious one is forwarded to the leader, another one recorded. A second proposal of a task is merged with the
    first, and a serious one without a description is sent back with a question.
    """
    records, sender, proposal = case.records, case.message.sender, case.body
    about = case.task() or Task(thread=case.thread, task_id=str(proposal["task_id"]), place=0, title="")
    title, severity = str(proposal["title"]), str(proposal["severity"])
    if severity in SERIOUS and not proposal.get("description"):
        return [_proposal_ack(about, sender, "needs_clarification", f"Describe what is {severity} about it.")]
    if (first := records.proposed(about.thread, about.task_id)) is not None:
        return [_proposal_ack(about, sender, "merged", f"Kept with the first proposal of this task: {first}")]
    decision = "forwarded" if severity in SERIOUS else "received"
    records.note_proposal(about.thread, about.task_id, severity=severity, title=title, decision=decision, at=case.now)
    outgoing = [_proposal_ack(about, sender, decision, "")]
    if decision == "forwarded":
        body: dict[str, Json] = {**proposal, "original_from": sender}
        priority = "critical" if severity == "critical" else "high"
        outgoing.append(about_task(about, case.roster.leader, "issue_proposal_forwarded", body, priority))
    return outgoing


def _proposal_ack(task: Task, sender: str, decision: str, reason: str) -> Outgoing:
    body: dict[str, Json] = {"task_id": task.task_id, "decision": decision}
    if reason:
        body["reason"] = reason
    return about_task(task, sender, "issue_proposal_ack", body)


_DECISIONS: dict[str, Callable[[Case], list[Outgoing]]] = {
    "task_list": _task_list,
    "task_completed": _task_completed,
    "evaluation_result": _evaluation_result,
    "help_request": _help_request,
    "issue_proposal": _issue_proposal,
    "progress_update": _progress_update,
}
