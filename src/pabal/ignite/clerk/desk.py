"""The clerk's desk: what the coordinator makes of a message, decided and written down in one transaction.

What was decided is kept with the message's id. So a coordinator that dies between deciding and answering gives the
same answer when the message comes again, and no task is assigned twice for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec.structs import replace

from pabal.codecs.mime.fields import ISSUE, REPOSITORY
from pabal.errors import ValidationFailed
from pabal.ignite import types
from pabal.ignite.clerk.books import Books, prepare
from pabal.ignite.clerk.help import answer_help
from pabal.ignite.clerk.lists import store_list
from pabal.ignite.clerk.progress import report
from pabal.ignite.clerk.proposals import answer_proposal
from pabal.ignite.clerk.tasks import TRIES, assign, complete, revise
from pabal.ignite.clerk.values import Letter, Roster, Status, Task
from pabal.message import Message
from pabal.sql.sqlite import Database


class Case(NamedTuple):
    """A message on the desk, and what deciding on it needs."""

    books: Books
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
        return self.books.meant(self.thread, str(self.body.get("task_id", "")), self.message.sender)


class Desk:
    """Decides on the coordinator's messages."""

    def __init__(self, database: Database) -> None:
        self.database = database
        database.write(lambda tx: prepare(tx.connection), durable=False)

    def decide(self, message: Message, roster: Roster, now: float) -> list[Letter]:
        """Return the letters that follow from a message, the same ones if it was decided on before.

        Raise ValidationFailed if it is not for a coordinator or cannot be acted upon; then nothing was written down.
        """
        types.check(message.type, message.body)

        def work(tx: Any) -> list[Letter]:
            case = Case(Books(tx.connection), roster, message, now)
            known = case.books.decided(message.id)
            if known is not None:
                return known
            letters = [_in_reply(letter, message.id) for letter in _decision(case)]
            case.books.decide(message.id, letters, now)
            return letters

        return self.database.write(work, durable=True)

    def tasks(self, *statuses: Status) -> list[Task]:
        """Return the tasks that stand so, or all."""
        return self.database.read(lambda connection: Books(connection).tasks(*statuses))


def _decision(case: Case) -> list[Letter]:
    decide = _DECISIONS.get(case.message.type)
    if decide is None:
        raise ValidationFailed(
            f"{case.message.type}: a coordinator takes {', '.join(_DECISIONS)}; send this to whom it concerns"
        )
    return decide(case)


def _task_list(case: Case) -> list[Letter]:
    headers = case.message.headers
    store_list(
        case.books,
        case.message,
        thread=case.thread,
        repository=headers.get(REPOSITORY, ""),
        issue=headers.get(ISSUE, ""),
    )
    return [*assign(case.books, case.roster, case.now), *report(case.books, case.roster, case.thread, case.now)]


def _task_completed(case: Case) -> list[Letter]:
    task = case.task() or _unknown(case)
    letters = complete(case.books, case.roster, task, sender=case.message.sender, report=case.body, now=case.now)
    letters += assign(case.books, case.roster, case.now)
    return [*letters, *report(case.books, case.roster, task.thread, case.now)]


def _unknown(case: Case) -> Task:
    """Return a task of which only this report is known, as when the books were lost: it counts as in its last try."""
    return Task(
        thread=case.thread,
        task_id=str(case.body["task_id"]),
        place=case.books.last_place() + 1,
        title=str(case.body["title"]),
        status=Status.IN_PROGRESS,
        assigned_to=case.message.sender,
        tries=TRIES,
    )


def _evaluation_result(case: Case) -> list[Letter]:
    task = case.task()
    if task is None:
        return []
    letters = revise(case.books, case.roster, task, case.body)
    letters += assign(case.books, case.roster, case.now)
    return [*letters, *report(case.books, case.roster, task.thread, case.now)] if letters else []


def _help_request(case: Case) -> list[Letter]:
    letters = answer_help(
        case.books,
        case.roster,
        case.task(),
        sender=case.message.sender,
        thread=case.thread,
        call=case.body,
        now=case.now,
    )
    return [*letters, *assign(case.books, case.roster, case.now)]


def _issue_proposal(case: Case) -> list[Letter]:
    return answer_proposal(
        case.books,
        case.roster,
        case.task(),
        sender=case.message.sender,
        thread=case.thread,
        proposal=case.body,
        now=case.now,
    )


def _progress_update(case: Case) -> list[Letter]:
    """Take a worker's word for it that it is alive, and what it says for the next report."""
    task = case.task()
    if task is None:
        own = case.books.tasks(Status.IN_PROGRESS)
        task = next((each for each in own if each.assigned_to == case.message.sender), None)
    if task is None or task.status is not Status.IN_PROGRESS:
        return []
    said = {"message": case.body.get("message") or str(case.body.get("summary", "")).strip().partition("\n")[0]}
    case.books.put(replace(task, touched_at=case.now, result=said))
    return report(case.books, case.roster, task.thread, case.now)


def _in_reply(letter: Letter, id: str) -> Letter:
    return replace(letter, in_reply_to=id)


_DECISIONS: dict[str, Callable[[Case], list[Letter]]] = {
    "task_list": _task_list,
    "task_completed": _task_completed,
    "evaluation_result": _evaluation_result,
    "help_request": _help_request,
    "issue_proposal": _issue_proposal,
    "progress_update": _progress_update,
}
