"""`pabal list-dlq`, `reprocess` and `purge`: tend what is dead."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import click

from pabal.cli.documents import entry_document
from pabal.cli.exits import Exit, NotFound
from pabal.cli.session import command, json_option, known, opened, queue_argument
from pabal.cli.text import ago, clean, json_text, span, table
from pabal.cli.values import duration
from pabal.names import check_id
from pabal.queue import Queue
from pabal.store import Entry, State

_SLICE = 100
_PURGEABLE = [str(state) for state in State if state is not State.INFLIGHT]


@command("list-dlq")
@queue_argument
@click.option(
    "--limit", type=click.IntRange(1, 10**9), default=50, show_default=True, metavar="N", help="List at most N."
)
@json_option
def list_dlq(queue: str, limit: int, as_json: bool) -> None:
    """List the dead messages of QUEUE and why they died.

    At the end they are counted by reason. Ends with 1 if there is none. `pabal reprocess` gives them another chance.

    \b
    Examples:
      pabal list-dlq jobs
      pabal list-dlq jobs --json | jq -r .failure.reason

    --json: as `pabal peek`.
    """
    with opened() as mq:
        source = known(mq, queue)
        total = source.counts().get(State.DEAD, 0)
        found = list(islice(source.entries(State.DEAD), limit))
        if as_json:
            for entry in found:
                click.echo(json_text(entry_document(entry)))
        elif found:
            _list(found)
            _count(source if total > len(found) else None, found, total)
    if not found:
        click.echo(f"no dead messages in {queue}", err=True)
        click.get_current_context().exit(Exit.NOTHING)


@command("reprocess")
@queue_argument
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--reason", metavar="TEXT", help="Those whose failure has this code, or this text in its reason.")
@click.option("--all", "everything", is_flag=True, help="Every dead message.")
@click.option("--dry-run", is_flag=True, help="Only list them.")
@json_option
def reprocess(
    queue: str, ids: tuple[str, ...], reason: str | None, everything: bool, dry_run: bool, as_json: bool
) -> None:
    """Make dead messages of QUEUE ready again.

    Their attempts are counted anew. Prints their ids. Ends with 1 if no message fits, with 3 if an ID is not dead.

    \b
    Examples:
      pabal reprocess jobs 0199c1d2-77aa-7d21-a1a4-b49a3e7f5c10
      pabal reprocess jobs --reason LEASE_EXPIRED --dry-run
      pabal reprocess jobs --all

    --json: queue, id, reprocessed.
    """
    if (bool(ids) + (reason is not None) + everything) != 1:
        raise click.UsageError("name one or more ID, or --reason TEXT, or --all")
    with opened() as mq:
        source = known(mq, queue)
        chosen = _named(source, ids) if ids else [e.id for e in source.entries(State.DEAD) if _fits(e, reason)]
        revived = chosen if dry_run else list(_revived(source, chosen))
    for id in revived:
        click.echo(json_text({"queue": queue, "id": id, "reprocessed": not dry_run}) if as_json else id)
    if not as_json or not revived:
        click.echo(f"{len(revived)} {'would be ready again' if dry_run else 'ready again'} in {queue}", err=True)
    if not revived:
        click.get_current_context().exit(Exit.NOTHING)


@command("purge")
@queue_argument
@click.option("--state", type=click.Choice(_PURGEABLE), required=True, help="Which messages; never those in flight.")
@click.option("--older-than", "age", type=duration, default="0", metavar="TIME", help="In this state for so long.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(queue: str, state: str, age: float, yes: bool) -> None:
    """Remove messages of one state from QUEUE for good.

    \b
    Examples:
      pabal purge jobs --state dead --older-than 7d
      pabal purge jobs --state done --yes
    """
    with opened() as mq:
        source = known(mq, queue)
        if not yes:
            _ask(source, State(state), age)
        removed = source.purge(State(state), age)
    click.echo(f"removed {removed} {state} from {queue}")


def _ask(queue: Queue, state: State, age: float) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("purge removes messages for good: say --yes")
    which = f"those {state} for {span(age)} or longer of the" if age else "all"
    click.confirm(f"Remove {which} {queue.counts().get(state, 0)} {state} messages of {queue.name}?", abort=True)


def _list(found: list[Entry]) -> None:
    rows = []
    for entry in found:
        failure = entry.failure
        code, reason, at = (failure.code, failure.reason, failure.at) if failure else ("", "", 0.0)
        rows.append([clean(entry.id), str(entry.attempt), ago(at) if at else "", clean(code), clean(reason)])
    for line in table(("ID", "TRIES", "WHEN", "CODE", "REASON"), rows, right=" r"):
        click.echo(line)


def _count(rest: Queue | None, found: list[Entry], total: int) -> None:
    entries = found if rest is None else rest.entries(State.DEAD)
    by_reason = Counter(_reason(entry) for entry in entries)
    shown = f", {len(found)} shown" if total > len(found) else ""
    click.echo(f"\n{sum(by_reason.values())} dead{shown}")
    for reason, count in by_reason.most_common(10):
        click.echo(f"{count:>7}  {clean(reason)}")


def _reason(entry: Entry) -> str:
    if entry.failure is None:
        return "no reason kept"
    return f"{entry.failure.code}: {entry.failure.reason}" if entry.failure.reason else entry.failure.code


def _fits(entry: Entry, reason: str | None) -> bool:
    if reason is None:
        return True
    failure = entry.failure
    return failure is not None and (failure.code.lower() == reason.lower() or reason.lower() in failure.reason.lower())


def _named(queue: Queue, ids: tuple[str, ...]) -> list[str]:
    for id in ids:
        entry = queue.find(check_id(id))
        if entry is None or entry.state is not State.DEAD:
            found = "it is " + entry.state if entry else "no such message"
            raise NotFound(f"no dead message {id} in {queue.name}: {found}")
    return list(ids)


def _revived(queue: Queue, ids: list[str]) -> Iterator[str]:
    for start in range(0, len(ids), _SLICE):
        yield from queue.revive(ids[start : start + _SLICE])
