"""The clerk in a workspace: who is in the team, letters as messages, the coordinator's turn and its rounds."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from pabal.errors import QueueUnknown
from pabal.ignite import mail
from pabal.ignite.clerk.desk import Desk
from pabal.ignite.clerk.rounds import Rounds
from pabal.ignite.clerk.tasks import assignment_id
from pabal.ignite.clerk.values import WORKER, Letter, Roster, Task
from pabal.ignite.workspace import Workspace
from pabal.message import Message
from pabal.store import Draft, State

log = logging.getLogger("pabal.ignite")

COORDINATOR = "coordinator"
_worker = re.compile(rf"{WORKER}(?:_(\d+))?", re.ASCII).fullmatch


def roster_of(workspace: Workspace) -> Roster:
    """Say who is in the team, and who of them is gone."""
    team = workspace.team
    workers = [name for name in team.agents if _worker(name)]
    gone = {name for name, found in workspace.memory.presences().items() if found.presence == "gone"}
    return Roster(frozenset(team.agents), tuple(workers), team.leader, frozenset(gone))


def handle(workspace: Workspace, coordinator: str, message: Message) -> list[Draft]:
    """Decide on a message to the coordinator; return what it sends in answer, to be published as it is acknowledged.

    Raise ValidationFailed if the message cannot be acted upon.
    """
    desk = Desk(workspace.memory.database)
    letters = desk.decide(message, roster_of(workspace), workspace.clock.now())
    return [draft for letter in letters for draft in _drafts(workspace, coordinator, letter, letter.id)]


def rounds_of(workspace: Workspace, coordinator: str = COORDINATOR) -> Rounds:
    """Return the coordinator's rounds, as a task of the team's service."""

    def send(letters: Sequence[tuple[str, Letter]]) -> None:
        drafts: list[Draft] = []
        for id, letter in letters:
            try:
                drafts += _drafts(workspace, coordinator, letter, id)
            except QueueUnknown as exc:  # the team has changed since; a task of theirs is taken back in the next round
                log.warning("%s not sent: %s", letter.type, exc)
        workspace.store.publish(drafts)

    return Rounds(
        Desk(workspace.memory.database),
        roster=lambda: roster_of(workspace),
        died=lambda tasks: _died(workspace, tasks),
        send=send,
        clock=workspace.clock,
    )


def _died(workspace: Workspace, tasks: Sequence[Task]) -> dict[str, str]:
    found = [workspace.store.find(task.assigned_to, assignment_id(task)) for task in tasks]
    return {
        entry.id: entry.failure.reason or entry.failure.code
        for entry in found
        if entry is not None and entry.state is State.DEAD and entry.failure is not None
    }


def _drafts(workspace: Workspace, coordinator: str, letter: Letter, id: str) -> list[Draft]:
    return mail.compose(
        workspace,
        sender=coordinator,
        to=letter.to,
        type=letter.type,
        body=letter.body,
        priority=letter.priority,
        thread_id=letter.thread_id,
        in_reply_to=letter.in_reply_to,
        repository=letter.repository,
        issue=letter.issue,
        id=id,
    )
