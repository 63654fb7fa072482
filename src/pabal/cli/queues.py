"""The verbs for queues: look at them and their messages, pause, create and delete them. In both forms."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from itertools import chain, islice

import click

from pabal.cli.exits import NotFound
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
from pabal.cli.verbs import (
    Document,
    Verb,
    ask,
    count_cells,
    key_needed,
    missing,
    mq_request,
    mq_verb,
    paused_line,
    queue_needed,
)
from pabal.errors import QueueUnknown
from pabal.jsontext import pretty
from pabal.message import replace
from pabal.names import check_id
from pabal.queues.documents import consumer_document, entry_document, status_document
from pabal.store import Entry, Held, State

_MQ_STATES = ("ready", "delayed", "inflight", "dlq", "done", "corrupt")
LIVE = (State.READY, State.DELAYED, State.INFLIGHT)
_WATCH_SECONDS = 2.0


states_option = click.option(
    "--state",
    "states",
    type=click.Choice([str(state) for state in State]),
    multiple=True,
    help="Only this state; may be repeated. By default ready, delayed and inflight.",
)


force_option = click.option("--force", is_flag=True, help="Remove its messages too, those in flight included.")


@command("status")
@some_queue_argument
@click.option("--watch", is_flag=True, help="Show it again every 2 seconds, until Ctrl-C.")
@json_option
def status(queue: str | None, watch: bool, as_json: bool) -> None:
    """Count the messages of each queue by state, or of QUEUE alone.

    OLDEST is how long the longest-waiting ready message has been ready.

    \b
    Examples:
      pabal status
      pabal status --watch
      pabal status jobs --json | jq .ready

    --json: queue, ready, delayed, inflight, dead, done, corrupt, oldest_ready_seconds, paused, fault, store. If the
    policy or the folders of a queue cannot be read, fault says why, and paused is null.
    """
    with opened() as mq:
        while True:
            names = [known(mq, queue).name] if queue else mq.queues()
            facts = dict(mq.store.facts())
            found: list[Document] = [dict(status_document(mq.queue(name), time.time())) for name in names]
            if as_json:
                lines = [json_text({**document, "store": facts}) for document in found]
            else:
                lines = [*_status_lines(found), "", *fact_lines(facts)]
            if watch and not as_json and sys.stdout.isatty():
                click.clear()
            for line in lines:
                click.echo(line)
            if not watch:
                return
            sys.stdout.flush()
            time.sleep(_WATCH_SECONDS)


@command("queues")
@json_option
def queues(as_json: bool) -> None:
    """Name every queue of the store.

    \b
    Example:
      pabal queues

    --json: queue.
    """
    with opened() as mq:
        names = mq.queues()
    for name in names:
        click.echo(json_text({"queue": name}) if as_json else name)


@command("consumers")
@some_queue_argument
@json_option
def consumers(queue: str | None, as_json: bool) -> None:
    """Show who takes messages, and what each consumer holds.

    Lists the consumers that took messages in the last hour or hold some; with QUEUE those that hold messages of it.
    HOLDS is how many messages of a queue a consumer holds, SINCE when it took the first of them, SEEN when it last
    leased or extended, to a minute. A consumer without a name of its own has that of its host and process.

    \b
    Examples:
      pabal consumers
      pabal consumers jobs --json | jq 'select(.holds[].messages > 10)'

    --json: consumer, host, pid, since, seen, holds [{queue, messages, since}]; consumer is null, with host, pid, since
    and seen, for messages whose holder is not known.
    """
    with opened() as mq:
        wanted = known(mq, queue).name if queue else None
        found = mq.consumers()
    if wanted is not None:
        found = [replace(each, holds={wanted: each.holds[wanted]}) for each in found if wanted in each.holds]
    if as_json:
        for each in found:
            click.echo(json_text(consumer_document(each)))
    elif found:
        _show_consumers([(each.name, each.host, each.pid, each.seen, each.holds) for each in found])
    else:
        click.echo(f"nobody holds messages of {queue}" if queue else "no consumers in the last hour", err=True)


def _show_consumers(found: Sequence[tuple[str, str, int, float, Mapping[str, Held]]]) -> None:
    rows = []
    for name, host, pid, seen, holds in found:
        about = [clean(name) or "(not known)", clean(host), str(pid or ""), ago(seen) if seen else ""]
        for queue, held in holds.items() or (("", Held(0, 0.0)),):
            count, since = (str(held.messages), ago(held.since)) if held.messages else ("·", "")
            rows.append([*about, count, since, queue])
    for line in table(("CONSUMER", "HOST", "PID", "SEEN", "HOLDS", "SINCE", "QUEUE"), rows, right="  r r"):
        click.echo(line)


@command("peek")
@queue_argument
@states_option
@click.option("--limit", type=click.IntRange(1, 10**9), default=20, show_default=True, metavar="N", help="At most N.")
@json_option
def peek(queue: str, states: tuple[str, ...], limit: int, as_json: bool) -> None:
    """List messages of QUEUE without taking them.

    Ready ones come in the order in which they will be taken.

    \b
    Examples:
      pabal peek jobs
      pabal peek jobs --state dead --state corrupt --limit 5

    --json: queue, id, state, attempt, due_at, failure, data (base64 of what could not be read), and the message as
    `pabal show` prints it.
    """
    with opened() as mq:
        source = known(mq, queue)
        entries = chain.from_iterable(source.entries(State(state)) for state in states or LIVE)
        found = list(islice(entries, limit))
    if as_json:
        for entry in found:
            click.echo(json_text(entry_document(entry)))
    elif found:
        for line in table(
            ("ID", "STATE", "TRIES", "WHEN", "TYPE", "BODY"), [entry_cells(entry) for entry in found], right="  r"
        ):
            click.echo(line)
    else:
        click.echo(_nothing_to_see(queue, states), err=True)


def _nothing_to_see(queue: str, states: tuple[str, ...]) -> str:
    return f"nothing {' or '.join(states or map(str, LIVE))} in {queue}"


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

    --json: queue, id, state, attempt, due_at, failure {code, reason, at, attempt, consumer, before [{the same, of
    earlier attempts}]}, body, body_encoding (base64 for bytes), type, version, sender, target, attributes, headers,
    priority, group, dedup_key, unique, thread_id, trace_id, reply_to, created_at, expires_at, data.
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


@command("pause")
@queue_argument
def pause(queue: str) -> None:
    """Pause QUEUE: consumers get no messages.

    Publishing goes on, and what is in flight may be settled, until `pabal resume QUEUE`.

    \b
    Example:
      pabal pause jobs
    """
    with opened() as mq:
        known(mq, queue).pause()
    click.echo(paused_line(queue, True))


@command("resume")
@queue_argument
def resume(queue: str) -> None:
    """Let consumers take messages from QUEUE again.

    \b
    Example:
      pabal resume jobs
    """
    with opened() as mq:
        known(mq, queue).resume()
    click.echo(paused_line(queue, False))


def _status_lines(found: list[Document]) -> list[str]:
    if not found:
        return ["no queues"]
    rows = []
    for document in found:
        oldest = document["oldest_ready_seconds"]
        age = "·" if oldest is None else span(oldest)
        note = clean(document["fault"] or "") or ("paused" if document["paused"] else "")
        rows.append([document["queue"], *count_cells(document, list(State)), age, note])
    heads = ["QUEUE", *(state.upper() for state in State), "OLDEST", ""]
    return table(heads, rows, right=" rrrrrrr")


def entry_cells(entry: Entry) -> list[str]:
    """Return a message for a list: id, state, attempts, when it is due, type, and its failure and body."""
    if entry.message is not None:
        kind, body = clean(entry.message.type), glance(entry.message.body)
    else:
        kind, body = "", f"{len(entry.data)} bytes" if entry.data else "not kept"
    if entry.failure is not None:
        body = f"{clean(entry.failure.code)}: {clean(entry.failure.reason)}  {body}"
    return [clean(entry.id), str(entry.state), str(entry.attempt or ""), ago(entry.due_at), kind, body]


def _page(document: Document) -> str:
    """Lay out the fields that have a value, the body last and indented."""
    lines = []
    fields = list(document.items())
    if document["failure"] is not None:  # each attempt on a line of its own, the last one first
        failure = dict(document["failure"])
        at = fields.index(("failure", document["failure"]))
        fields[at : at + 1] = [("failure", failure), *(("before it", each) for each in reversed(failure.pop("before")))]
    for key, value in fields:
        if key not in ("body", "data") and value not in (None, "", {}):
            text = value if isinstance(value, str) else json_text(value)
            lines.append(f"{key:<14}{clean(text)}")
    if document["created_at"] is not None:
        lines += ["body", *(clean(line) for line in pretty(document["body"]).decode().rstrip("\n").split("\n"))]
    if document["data"] is not None:
        lines += ["data", document["data"]]
    return "\n".join(lines)


@mq_verb("status")
@click.option("--queue", metavar="QUEUE", help="Which queue. By default all, without their policies.")
def mq_status(queue: str | None, as_json: bool) -> None:
    """Count the messages of a queue by state and show its policy.

    \b
    Example:
      pabal mq status --queue telemetry

    --json: queue, metrics {ready, inflight, delayed, dlq, done, corrupt}, policy; one document per queue. Where the
    policy cannot be read it is null, and fault is the reason.
    """
    if queue is not None and (problem := missing(queue)):
        raise QueueUnknown(problem)
    names = [queue] if queue is not None else ask("queues")["queues"]
    found = [ask("status", {"queue": name}) for name in names]
    if as_json:
        for document in found:
            click.echo(json_text(document))
        return
    rows = [[document["queue"], *count_cells(document["metrics"], _MQ_STATES), _note(document)] for document in found]
    heads = ["QUEUE", *(state.upper() for state in _MQ_STATES), ""]
    for line in table(heads, rows, right=" rrrrrr"):
        click.echo(line)
    if queue is not None and found[0]["policy"] is not None:
        click.echo("\npolicy\n" + pretty(_without_empty(found[0]["policy"])).decode(), nl=False)
    elif not found:
        click.echo("no queues yet; the first publish makes one", err=True)


def _note(document: Document) -> str:
    if document["policy"] is None:
        return clean(document["fault"])
    return "paused" if document["paused"] else ""


def _without_empty(policy: Document) -> Document:
    """Leave out the fields that are off or empty."""
    return {key: value for key, value in policy.items() if value not in (None, False, 0, "")}


@mq_verb("queues")
def mq_queues(as_json: bool) -> None:
    """Name every queue.

    \b
    Example:
      pabal mq queues

    --json: queues.
    """
    data = ask("queues")
    click.echo(json_text(data) if as_json else "\n".join(data["queues"]), nl=bool(as_json or data["queues"]))


@mq_verb("consumers")
def mq_consumers(as_json: bool) -> None:
    """Show who takes messages, and what each consumer holds.

    \b
    Example:
      pabal mq consumers

    --json: consumers [{consumerId, host, pid, since, seen, holds [{queue, messages, since}]}]. Times are milliseconds;
    the process id of a client of the manager is not known, and null.
    """
    data = ask("consumers")
    if as_json:
        click.echo(json_text(data))
    elif data["consumers"]:
        _show_consumers(
            [
                (
                    each["consumerId"] or "",
                    each["host"] or "",
                    each["pid"] or 0,
                    (each["seen"] or 0) / 1000,
                    {held["queue"]: Held(held["messages"], held["since"] / 1000) for held in each["holds"]},
                )
                for each in data["consumers"]
            ]
        )
    else:
        click.echo("no consumers in the last hour", err=True)


@mq_request("pause", "pause", lambda data, options: paused_line(options["queue"], True))
@queue_needed
def mq_pause(queue: str) -> Document:
    """Pause a queue: consumers get no messages.

    \b
    Example:
      pabal mq pause --queue telemetry
    """
    return {"queue": queue}


@mq_request("resume", "resume", lambda data, options: paused_line(options["queue"], False))
@queue_needed
def mq_resume(queue: str) -> Document:
    """Let consumers take messages from a queue again.

    \b
    Example:
      pabal mq resume --queue telemetry
    """
    return {"queue": queue}


@mq_verb("peek")
@queue_needed
@states_option
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, metavar="N", help="At most N.")
def mq_peek(queue: str, states: tuple[str, ...], limit: int, as_json: bool) -> None:
    """List messages of a queue without taking them.

    Ready ones come in the order in which they will be taken.

    \b
    Example:
      pabal mq peek --queue telemetry --state dead

    --json: as `pabal mq show`, one document for each message.
    """
    found = ask("peek", {"queue": queue, "states": list(states), "limit": limit})["messages"]
    if as_json:
        for document in found:
            click.echo(json_text(document))
    elif found:
        rows = [_mq_row(document) for document in found]
        click.echo("\n".join(table(("KEY", "STATE", "TRIES", "WHEN", "TYPE", "BODY"), rows, right="  r")))
    else:
        click.echo(_nothing_to_see(queue, states), err=True)


def _mq_row(document: Document) -> list[str]:
    body = glance(document["payload"]) if "payload" in document else "not kept"
    if "reasonCode" in document:
        body = f"{clean(document['reasonCode'])}: {clean(document['reason'])}  {body}"
    due, tries = ago(document["dueAt"] / 1000), str(document["attempt"] or "")
    return [clean(document["messageKey"]), document["state"], tries, due, clean(document.get("type", "")), body]


@mq_verb("show")
@key_needed
def mq_show(message_key: str, as_json: bool) -> None:
    """Show one message with all its fields.

    \b
    Example:
      pabal mq show --message-key msg:telemetry:0199c1d2

    --json: messageId, messageKey, queue, state, payload, attributes, priority, createdAt, attempt, dueAt, and as far as
    it has them type, sender, headers, reason, reasonCode, failedAt, consumerId and the other fields of its envelope.
    """
    data = ask("show", {"messageKey": message_key})
    click.echo(json_text(data) if as_json else _mq_page(data))


def _mq_page(data: Document) -> str:
    facts = {key: value for key, value in data.items() if key != "payload" and value not in (None, "", {})}
    lines = [f"{key:<17}{clean(value if isinstance(value, str) else json_text(value))}" for key, value in facts.items()]
    if "payload" in data:
        lines += ["payload", *(clean(line) for line in pretty(data["payload"]).decode().rstrip("\n").split("\n"))]
    return "\n".join(lines)


@command("create-queue")
@queue_argument
def create_queue(queue: str) -> None:
    """Make QUEUE before its first message.

    It has the default policy. A queue that exists is left as it is.

    \b
    Example:
      pabal create-queue jobs
    """
    with opened(create=True) as mq:
        click.echo(_created(queue, mq.queue(queue).create()))


@command("delete-queue")
@queue_argument
@force_option
@json_option
def delete_queue(queue: str, force: bool, as_json: bool) -> None:
    """Delete QUEUE with its policy.

    Ends with 2 and changes nothing if it has messages that are not done, unless --force is given. Killed in the middle,
    it may be repeated. A process that still uses the queue makes it again.

    \b
    Examples:
      pabal delete-queue jobs
      pabal delete-queue jobs --force

    --json: queue, deleted, removed (how many messages).
    """
    with opened() as mq:
        removed = known(mq, queue).delete(force=force)
    document = {"queue": queue, "deleted": True, "removed": removed}
    click.echo(json_text(document) if as_json else _deleted_line(document, {}))


def _created(queue: str, created: bool) -> str:
    return f"created {queue}" if created else f"{queue} is there already"


def _created_line(data: Document, options: Document) -> str:
    return _created(data["queue"], data["created"])


def _deleted_line(data: Document, options: Document) -> str:
    return f"deleted {data['queue']}" + (f" with {data['removed']} messages" if data["removed"] else "")


@mq_request("create-queue", "create_queue", _created_line)
@queue_needed
def mq_create_queue(queue: str) -> Document:
    """Make a queue before its first message.

    It has the default policy of the manager. A queue that exists is left as it is.

    \b
    Example:
      pabal mq create-queue --queue telemetry

    --json: queue, created.
    """
    return {"queue": queue}


@mq_request("delete-queue", "delete_queue", _deleted_line)
@queue_needed
@force_option
def mq_delete_queue(queue: str, force: bool) -> Document:
    """Delete a queue with its policy.

    Ends with 2 and changes nothing if it has messages that are not done, unless --force is given, or if the
    configuration of the manager names it.

    \b
    Example:
      pabal mq delete-queue --queue telemetry --force

    --json: queue, deleted, removed (how many messages).
    """
    return {"queue": queue, "force": force}


QUEUE_VERBS = (
    Verb(status, mq_status),
    Verb(queues, mq_queues),
    Verb(consumers, mq_consumers),
    Verb(peek, mq_peek),
    Verb(show, mq_show),
)
PAUSE_VERBS = (
    Verb(pause, mq_pause),
    Verb(resume, mq_resume),
    Verb(create_queue, mq_create_queue),
    Verb(delete_queue, mq_delete_queue),
)
