"""The verbs for dead letters, of `pabal` and of `pabal mq`: list, count, reprocess, purge, archive, quarantine."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import click

from pabal import jsontext
from pabal.cli.exits import NotFound, end_with_nothing
from pabal.cli.session import command, json_option, known, opened, queue_argument
from pabal.cli.text import clean, json_text, span, table
from pabal.cli.values import duration
from pabal.cli.verbs import (
    DeadLetter,
    Document,
    Verb,
    ask,
    check_may_ask,
    dead_letter_lines,
    mq_request,
    mq_verb,
    queue_needed,
    yes_option,
)
from pabal.envelope import document_of_message, message_from
from pabal.errors import InvalidInput, PabalError, QueueFull, StoreError
from pabal.jsontext import pretty
from pabal.message import replace
from pabal.names import check_id
from pabal.queues.documents import entry_document
from pabal.queues.queue import Queue
from pabal.queues.redrive import NOT_DEAD, Redriven, lots, redrive
from pabal.store import Entry, Failure, State

_PURGEABLE = [str(state) for state in State if state is not State.INFLIGHT]


@command("list-dlq")
@queue_argument
@click.option(
    "--limit", type=click.IntRange(1, 10**9), default=50, show_default=True, metavar="N", help="List at most N."
)
@json_option
def list_dlq(queue: str, limit: int, as_json: bool) -> None:
    """List the dead messages of QUEUE and why they died.

    At the end they are counted by reason. `pabal reprocess` gives them another chance.

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
            click.echo("\n".join(dead_letter_lines("ID", [_dead_letter(entry) for entry in found])))
            _count(source if total > len(found) else None, found, total)
        else:
            click.echo(_no_dead(queue), err=True)


