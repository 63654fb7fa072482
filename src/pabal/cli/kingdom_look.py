"""`pabal kingdom status`, `events` and `tasks`: how things stand, and why what waits is waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pabal.cli.kingdom_session import command, opened
from pabal.cli.session import json_option
from pabal.cli.text import clean, json_text, table

if TYPE_CHECKING:
    from pabal.kingdom.reporting import Report


@command("status")
@json_option
def status(as_json: bool) -> None:
    """Show roles, soldiers, health, queues, and what is wrong.

    \b
    Examples:
      pabal kingdom status
      pabal kingdom status --json | jq .problems

    --json: home, roles, health, soldiers, queues, problems.
    """
    from pabal.kingdom.reporting import report

    with opened() as home:
        found = report(home)
    if as_json:
        click.echo(json_text(found.document()))
        return
    for line in _status_lines(found):
        click.echo(clean(line))


def _status_lines(found: Report) -> list[str]:
    roles = [[role.name, role.state, str(role.pid or ""), role.since] for role in found.roles]
    queues = [[name, *(str(count) for count in counts.values())] for name, counts in found.queues.items()]
    states = list(next(iter(found.queues.values())))
    lines = [
        f"health    {found.health}",
        f"soldiers  {found.soldiers} of {found.most_soldiers}",
        "",
        *(table(["ROLE", "STATE", "PID", "LAST PASS"], roles, right="llrr") if roles else ["no role runs"]),
        "",
        *table(["QUEUE", *(state.upper() for state in states)], queues, right="lrrrrrr"),
    ]
    if found.problems:
        lines += ["", *(f"! {' '.join(problem.split())}" for problem in found.problems)]
    return lines


@command("events")
@json_option
@click.option("--completed", is_flag=True, help="Show those that are over instead, newest first.")
@click.option("--limit", type=click.IntRange(1), default=100, metavar="COUNT", help="Show so many; 100 by default.")
def events(as_json: bool, completed: bool, limit: int) -> None:
    """List events that wait, each with the reason.

    Malformed ones are listed with what is wrong with them.

    \b
    Examples:
      pabal kingdom events
      pabal kingdom events --completed --json

    --json: id, type, priority, created_at, why.
    """
    from pabal.kingdom.reporting import completed_events, waiting_events

    with opened() as home:
        found = completed_events(home, limit) if completed else waiting_events(home, limit)
    _print(found, as_json, ["id", "type", "priority", "created_at", "why"])


@command("tasks")
@json_option
@click.option("--completed", is_flag=True, help="Show those that are over instead.")
@click.option("--limit", type=click.IntRange(1), default=100, metavar="COUNT", help="Show so many; 100 by default.")
def tasks(as_json: bool, completed: bool, limit: int) -> None:
    """List tasks that wait or run, each with how it stands.

    \b
    Examples:
      pabal kingdom tasks
      pabal kingdom tasks --completed --limit 20

    --json: id, general, type, priority, created_at, why.
    """
    from pabal.kingdom.reporting import listed_tasks

    with opened() as home:
        found = listed_tasks(home, limit, completed=completed)
    _print(found, as_json, ["id", "general", "type", "priority", "created_at", "why"])


def _print(found: list[dict[str, Any]], as_json: bool, columns: list[str]) -> None:
    if as_json:
        for document in found:
            click.echo(json_text(document))
    elif found:
        rows = [[clean(str(document.get(name) or "")) for name in columns] for document in found]
        for line in table([name.upper() for name in columns], rows):
            click.echo(line)
    else:
        click.echo("none")
