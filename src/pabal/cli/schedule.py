"""`pabal schedule`: messages that come at times given by a cron line or an interval."""

from __future__ import annotations

from typing import Literal

import click

from pabal.cli.exits import end_with_nothing
from pabal.cli.publish import content
from pabal.cli.session import command, help_if_alone, json_option, opened, url_option
from pabal.cli.text import ago, clean, json_text, span, table
from pabal.cli.values import lasting
from pabal.clock import iso_stamp
from pabal.errors import MessageUnknown
from pabal.queues.documents import schedule_document
from pabal.queues.schedules import Schedule


@click.group("schedule", invoke_without_command=True)
@url_option()
@click.pass_context
def schedule(ctx: click.Context) -> None:
    """Publish messages at given times, again and again.

    Schedules are kept in the store. Whoever consumes from the store publishes what is due: a consumer, a worker, or the
    manager.
    """
    help_if_alone(ctx)


@command("add")
@click.argument("name", metavar="NAME")
@click.option("--queue", required=True, metavar="QUEUE", help="Where the messages go.")
@click.option("--cron", "line", metavar="LINE", help="minute hour day month weekday, as in '0 9 * * 1-5'.")
@click.option("--every", type=lasting, metavar="TIME", help="The time between two messages, such as 15m.")
@click.option("--timezone", default="", metavar="ZONE", help="That of the cron line, such as Asia/Seoul.")
@click.option(
    "--catch-up",
    type=click.Choice(["once", "skip"]),
    default="once",
    show_default=True,
    help="Publish the last one that was missed, or none.",
)
@click.option("--body", default="null", metavar="BODY", help="The body of the messages: JSON, or a word.")
@click.option("--type", "kind", default="", metavar="TEXT", help="The type of the messages.")
@json_option
def add(
    name: str,
    queue: str,
    line: str | None,
    every: float | None,
    timezone: str,
    catch_up: Literal["once", "skip"],
    body: str,
    kind: str,
    as_json: bool,
) -> None:
    """Add or change the schedule NAME; print when it is next due.

    \b
    Examples:
      pabal schedule add morning --queue reports --cron '0 9 * * 1-5'
      pabal schedule add ping --queue checks --every 5m --body '{"deep": false}'

    --json: name, queue, cron, every, timezone, catch_up, type, body, next.
    """
    value = content(body.encode("utf-8", "surrogateescape"), as_text=False, as_bytes=False)
    with opened(create=True) as mq:
        made = mq.schedule(
            name, queue=queue, body=value, cron=line, every=every, timezone=timezone, catch_up=catch_up, type=kind
        )
    click.echo(
        json_text(schedule_document(made)) if as_json else f"{name}: next {iso_stamp(made.next)}, {ago(made.next)}"
    )


@command("list")
@json_option
def list_schedules(as_json: bool) -> None:
    """List the schedules of the store by name.

    \b
    Example:
      pabal schedule list

    --json: one document for each: name, queue, cron, every, timezone, catch_up, type, body, next.
    """
    with opened() as mq:
        found = mq.schedules()
    if as_json:
        for each in found:
            click.echo(json_text(schedule_document(each)))
        return
    if not found:
        end_with_nothing("no schedules")
    rows = [[each.name, each.queue, clean(_times(each)), each.catch_up, ago(each.next)] for each in found]
    for row in table(("NAME", "QUEUE", "TIMES", "CATCH UP", "NEXT"), rows):
        click.echo(row)


@command("remove")
@click.argument("name", metavar="NAME")
def remove(name: str) -> None:
    """Remove the schedule NAME; messages that it has published stay.

    \b
    Example:
      pabal schedule remove morning
    """
    with opened() as mq:
        if not mq.unschedule(name):
            raise MessageUnknown(f"no schedule {name!r:.80}; `pabal schedule list` lists them")
    click.echo(f"removed {name}")


@command("run")
@click.argument("name", metavar="NAME")
def run(name: str) -> None:
    """Publish the message of the schedule NAME now and print its id.

    Its times do not change.

    \b
    Example:
      pabal schedule run morning
    """
    with opened() as mq:
        click.echo(mq.run_schedule(name).id)


def _times(schedule: Schedule) -> str:
    if not schedule.cron:
        return f"every {span(schedule.every)}"
    return f"{schedule.cron} {schedule.timezone}".strip()


for _command in (add, list_schedules, remove, run):
    schedule.add_command(_command)
