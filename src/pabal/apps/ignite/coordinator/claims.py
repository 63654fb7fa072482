"""Tasks that agents take themselves: what is ready, claim, release, finish. For agents of any name.

The tasks are those of the coordinator, in the same tables, and each step is one transaction: a task has one owner. A
team needs no coordinator for this. If it has one, the coordinator gives ready tasks to idle workers, and agents may
claim the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, TypeVar

from msgspec.structs import replace

from pabal.apps.ignite.coordinator.decisions import Decisions
from pabal.apps.ignite.coordinator.records import Outgoing, Records, Roster, Status, Task
from pabal.apps.ignite.coordinator.role import COORDINATOR, publish, roster_of
from pabal.apps.ignite.coordinator.tasks import TRIES, complete, ready, reclaim, waits_for, why_lost
from pabal.apps.ignite.team import MONITOR
from pabal.apps.ignite.workspace import Workspace
from pabal.errors import InvalidInput, MessageUnknown, NameTaken, QueueFull
from pabal.message import PRIORITIES
from pabal.names import check_id

log = logging.getLogger("pabal.ignite")

THREAD = "tasks"  # of tasks that belong to no goal
R = TypeVar("R")


class Claims:
    """The tasks of a workspace, for agents that take them themselves."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._decisions = Decisions(workspace.memory.database)

    def ready(self) -> list[Task]:
        """Return the tasks that wait for nothing but an agent, the urgent ones first; also those whose owner is lost.

        The next claim takes these from their owner. Here nothing is changed.
        """
        roster, now = roster_of(self._workspace), self._workspace.clock.now()

        def look(connection: Any) -> list[Task]:
            records = Records(connection)
            lost = [task for task in records.tasks(Status.IN_PROGRESS) if why_lost(task, roster, now, {})]
            return ready(records, [replace(task, status=Status.QUEUED) for task in lost if task.tries < TRIES])

        return self._decisions.database.read(look)

    def add(
        self,
        title: str,
        *,
        sender: str,
        task_id: str = "",
        thread: str = "",
        needs: Sequence[str] = (),
        priority: str = "normal",
        description: str = "",
    ) -> Task:
        """Add a task. `needs` are the ids of tasks that must be completed first."""
        if not title.strip():
            raise InvalidInput("a task needs a title")
        if priority not in PRIORITIES:
            raise InvalidInput(f"priority is one of {', '.join(PRIORITIES)}; found {priority!r:.40}")
        made = f"t-{sha256(self._workspace.fresh()[0].encode()).hexdigest()[:6]}"

        def work(records: Records, roster: Roster, now: float) -> tuple[Task, list[Outgoing]]:
            known = {task.task_id: task for task in records.tasks()}
            if task_id in known:
                raise NameTaken(f"there is a task {task_id}: {known[task_id].title!r:.60}")
            missing = [need for need in needs if need not in known]
            if missing:
                raise MessageUnknown(f"no task {', '.join(missing)}; `pabal ignite tasks` lists them")
            goal = thread or next((known[need].thread for need in needs), THREAD)
            if away := [need for need in needs if known[need].thread != goal]:
                raise InvalidInput(f"{', '.join(away)}: of another goal than {goal}; a task needs tasks of its goal")
            id = check_id(task_id or made)
            task = Task(
                thread=goal,
                task_id=id,
                place=records.last_place() + 1,
                title=title.strip(),
                priority=priority,
                delegated_by=sender,
                dependencies=tuple(needs),
                work={"task_id": id, "title": title.strip(), "description": description},
                touched_at=now,
            )
            records.put(task)
            return task, []

        return self._write(work)

    def claim(self, agent: str, task_id: str = "") -> Task | None:
        """Give a task to an agent: this one, or the first that is ready; None if none is.

        An agent that has a task and names no other gets its own again, so that claiming after a crash loses nothing.
        Raise NameTaken if another agent has it, or if it waits for other tasks.
        """

        def work(records: Records, roster: Roster, now: float) -> tuple[Task | None, list[Outgoing]]:
            outgoing = reclaim(records, roster, now, {})
            own = [task for task in records.tasks(Status.IN_PROGRESS) if task.assigned_to == agent]
            task = _find(records, task_id) if task_id else next(iter([*own, *ready(records)]), None)
            if task is None:
                return None, outgoing
            if task not in own:
                _check_free(records, task)
                task = replace(task, assigned_to=agent, tries=task.tries + 1, started_at=now)
            task = replace(task, status=Status.IN_PROGRESS, touched_at=now, result=None)
            records.put(task)
            return task, outgoing

        return self._write(work)

    def release(self, agent: str, task_id: str) -> Task:
        """Put a task of an agent back into the list; it does not count as a try."""

        def work(records: Records, roster: Roster, now: float) -> tuple[Task, list[Outgoing]]:
            task = _own(records, agent, task_id)
            task = replace(task, status=Status.QUEUED, assigned_to="", tries=max(0, task.tries - 1), result=None)
            records.put(task)
            return task, []

        return self._write(work)

    def finish(self, agent: str, task_id: str, *, notes: str = "", failed: str = "") -> Task:
        """Complete a task of an agent, or report why it failed: then it is tried again, three times in all."""

        def work(records: Records, roster: Roster, now: float) -> tuple[Task, list[Outgoing]]:
            task = _own(records, agent, task_id)
            report: dict[str, Any] = {"task_id": task_id, "title": task.title, "status": "success", "notes": notes}
            if failed:
                report |= {"status": "error", "error": {"message": failed}}
            outgoing = complete(records, roster, task, sender=agent, report=report, now=now)
            records.set_unreported(task.thread, COORDINATOR in roster.agents)
            return _find(records, task_id), outgoing

        return self._write(work)

    def _write(self, work: Callable[[Records, Roster, float], tuple[R, list[Outgoing]]]) -> R:
        """Change the tasks in one transaction, then send what follows from it.

        Messages are in the outbox until they are sent, by this process, the next one or the coordinator's sweep.
        """
        roster, now = roster_of(self._workspace), self._workspace.clock.now()

        def write(tx: Any) -> tuple[R, list[tuple[str, Outgoing]]]:
            records = Records(tx.connection)
            result, outgoing = work(records, roster, now)
            records.add_outgoing((message.id or self._workspace.fresh()[0], message) for message in outgoing)
            return result, records.outbox()

        database = self._decisions.database
        result, outgoing = database.write(write, durable=True)
        if outgoing:
            try:
                publish(self._workspace, COORDINATOR if COORDINATOR in roster.agents else MONITOR, outgoing)
            except QueueFull as exc:  # they stay in the outbox
                log.warning("messages about tasks wait: %(error)s", {"error": str(exc)})
                return result
            sent = [id for id, _ in outgoing]
            database.write(lambda tx: Records(tx.connection).remove_sent(sent), durable=False)
        return result


def _find(records: Records, task_id: str) -> Task:
    found = records.find_task("", task_id, "")
    if found is None:
        raise MessageUnknown(f"no task {task_id!r:.80}; `pabal ignite tasks` lists them")
    return found


def _own(records: Records, agent: str, task_id: str) -> Task:
    task = _find(records, task_id)
    if task.status is not Status.IN_PROGRESS or task.assigned_to != agent:
        owner = f"{task.assigned_to} has it" if task.status is Status.IN_PROGRESS else f"it is {task.status}"
        raise NameTaken(f"{agent} has not claimed {task_id}: {owner}")
    return task


def _check_free(records: Records, task: Task) -> None:
    if task.status is not Status.QUEUED:
        owner = f", {task.assigned_to} has it" if task.status is Status.IN_PROGRESS else ""
        raise NameTaken(f"{task.task_id} is {task.status}{owner}; `pabal ignite tasks --ready` lists what is free")
    if waiting := waits_for(records, task):
        raise NameTaken(f"{task.task_id} waits for {', '.join(waiting)}")
