"""`pabal ignite coordinate`, `tasks` and `task`: run the coordinator on a message, list tasks, and take them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from pabal.cli.exits import Exit
from pabal.cli.ignite_session import command, opened, own_name
from pabal.cli.session import help_if_alone, json_option
from pabal.cli.text import ago, clean, json_text, table
from pabal.errors import InvalidInput, QueueUnknown
from pabal.names import shown_name

if TYPE_CHECKING:
    from pabal.apps.ignite.workspace import Workspace

STATUSES = ("queued", "in_progress", "completed", "failed")


@command("coordinate")
def coordinate() -> None:
    """Take the coordinator's turn: decide on a message and answer.

    It is the command of an agent in the team file; IGNITE_RECEIPT names the message. It is acknowledged and
    answered in one step. One that cannot be acted upon is buried with the reason.

    \b
    Example, in team.yaml, what runs `pabal ignite coordinate`:
      coordinator: {wake: exec, command: [pabal, ignite, coordinate]}
    """
    from pabal.apps.ignite.coordinator.role import handle
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
    sent = ", ".join(f"{draft.message.type} to {draft.queue}" for draft in drafts)
    click.echo(f"{held.message.type} from {held.message.sender}: {sent or 'noted'}")


@command("tasks")
@click.option("--status", type=click.Choice(STATUSES), help="Only those with this status.")
@click.option("--thread", default="", metavar="ID", help="Only those of one goal.")
@click.option("--agent", default="", metavar="AGENT", help="Only those of this agent.")
@click.option("--ready", "only_ready", is_flag=True, help="Only those that an agent can begin now.")
@json_option
def tasks(status: str | None, thread: str, agent: str, only_ready: bool, as_json: bool) -> int:
    """Show the tasks of the team and their agents.

    \b
    Examples:
      pabal ignite tasks
      pabal ignite tasks --ready
      pabal ignite tasks --status in_progress --json
    """
    from pabal.apps.ignite.coordinator.claims import Claims
    from pabal.apps.ignite.coordinator.decisions import Decisions
    from pabal.apps.ignite.coordinator.records import Status

    with opened() as workspace:
        if only_ready:
            found = Claims(workspace).ready()
        else:
            found = Decisions(workspace.memory.database).tasks(*([Status(status)] if status else []))
        owner = workspace.team.filter_of(agent) if agent else ""
    found = [task for task in found if not thread or task.thread == thread]
    found = [task for task in found if not owner or task.assigned_to == owner]
    if as_json:
        for task in found:
            click.echo(json_text(_document(task)))
    elif found:
        head = ("TASK", "STATUS", "AGENT", "TRIES", "SINCE", "NEEDS", "TITLE")
        click.echo("\n".join(table(head, [_row(task) for task in found], right="   r")))
    return Exit.DONE if found else Exit.NOTHING


@click.group("task", invoke_without_command=True)
@click.pass_context
def task(ctx: click.Context) -> None:
    """Add, claim, release or finish a task.

    For agents of any name, with or without a coordinator. A task has one owner. A claim whose owner gives no sign of
    life for half an hour is lost, and the task is ready again.
    """
    help_if_alone(ctx)


_agent_option = click.option("--agent", metavar="AGENT", help="Whose; IGNITE_AGENT by default, else user.")


@command("add")
@click.argument("title", metavar="TITLE")
@click.option("--id", "task_id", default="", metavar="ID", help="Its id; else one is made.")
@click.option("--needs", multiple=True, metavar="ID", help="A task that must be completed first; may be given again.")
@click.option("--priority", default="normal", metavar="LEVEL", help="critical, high, normal or low.")
@click.option("--description", default="", metavar="TEXT", help="What is to be done.")
@click.option("--thread", default="", metavar="ID", help="The goal that it belongs to.")
@_agent_option
def add_task(title: str, agent: str | None, **more: Any) -> None:
    """Add a task to the list; print its id.

    \b
    Examples:
      pabal ignite task add "write the schema" --id schema
      pabal ignite task add "write the API" --needs schema --priority high
    """
    from pabal.apps.ignite.coordinator.claims import Claims

    with opened() as workspace:
        click.echo(Claims(workspace).add(title, sender=_own(workspace, agent), **more).task_id)


@command("claim")
@click.argument("task_id", metavar="[TASK]", default="")
@_agent_option
@json_option
def claim_task(task_id: str, agent: str | None, as_json: bool) -> int:
    """Take a task: TASK, or the first that is ready.

    An agent that has one and names no other gets its own again. Ends with 1 if none is ready, with 2 if TASK is taken
    or waits for others.

    \b
    Examples:
      pabal ignite task claim
      pabal ignite task claim schema --agent architect --json
    """
    from pabal.apps.ignite.coordinator.claims import Claims

    with opened() as workspace:
        found = Claims(workspace).claim(_own(workspace, agent), task_id)
    if found is None:
        return Exit.NOTHING
    if as_json:
        click.echo(json_text({**_document(found), "description": found.work.get("description") or ""}))
    else:
        click.echo(clean(f"{found.task_id}: {found.title}"))
        for line in str(found.work.get("description") or "").splitlines():
            click.echo(f"    {clean(line)}")
    return Exit.DONE


@command("release")
@click.argument("task_id", metavar="TASK")
@_agent_option
def release_task(task_id: str, agent: str | None) -> None:
    """Give a claimed task back; it does not count as a try.

    \b
    Example:
      pabal ignite task release schema
    """
    from pabal.apps.ignite.coordinator.claims import Claims

    with opened() as workspace:
        found = Claims(workspace).release(_own(workspace, agent), task_id)
    click.echo(f"released {found.task_id}")


@command("done")
@click.argument("task_id", metavar="TASK")
@click.option("--notes", default="", metavar="TEXT", help="What was done.")
@click.option("--failed", default="", metavar="REASON", help="It failed: try it again, three times in all.")
@_agent_option
def finish_task(task_id: str, notes: str, failed: str, agent: str | None) -> None:
    """Complete a claimed task, or report that it failed.

    \b
    Examples:
      pabal ignite task done schema --notes "in docs/schema.sql"
      pabal ignite task done schema --failed "no access to the server"
    """
    from pabal.apps.ignite.coordinator.claims import Claims

    with opened() as workspace:
        found = Claims(workspace).finish(_own(workspace, agent), task_id, notes=notes, failed=failed)
    click.echo(f"{found.status} {found.task_id}")


for _command in (add_task, claim_task, release_task, finish_task):
    task.add_command(_command)


def _own(workspace: Workspace, given: str | None) -> str:
    return workspace.team.recipient_of(given or own_name() or "user")


def _row(task: Any) -> tuple[str, ...]:
    since = task.completed_at or task.started_at
    agent = "" if task.status == "queued" else shown_name(task.assigned_to)
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
