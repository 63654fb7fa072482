"""`pabal ignite dlq | replay`: what died, why, and another try."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from pabal.cli.exits import Exit
from pabal.cli.ignite_session import command, opened, some_agent_argument
from pabal.cli.session import json_option
from pabal.cli.text import ago, clean, json_text, table
from pabal.errors import MessageUnknown

if TYPE_CHECKING:
    from pabal.ignite.graves import Grave
    from pabal.ignite.workspace import Workspace


@command("dlq")
@some_agent_argument
@json_option
@click.pass_context
def dlq(ctx: click.Context, agent: str | None, as_json: bool) -> None:
    """List the messages that were given up or could not be read.

    \b
    Examples:
      pabal ignite dlq
      pabal ignite dlq ignitian_1 --json
    """
    with opened() as workspace:
        found = list(_graves(workspace, agent))
    if as_json:
        for grave in found:
            click.echo(json_text(grave._asdict()))
    elif found:
        head = ("agent", "type", "id", "state", "tries", "when", "reason")
        rows = [
            (
                g.queue,
                clean(g.type),
                clean(g.id),
                g.state,
                str(g.attempt or ""),
                ago(g.at),
                clean(f"{g.code}: {g.reason}"),
            )
            for g in found
        ]
        click.echo("\n".join(table(head, rows, right="    r")))
    ctx.exit(Exit.DONE if found else Exit.NOTHING)


@command("replay")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--agent", metavar="AGENT", help="Of this agent only.")
@click.option("--all", "every", is_flag=True, help="Everything that died.")
def replay(ids: tuple[str, ...], agent: str | None, every: bool) -> None:
    """Try dead messages again, with no tries counted.

    \b
    Examples:
      pabal ignite replay 1770263544.12345.abcdef
      pabal ignite replay --all --agent ignitian_1
    """
    if bool(ids) == every:
        raise click.UsageError("give the ids of messages, or --all")
    with opened() as workspace:
        wanted: dict[str, list[str]] = {}
        for grave in _graves(workspace, agent):
            if grave.state == "dead" and (every or grave.id in ids):
                wanted.setdefault(grave.queue, []).append(grave.id)
        revived = [id for queue, some in wanted.items() for id in workspace.queue(queue).revive(some)]
        _drop_letters(workspace, set(revived))
    for id in revived:
        click.echo(id)
    missing = [id for id in ids if id not in revived]
    if missing:
        raise MessageUnknown(f"not among the dead: {', '.join(missing[:5])}; `pabal ignite dlq` lists them")


def _graves(workspace: Workspace, agent: str | None) -> Iterator[Grave]:
    from pabal.ignite.graves import graves_of

    names = [workspace.team.name_of(agent)] if agent else workspace.layout.queues(workspace.root)
    for name in sorted(names):
        yield from graves_of(workspace, name)


def _drop_letters(workspace: Workspace, ids: set[str]) -> None:
    """Remove the dead letters of what lives again."""
    from pabal.ignite.layout import DEAD_LETTERS
    from pabal.store import State

    bodies = {
        entry.id: entry.message.body
        for entry in workspace.queue(DEAD_LETTERS).entries(State.READY)
        if entry.message is not None
    }
    letters = [id for id, body in bodies.items() if isinstance(body, dict) and body.get("original_id") in ids]
    workspace.store.purge(DEAD_LETTERS, State.READY, ids=letters, limit=len(letters))
