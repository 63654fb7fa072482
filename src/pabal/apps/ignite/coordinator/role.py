"""The coordinator in a workspace: its turn for a message, and its sweep.

The sweep does what follows from time alone: it takes back lost tasks, assigns tasks to idle workers and sends reports
that were held back. Its messages are put into the outbox by the commit that changes the records, with fixed ids, and
stay there until they are published. A process that is killed in between publishes them again, and the store keeps one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pabal.apps.ignite import mail
from pabal.apps.ignite.coordinator.decisions import Decisions
from pabal.apps.ignite.coordinator.records import WORKER, Outgoing, Records, Roster, Status, Task
from pabal.apps.ignite.coordinator.tasks import GAP, assign, assignment_id, reclaim, report, report_held
from pabal.apps.ignite.workspace import Workspace
from pabal.clock import Clock
from pabal.errors import QueueFull, QueueUnknown
from pabal.message import Message
from pabal.policy.retention import RetentionClock
from pabal.store import Draft, State

log = logging.getLogger("pabal.ignite")

COORDINATOR = "coordinator"
EVERY = 5.0  # seconds between two sweeps
DECISIONS_KEPT = 7 * 86400.0  # seconds
THREADS_KEPT = 30 * 86400.0  # seconds, for finished threads
Died = Callable[[Sequence[Task]], Mapping[str, str]]
Send = Callable[[Sequence[tuple[str, Outgoing]]], object]
_worker = re.compile(rf"{WORKER}(?:_(\d+))?", re.ASCII).fullmatch


class Sweep:
    """A task of a service.

    `roster` returns the current members of the team. `died` returns which of these tasks' assignments are dead, by id,
    with the reasons. `send` publishes messages with their ids.
    """

    def __init__(
        self,
        decisions: Decisions,
        *,
        roster: Callable[[], Roster],
        died: Died,
        send: Send,
        clock: Clock,
        ids: Callable[[], str],
    ) -> None:
        self._decisions = decisions
        self._roster = roster
        self._died = died
        self._send = send
        self._clock = clock
        self._ids = ids
        self._due = clock.boot()
        self._retention = RetentionClock(clock)

    def step(self) -> None:
        """Sweep, if it is time to."""
        if self._clock.boot() < self._due:
            return
        try:
            held = self._sweep() if self._is_needed() else False
        except QueueFull as exc:  # the messages stay in the outbox
            log.warning("the coordinator's messages wait: %(error)s", {"error": str(exc)})
            held = True
        self._due = self._clock.boot() + (GAP if held else EVERY)

    def next_due(self) -> float:
        return max(0.0, self._due - self._clock.boot())

    def _is_needed(self) -> bool:
        def check(connection: Any) -> bool:
            records = Records(connection)
            return bool(records.tasks(Status.IN_PROGRESS, Status.QUEUED) or records.outbox() or records.unreported())

        return self._decisions.database.read(check)

    def _sweep(self) -> bool:
        roster, now, at = self._roster(), self._clock.now(), self._retention.now()
        died = self._died(self._decisions.tasks(Status.IN_PROGRESS))

        def work(tx: Any) -> tuple[list[tuple[str, Outgoing]], bool]:
            records = Records(tx.connection)
            if at is not None:
                records.forget(decisions=at - DECISIONS_KEPT, threads=at - THREADS_KEPT)
            outgoing = [*reclaim(records, roster, now, died), *assign(records, roster, now)]
            for thread in sorted({message.thread_id for message in outgoing}):
                outgoing += report(records, roster, thread, now)
            outgoing += report_held(records, roster, now)
            records.add_outgoing((message.id or self._ids(), message) for message in outgoing)
            return records.outbox(), bool(records.unreported())

        outgoing, held = self._decisions.database.write(work, durable=True)
        if outgoing:
            self._send(outgoing)
            ids = [id for id, _ in outgoing]
            self._decisions.database.write(lambda tx: Records(tx.connection).remove_sent(ids), durable=False)
        return held


def roster_of(workspace: Workspace) -> Roster:
    """Return the members of the team, and the agents that are gone."""
    team = workspace.team
    workers = team.workers or [name for name in team.agents if _worker(name)]
    gone = {name for name, found in workspace.memory.presences().items() if found.presence == "gone"}
    return Roster(frozenset(team.recipients), tuple(workers), team.leader, frozenset(gone), workspace.beats())


def handle(workspace: Workspace, coordinator: str, message: Message) -> list[Draft]:
    """Decide on a message to the coordinator; return the answers, to be published with its acknowledgement.

    Raise ValidationFailed if the coordinator cannot act on the message.
    """
    decisions = Decisions(workspace.memory.database)
    outgoing = decisions.decide(message, roster_of(workspace), workspace.clock.now())
    return [draft for each in outgoing for draft in _drafts(workspace, coordinator, each, each.id)]


def sweep_of(workspace: Workspace, coordinator: str = COORDINATOR) -> Sweep:
    """Return the coordinator's sweep, as a task of the team's service."""

    return Sweep(
        Decisions(workspace.memory.database),
        roster=lambda: roster_of(workspace),
        died=lambda tasks: _died(workspace, tasks),
        send=lambda outgoing: publish(workspace, coordinator, outgoing),
        clock=workspace.clock,
        ids=lambda: workspace.fresh()[0],
    )


def publish(workspace: Workspace, sender: str, outgoing: Sequence[tuple[str, Outgoing]]) -> None:
    """Send messages, each under its id: repeating it is safe."""
    drafts: list[Draft] = []
    for id, message in outgoing:
        try:
            drafts += _drafts(workspace, sender, message, id)
        except QueueUnknown as exc:  # the team has changed since; the task is taken back in the next sweep
            log.warning("%(type)s not sent: %(error)s", {"type": message.type, "id": id, "error": str(exc)})
    workspace.store.publish(drafts)


def _died(workspace: Workspace, tasks: Sequence[Task]) -> dict[str, str]:
    found = [workspace.store.find(task.assigned_to, assignment_id(task)) for task in tasks]
    return {
        entry.id: entry.failure.reason or entry.failure.code
        for entry in found
        if entry is not None and entry.state is State.DEAD and entry.failure is not None
    }


def _drafts(workspace: Workspace, coordinator: str, message: Outgoing, id: str) -> list[Draft]:
    return mail.compose(
        workspace,
        sender=coordinator,
        to=message.to,
        type=message.type,
        body=message.body,
        priority=message.priority,
        thread_id=message.thread_id,
        in_reply_to=message.in_reply_to,
        repository=message.repository,
        issue=message.issue,
        id=id,
    )
