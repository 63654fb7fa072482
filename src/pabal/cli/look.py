"""`pabal status`, `queues`, `peek` and `show`: look without changing anything."""

from __future__ import annotations

import time
from collections.abc import Iterator

import click

from pabal.cli.documents import Document, entry_document
from pabal.cli.exits import Exit, NotFound
from pabal.cli.session import (
    command,
    json_option,
    known,
    opened,
    queue_argument,
    queue_option,
    some_queue_argument,
)
from pabal.cli.text import ago, clean, fact_lines, glance, json_text, span, table
from pabal.errors import InvalidPolicy
from pabal.jsontext import pretty
from pabal.names import check_id
from pabal.queue import Queue
from pabal.store import Entry, State

LIVE = (State.READY, State.DELAYED, State.INFLIGHT)
_LOOKED_AT = 100  # messages at the head of the line among which the oldest is sought


@command("status")
@some_queue_argument
@json_option
def status(queue: str | None, as_json: bool) -> None:
    """Count the messages of each queue by state, or of QUEUE alone.

    OLDEST says how long the longest-waiting ready message (of the next 100 in line) has been ready.

    \b
    Examples:
      pabal status
      pabal status jobs --json | jq .ready

    --json: queue, ready, delayed, inflight, dead, done, corrupt, oldest_ready_seconds, paused, store; and fault where
    the policy cannot be read (paused is null then).
    """
    with opened() as mq:
        names = [known(mq, queue).name] if queue else mq.queues()
        facts = dict(mq.store.facts())
        found = [_status_document(mq.queue(name)) for name in names]
    if as_json:
        for document in found:
            click.echo(json_text({**document, "store": facts}))
        return
    for line in _status_lines(found):
        click.echo(line)
    click.echo("")
    for line in fact_lines(facts):
        click.echo(line)


@command("queues")
@json_option
def queues(as_json: bool) -> None:
    """Name every queue of the store.

    Ends with 1 if there is none.

    \b
    Example:
      pabal queues

    --json: queue.
    """
    with opened() as mq:
        names = mq.queues()
    for name in names:
        click.echo(json_text({"queue": name}) if as_json else name)
    if not names:
        click.get_current_context().exit(Exit.NOTHING)


@command("peek")
@queue_argument
@click.option(
    "--state",
    "states",
    type=click.Choice([str(state) for state in State]),
    multiple=True,
    help="Only this state; may be repeated. By default ready, delayed and inflight.",
)
@click.option("--limit", type=click.IntRange(1, 10**9), default=20, show_default=True, metavar="N", help="At most N.")
@json_option
def peek(queue: str, states: tuple[str, ...], limit: int, as_json: bool) -> None:
    """List messages of QUEUE without taking them.

    Ready ones come in the order in which they will be taken. Ends with 1 if there is none.

    \b
    Examples:
      pabal peek jobs
      pabal peek jobs --state dead --state corrupt --limit 5

    --json: queue, id, state, attempt, due_at, failure, data (base64 of what could not be read), and the message as
    `pabal show` prints it.
    """
    with opened() as mq:
        source = known(mq, queue)
        found = list(_some(source, tuple(map(State, states)) or LIVE, limit))
    if as_json:
        for entry in found:
            click.echo(json_text(entry_document(entry)))
    elif found:
        for line in table(
            ("ID", "STATE", "TRIES", "WHEN", "TYPE", "BODY"), [_row(entry) for entry in found], right="  r"
        ):
            click.echo(line)
    if not found:
        click.echo(f"nothing {' or '.join(states or map(str, LIVE))} in {queue}", err=True)
        click.get_current_context().exit(Exit.NOTHING)


@command("show")
@click.argument("id", metavar="ID")
@queue_option
@json_option
def show(id: str, queue: str | None, as_json: bool) -> None:
    """Show one message with all its fields.

    It is found in whatever queue and state it is. Ends with 3 if no queue holds it.

    \b
    Example:
      pabal show 0199c1d2-77aa-7d21-a1a4-b49a3e7f5c10

    --json: queue, id, state, attempt, due_at, failure {code, reason, at, attempt, consumer}, body, body_encoding
    (base64 for bytes), type, version, sender, target, attributes, headers, priority, group, dedup_key, thread_id,
    trace_id, reply_to, created_at, expires_at, data.
    """
    check_id(id)
    with opened() as mq:
        names = [known(mq, queue).name] if queue else mq.queues()
        found = [entry for name in names if (entry := mq.queue(name).find(id)) is not None]
    if not found:
        raise NotFound(f"no message {id} in {queue or 'any queue'}")
    for entry in found:
        document = entry_document(entry)
        click.echo(json_text(document) if as_json else _page(document))


def _status_document(queue: Queue) -> Document:
    counts = queue.counts()
    head = queue.browse(State.READY, limit=_LOOKED_AT)
    oldest = min((entry.due_at for entry in head), default=None)
    return {
        "queue": queue.name,
        **{str(state): counts.get(state, 0) for state in State},
        "oldest_ready_seconds": None if oldest is None else max(0.0, round(time.time() - oldest, 3)),
        **_policy_facts(queue),
    }


def _policy_facts(queue: Queue) -> Document:
    """Say whether the queue is paused, or why nobody knows: one policy that cannot be read hides no other queue."""
    try:
        return {"paused": queue.policy.paused}
    except InvalidPolicy as exc:
        return {"paused": None, "fault": str(exc)}


def _status_lines(found: list[Document]) -> list[str]:
    if not found:
        return ["no queues"]
    rows = []
    for document in found:
        oldest = document["oldest_ready_seconds"]
        numbers = [str(document[state]) if document[state] else "·" for state in State]
        age = "·" if oldest is None else span(oldest)
        said = clean(document.get("fault", "")) or ("paused" if document["paused"] else "")
        rows.append([document["queue"], *numbers, age, said])
    heads = ["QUEUE", *(state.upper() for state in State), "OLDEST", ""]
    return table(heads, rows, right=" rrrrrrr")


def _some(queue: Queue, states: tuple[State, ...], limit: int) -> Iterator[Entry]:
    for state in states:
        after = ""
        while limit and (page := queue.browse(state, after=after, limit=min(limit, 100))):
            yield from page
            limit -= len(page)
            after = page[-1].cursor


def _row(entry: Entry) -> list[str]:
    if entry.message is not None:
        kind, body = clean(entry.message.type), glance(entry.message.body)
    else:
        kind, body = "", f"{len(entry.data)} bytes" if entry.data else "not kept"
    if entry.failure is not None:
        body = f"{clean(entry.failure.code)}: {clean(entry.failure.reason)}  {body}"
    return [clean(entry.id), str(entry.state), str(entry.attempt or ""), ago(entry.due_at), kind, body]


def _page(document: Document) -> str:
    """Lay out what says something, the body last and indented."""
    lines = []
    for key, value in document.items():
        if key not in ("body", "data") and value not in (None, "", {}):
            text = value if isinstance(value, str) else json_text(value)
            lines.append(f"{key:<14}{clean(text)}")
    if document["created_at"] is not None:
        lines += ["body", *(clean(line) for line in pretty(document["body"]).decode().rstrip("\n").split("\n"))]
    if document["data"] is not None:
        lines += ["data", document["data"]]
    return "\n".join(lines)