@command("reprocess")
@queue_argument
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--reason", metavar="TEXT", help="Those whose failure has this code, or this text in its reason.")
@click.option("--all", "everything", is_flag=True, help="Every dead message.")
@click.option("--to", metavar="QUEUE", help="Make them ready in this queue of the store, with their ids.")
@click.option("--rate", type=click.FloatRange(0.1, 10_000), metavar="N", help="So many a second. Else all at once.")
@click.option("--dry-run", is_flag=True, help="Only list them.")
@json_option
def reprocess(
    queue: str,
    ids: tuple[str, ...],
    reason: str | None,
    everything: bool,
    to: str | None,
    rate: float | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make dead messages of QUEUE ready again.

    Their attempts are counted from zero. Prints their ids. A message whose body does not fit the schema of the queue
    stays dead until one of them is mended. It may be stopped and started again: a message that goes to another queue is
    never lost, and is there once. Ends with 1 if no message fits, with 3 if an ID is not dead.

    \b
    Examples:
      pabal reprocess jobs 0199c1d2-77aa-7d21-a1a4-b49a3e7f5c10
      pabal reprocess jobs --reason LEASE_EXPIRED --dry-run
      pabal reprocess jobs --all
      pabal reprocess jobs --reason 'SMTP 421' --to jobs-slow --rate 10

    --json: queue (where it is now), id, reprocessed.
    """
    if (bool(ids) + (reason is not None) + everything) != 1:
        raise click.UsageError("name one or more ID, or --reason TEXT, or --all")
    with opened() as mq:
        source = known(mq, queue)
        chosen = _named(source, ids) if ids else [e.id for e in source.entries(State.DEAD) if _matches(e, reason)]
        target = known(mq, to) if to else source
        done = 0
        kept: dict[str, str] = {}
        for some in [Redriven(chosen, {})] if dry_run else _redriven(source, target, chosen, rate):
            for id in some.ids:
                document = {"queue": target.name, "id": id, "reprocessed": not dry_run}
                click.echo(json_text(document) if as_json else id)
            done, kept = done + len(some.ids), kept | some.kept
    for id, why in sorted(kept.items()):
        click.echo(f"{id}: {why}" if why == NOT_DEAD else f"{id} stays dead: {clean(why)}", err=True)
    if not as_json or not done:
        click.echo(f"{done} {'would be ready again' if dry_run else 'ready again'} in {target.name}", err=True)
    if not done:
        end_with_nothing()


def _redriven(source: Queue, target: Queue, ids: list[str], rate: float | None) -> Iterator[Redriven]:
    """Redrive messages; with a rate, sleep between."""
    due = time.monotonic()
    for some, seconds in lots(ids, rate):
        time.sleep(max(0.0, due - time.monotonic()))
        yield redrive(source, some, target)
        due += seconds


@command("edit-dlq")
@queue_argument
@click.argument("id", metavar="ID")
@json_option
def edit_dlq(queue: str, id: str, as_json: bool) -> None:
    """Edit a dead or corrupt message of QUEUE and publish it again.

    Opens its JSON in $VISUAL or $EDITOR. The mended message gets an id of its own, made of the old one and its
    content, and no time to live; then the old one is removed. Nothing happens if the text is not changed. A text that
    is no message is kept in a file, and the old message stays. Ends with 3 if ID is neither dead nor corrupt.

    \b
    Example:
      EDITOR=nano pabal edit-dlq jobs 0199c1d2-77aa-7d21-a1a4-b49a3e7f5c10

    --json: queue, id, edited (the new id, or null).
    """
    with opened() as mq:
        source = known(mq, queue)
        entry = source.find(check_id(id))
        if entry is None or entry.state not in (State.DEAD, State.CORRUPT):
            found = "it is " + entry.state if entry else "no such message"
            raise NotFound(f"no dead or corrupt message {id} in {queue}: {found}")
        before = pretty(document_of_message(entry.message, queue)) if entry.message else entry.data
        edited = _edited(before)
        new = None if edited is None else _requeue(source, entry, edited)
    if as_json:
        click.echo(json_text({"queue": queue, "id": id, "edited": new}))
    else:
        click.echo(f"{new} is ready in {queue}" if new else "not changed: nothing done")


def _edited(before: bytes) -> Path | None:
    """Let the user edit a text in a private file; return the file, or None if the text was not changed."""
    fd, name = tempfile.mkstemp(prefix="pabal-", suffix=".json")
    with os.fdopen(fd, "wb") as file:
        file.write(before)
    path, failed = Path(name), ""
    try:
        click.edit(filename=name)
    except click.ClickException as exc:
        failed = f"{exc.message}: set EDITOR to a program that edits the file it is given. Nothing was changed"
    with suppress(FileNotFoundError):  # an editor may also remove it
        if path.read_bytes() != before:
            if failed:
                raise InvalidInput(f"{failed}; your text is kept in {path}")
            return path
        path.unlink()
    if failed:
        raise InvalidInput(failed)
    return None


def _requeue(queue: Queue, entry: Entry, path: Path) -> str:
    """Publish an edited message, then remove the one it replaces. It may be repeated after a crash."""
    data = path.read_bytes()
    new = f"{entry.id[:100]}-{sha256(data).hexdigest()[:12]}"
    try:
        message = message_from(jsontext.read(data), id=new, at=time.time())
        message = replace(message, id=new, dedup_key="", unique="", expires_at=None)
        queue.validate(message)
        queue.publish_many([message])
    except (StoreError, QueueFull):
        click.echo(f"your text is kept in {path}", err=True)
        raise
    except (PabalError, ValueError, TypeError) as exc:
        reason = f"{exc.code}: {exc}" if isinstance(exc, PabalError) else str(exc)
        raise InvalidInput(f"{reason}. Nothing was changed; your text is kept in {path}") from exc
    queue.store.purge(queue.name, entry.state, ids=[entry.id])
    path.unlink()
    return new


@command("purge")
@queue_argument
@click.option("--state", type=click.Choice(_PURGEABLE), required=True, help="Which messages; never those in flight.")
@click.option("--older-than", "age", type=duration, default="0", metavar="TIME", help="In this state for so long.")
@yes_option
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
            _confirm(source, State(state), age)
        removed = source.purge(State(state), age)
    click.echo(f"removed {removed} {state} from {queue}")


def _no_dead(queue: str) -> str:
    return f"no dead messages in {queue}"


def _confirm(queue: Queue, state: State, age: float) -> None:
    check_may_ask("purge")
    which = f"those {state} for {span(age)} or longer of the" if age else "all"
    click.confirm(f"Remove {which} {queue.counts().get(state, 0)} {state} messages of {queue.name}?", abort=True)


def _dead_letter(entry: Entry) -> DeadLetter:
    failure = entry.failure or Failure("")
    return DeadLetter(entry.id, entry.attempt, failure.at, failure.code, failure.reason)


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


def _matches(entry: Entry, reason: str | None) -> bool:
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


queue_optional = click.option("--queue", default="", metavar="QUEUE", help="Which queue.")
key_optional = click.option("--message-key", default="", metavar="KEY", help="Which message: msg:<queue>:<id>.")


def selection_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select dead messages."""
    older = click.option(
        "--older-than", type=duration, default="0", metavar="TIME", help="Only those dead for so long: 30s, 5m, 2h, 7d."
    )
    reason = click.option("--reason", default="", metavar="TEXT", help="Only those of this code, or with this text.")
    return reason(older(function))


def _selection(queue: str, reason: str, older_than: float, **more: Any) -> Document:
    return {"queue": queue, "reason": reason, "olderThanSec": older_than, **more}


@mq_verb("list-dlq")
@queue_needed
@selection_options
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, metavar="N", help="At most N.")
def mq_list_dlq(queue: str, reason: str, older_than: float, limit: int, as_json: bool) -> None:
    """List the dead messages of a queue and why they died.

    \b
    Example:
      pabal mq list-dlq --queue telemetry --limit 50

    --json: queue, count, messages [{messageKey, queue, reason, reasonCode, dlqAt, attempt, consumerId}], total.
    """
    data = ask("list_dlq", _selection(queue, reason, older_than, limit=limit))
    if as_json:
        click.echo(json_text(data))
    elif data["messages"]:
        found = [
            DeadLetter(each["messageKey"], each["attempt"], each["dlqAt"] / 1000, each["reasonCode"], each["reason"])
            for each in data["messages"]
        ]
        click.echo("\n".join(dead_letter_lines("KEY", found)))
        click.echo(f"\n{data['total']} dead" + (f", {data['count']} shown" if data["count"] < data["total"] else ""))
    else:
        click.echo(_no_dead(queue), err=True)


