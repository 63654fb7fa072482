"""`pabal ignite coordinate` and `tasks`: the coordinator's turn, and what stands in its books."""

from __future__ import annotations

import os
from typing import Any

import click

from pabal.cli.exits import Exit
from pabal.cli.ignite_session import command, opened
from pabal.cli.session import json_option
from pabal.cli.text import ago, clean, json_text, table
from pabal.errors import InvalidInput, QueueUnknown

STATUSES = ("queued", "in_progress", "completed", "failed")


@command("coordinate")
def coordinate() -> None:
    """Take the coordinator's turn: decide on a message and answer.

    It is the command of an agent in the team file; IGNITE_RECEIPT says which message it is. That is acknowledged and
    answered in one step. One that cannot be acted upon is buried with the reason.

    \b
    Example, in team.yaml, what runs `pabal ignite coordinate`:
      coordinator: {wake: exec, command: [pabal, ignite, coordinate]}
    """
    from pabal.ignite.clerk.coordinating import handle
    from pabal.store import Receipt

    given = os.environ.get("IGNITE_RECEIPT", "")
    if not given:
        raise click.UsageError("IGNITE_RECEIPT names no message: the monitor sets it, see the example")
    receipt = Receipt.parse(given)
    with opened() as workspace:
        held = workspace.find_held(receipt.id, receipt=given)
        delivery = workspace.delivery(held)
        try:
            drafts = handle(workspace, receipt.queue, held.message)
        except (InvalidInput, QueueUnknown) as exc:
            delivery.bury(f"{exc.code}: {exc}")
            click.echo(clean(f"{held.message.type} from {held.message.sender}: buried, {exc}"))
            return
        delivery.ack(then=drafts)
    said = ", ".join(f"{draft.message.type} to {draft.queue}" for draft in drafts)
    click.echo(f"{held.message.type} from {held.message.sender}: {said or 'noted'}")


@command("tasks")
@click.option("--status", type=click.Choice(STATUSES), help="Only those that stand so.")
@click.option("--thread", default="", metavar="ID", help="Only those of one goal.")
@json_option
def tasks(status: str | None, thread: str, as_json: bool) -> int:
    """Show the coordinator's tasks and who has which.

    \b
    Examples:
      pabal ignite tasks
      pabal ignite tasks --status in_progress --json
    """
    from pabal.ignite.clerk.desk import Desk
    from pabal.ignite.clerk.values import Status

    with opened() as workspace:
        found = Desk(workspace.memory.database).tasks(*([Status(status)] if status else []))
    found = [task for task in found if not thread or task.thread == thread]
    if as_json:
        for task in found:
            click.echo(json_text(_document(task)))
    elif found:
        head = ("TASK", "STATUS", "AGENT", "TRIES", "SINCE", "NEEDS", "TITLE")
        click.echo("\n".join(table(head, [_row(task) for task in found], right="   r")))
    return Exit.DONE if found else Exit.NOTHING


def _row(task: Any) -> tuple[str, ...]:
    since = task.completed_at or task.started_at
    agent = "" if task.status == "queued" else task.assigned_to
    needs = ", ".join(task.dependencies)
    return (
        clean(task.task_id),
        str(task.status),
        agent,
        str(task.tries),
        ago(since) if since else "",
        clean(needs),
        clean(task.title),
    )


def _document(task: Any) -> dict[str, Any]:
    return {
        "thread": task.thread,
        "task_id": task.task_id,
        "title": task.title,
        "status": str(task.status),
        "priority": task.priority,
        "assigned_to": task.assigned_to or None,
        "delegated_by": task.delegated_by or None,
        "repository": task.repository or None,
        "issue_number": task.issue_number or None,
        "dependencies": list(task.dependencies),
        "tries": task.tries,
        "started_at": task.started_at or None,
        "touched_at": task.touched_at or None,
        "completed_at": task.completed_at or None,
        "result": task.result,
    }
