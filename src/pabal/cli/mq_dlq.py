"""The verbs of `pabal mq` over dead letters: list, count, reprocess, purge, archive, quarantine, release."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from pabal.cli.exits import Exit
from pabal.cli.mq_session import Document, ask, queue_needed, verb
from pabal.cli.text import ago, clean, json_text, table
from pabal.cli.values import duration

queue_option = click.option("--queue", default="", metavar="QUEUE", help="Which queue.")
key_option = click.option("--message-key", default="", metavar="KEY", help="Which message: msg:<queue>:<id>.")


def choosing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose among the dead."""
    older = click.option(
        "--older-than", type=duration, default="0", metavar="TIME", help="Only those dead for so long: 30s, 5m, 2h, 7d."
    )
    reason = click.option("--reason", default="", metavar="TEXT", help="Only those of this code, or with this text.")
    return reason(older(function))


def _payload(queue: str, reason: str, older_than: float, **more: Any) -> Document:
    return {"queue": queue, "reason": reason, "olderThanSec": older_than, **more}


@verb("list-dlq")
@queue_needed
@choosing
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, metavar="N", help="At most N.")
def list_dlq(queue: str, reason: str, older_than: float, limit: int, as_json: bool) -> None:
    """List the dead messages of a queue and why they died.

    Ends with 1 if there is none.

    \b
    Example:
      pabal mq list-dlq --queue telemetry --limit 50

    --json: queue, count, messages [{messageKey, queue, reason, reasonCode, dlqAt, attempt, consumerId}], total.
    """
    data = ask("list_dlq", _payload(queue, reason, older_than, limit=limit))
    if as_json:
        click.echo(json_text(data))
    elif data["messages"]:
        rows = [
            [
                found["messageKey"],
                str(found["attempt"]),
                ago(found["dlqAt"] / 1000),
                clean(found["reasonCode"]),
                clean(found["reason"]),
            ]
            for found in data["messages"]
        ]
        for line in table(("KEY", "TRIES", "WHEN", "CODE", "REASON"), rows, right=" r"):
            click.echo(line)
        click.echo(f"\n{data['total']} dead" + (f", {data['count']} shown" if data["count"] < data["total"] else ""))
    if not data["messages"]:
        click.echo(f"no dead messages in {queue}", err=True)
        click.get_current_context().exit(Exit.NOTHING)


@verb("count-dlq")
@queue_option
@choosing
def count_dlq(queue: str, reason: str, older_than: float, as_json: bool) -> None:
    """Count the dead by queue and reason.

    Without --queue, of all queues. Ends with 1 if there is none.

    \b
    Example:
      pabal mq count-dlq --older-than 1d

    --json: count, queues {queue: {reasonCode: count}}.
    """
    data = ask("count_dlq", _payload(queue, reason, older_than))
    if as_json:
        click.echo(json_text(data))
    else:
        rows = [
            [name, clean(code), str(count)] for name, codes in data["queues"].items() for code, count in codes.items()
        ]
        for line in table(("QUEUE", "CODE", "COUNT"), rows, right="  r") if rows else ["nothing is dead"]:
            click.echo(line, err=not rows)
    if not data["count"]:
        click.get_current_context().exit(Exit.NOTHING)


@verb("reprocess")
@key_option
@queue_option
@choosing
def reprocess(message_key: str, queue: str, reason: str, older_than: float, as_json: bool) -> None:
    """Make one dead message ready again, or all that are chosen.

    Their attempts are counted anew. Ends with 3 if the message is not dead.

    \b
    Examples:
      pabal mq reprocess --message-key msg:telemetry:0199c1d2
      pabal mq reprocess --queue telemetry --reason LEASE_EXPIRED
    """
    data = ask("reprocess_dlq", _one_or_some(message_key, queue, reason, older_than))
    if as_json:
        click.echo(json_text(data))
    else:
        click.echo(f"ready {message_key}" if message_key else f"{data['reprocessed']} ready again in {queue}")


@verb("purge-dlq")
@queue_needed
@choosing
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge_dlq(queue: str, reason: str, older_than: float, yes: bool, as_json: bool) -> None:
    """Remove dead messages for good.

    \b
    Example:
      pabal mq purge-dlq --queue telemetry --reason EXPIRED --older-than 7d
    """
    if not yes:
        _confirm(queue, reason, older_than)
    data = ask("purge_dlq", _payload(queue, reason, older_than))
    click.echo(json_text(data) if as_json else f"removed {data['purged']} dead from {queue}")


def _confirm(queue: str, reason: str, older_than: float) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("purge-dlq removes messages for good: say --yes")
    count = ask("count_dlq", _payload(queue, reason, older_than))["count"]
    click.confirm(f"Remove {count} dead messages of {queue} for good?", abort=True)


@verb("archive-dlq")
@queue_needed
@choosing
def archive_dlq(queue: str, reason: str, older_than: float, as_json: bool) -> None:
    """Write dead messages to a file, then remove them.

    Each is a line of JSON. The file is on disk before anything is removed. It lies in archive/<queue>/ of the mailbox.

    \b
    Example:
      pabal mq archive-dlq --queue telemetry --older-than 7d

    --json: queue, archived, file.
    """
    data = ask("archive_dlq", _payload(queue, reason, older_than))
    if as_json:
        click.echo(json_text(data))
    else:
        click.echo(f"archived {data['archived']} of {queue}" + (f" in {data['file']}" if data["file"] else ""))


@verb("quarantine")
@key_option
@queue_option
@choosing
def quarantine(message_key: str, queue: str, reason: str, older_than: float, as_json: bool) -> None:
    """Set dead messages apart.

    They move with their failure to a paused queue beside theirs, where no retention and no reprocess reaches them.
    `pabal mq release` brings them back.

    \b
    Example:
      pabal mq quarantine --queue telemetry --reason POISON
    """
    data = ask("quarantine_dlq", _one_or_some(message_key, queue, reason, older_than))
    click.echo(json_text(data) if as_json else f"moved {data['quarantined']} to {data['quarantine']}")


@verb("release")
@queue_needed
def release(queue: str, as_json: bool) -> None:
    """Bring what is in quarantine back to its queue.

    There it is ready to be taken.

    \b
    Example:
      pabal mq release --queue telemetry
    """
    data = ask("release_dlq", {"queue": queue})
    click.echo(json_text(data) if as_json else f"{data['released']} ready again in {queue}")


def _one_or_some(message_key: str, queue: str, reason: str, older_than: float) -> Document:
    if bool(message_key) == bool(queue):
        raise click.UsageError("give --message-key, or --queue with what to choose there")
    return {"messageKey": message_key} if message_key else _payload(queue, reason, older_than)


DLQ_VERBS = (list_dlq, count_dlq, reprocess, purge_dlq, archive_dlq, quarantine, release)