@mq_verb("count-dlq")
@queue_optional
@selection_options
def mq_count_dlq(queue: str, reason: str, older_than: float, as_json: bool) -> None:
    """Count the dead by queue and reason.

    Without --queue, of all queues.

    \b
    Example:
      pabal mq count-dlq --older-than 1d

    --json: count, queues {queue: {reasonCode: count}}.
    """
    data = ask("count_dlq", _selection(queue, reason, older_than))
    if as_json:
        click.echo(json_text(data))
    elif data["count"]:
        rows = [
            [name, clean(code), str(count)] for name, codes in data["queues"].items() for code, count in codes.items()
        ]
        click.echo("\n".join(table(("QUEUE", "CODE", "COUNT"), rows, right="  r")))
    else:
        click.echo("nothing is dead", err=True)


def _reprocessed_line(data: Document, options: Document) -> str:
    if options["message_key"]:
        return f"ready {options['message_key']}"
    return f"{data['reprocessed']} ready again in {options['queue']}"


@mq_request("reprocess", "reprocess_dlq", _reprocessed_line)
@key_optional
@queue_optional
@selection_options
def mq_reprocess(message_key: str, queue: str, reason: str, older_than: float) -> Document:
    """Make one dead message ready again, or all that are chosen.

    Their attempts are counted from zero. Ends with 3 if the message is not dead.

    \b
    Examples:
      pabal mq reprocess --message-key msg:telemetry:0199c1d2
      pabal mq reprocess --queue telemetry --reason LEASE_EXPIRED
    """
    return _one_or_selection(message_key, queue, reason, older_than)


@mq_request("purge-dlq", "purge_dlq", lambda data, options: f"removed {data['purged']} dead from {options['queue']}")
@queue_needed
@selection_options
@yes_option
def mq_purge_dlq(queue: str, reason: str, older_than: float, yes: bool) -> Document:
    """Remove dead messages for good.

    \b
    Example:
      pabal mq purge-dlq --queue telemetry --reason EXPIRED --older-than 7d
    """
    selection = _selection(queue, reason, older_than)
    if not yes:
        check_may_ask("purge-dlq")
        count = ask("count_dlq", selection)["count"]
        click.confirm(f"Remove {count} dead messages of {queue} for good?", abort=True)
    return selection


@mq_request("purge", "purge", lambda data, options: f"removed {data['purged']} {data['state']} from {data['queue']}")
@queue_needed
@click.option("--state", type=click.Choice(_PURGEABLE), required=True, help="Which messages; never those in flight.")
@click.option("--older-than", type=duration, default="0", metavar="TIME", help="In this state for so long.")
@yes_option
def mq_purge(queue: str, state: str, older_than: float, yes: bool) -> Document:
    """Remove messages of one state from a queue for good.

    \b
    Example:
      pabal mq purge --queue telemetry --state done --yes

    --json: queue, state, purged.
    """
    if not yes:
        check_may_ask("purge")
        which = f"those {state} for {span(older_than)} or longer" if older_than else f"all {state} messages"
        click.confirm(f"Remove {which} of {queue} for good?", abort=True)
    return {"queue": queue, "state": state, "olderThanSec": older_than}


def _archived_line(data: Document, options: Document) -> str:
    return f"archived {data['archived']} of {options['queue']}" + (f" in {data['file']}" if data["file"] else "")


@mq_request("archive-dlq", "archive_dlq", _archived_line)
@queue_needed
@selection_options
def mq_archive_dlq(queue: str, reason: str, older_than: float) -> Document:
    """Write dead messages to a file, then remove them.

    Each is a line of JSON. The file is on disk before anything is removed. It lies in archive/<queue>/ of the mailbox.

    \b
    Example:
      pabal mq archive-dlq --queue telemetry --older-than 7d

    --json: queue, archived, file.
    """
    return _selection(queue, reason, older_than)


@mq_request(
    "quarantine", "quarantine_dlq", lambda data, options: f"moved {data['quarantined']} to {data['quarantine']}"
)
@key_optional
@queue_optional
@selection_options
def mq_quarantine(message_key: str, queue: str, reason: str, older_than: float) -> Document:
    """Set dead messages apart.

    They move with their failure to a paused queue beside theirs, where no retention and no reprocess reaches them.
    `pabal mq release` brings them back.

    \b
    Example:
      pabal mq quarantine --queue telemetry --reason POISON
    """
    return _one_or_selection(message_key, queue, reason, older_than)


@mq_request("release", "release_dlq", lambda data, options: f"{data['released']} ready again in {options['queue']}")
@queue_needed
def mq_release(queue: str) -> Document:
    """Bring what is in quarantine back to its queue.

    There it is ready to be taken.

    \b
    Example:
      pabal mq release --queue telemetry
    """
    return {"queue": queue}


def _one_or_selection(message_key: str, queue: str, reason: str, older_than: float) -> Document:
    if bool(message_key) == bool(queue):
        raise click.UsageError("give --message-key, or --queue with what to choose there")
    return {"messageKey": message_key} if message_key else _selection(queue, reason, older_than)


DLQ_VERBS = (
    Verb(list_dlq, mq_list_dlq),
    Verb(mq=mq_count_dlq),
    Verb(reprocess, mq_reprocess),
    Verb(edit_dlq),
    Verb(purge, mq_purge),
    Verb(mq=mq_purge_dlq),
    Verb(mq=mq_archive_dlq),
    Verb(mq=mq_quarantine),
    Verb(mq=mq_release),
)
