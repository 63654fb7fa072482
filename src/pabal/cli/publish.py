"""`pabal publish` and `pabal mq publish`: put a message into a queue."""

from __future__ import annotations

import os
import sys
from itertools import islice
from typing import IO, Any

import click

from pabal import jsontext
from pabal.cli.session import command, json_option, opened, queue_argument
from pabal.cli.text import clean, json_text
from pabal.cli.values import (
    duration,
    lasting,
    looks_like_json,
    loose_json,
    milliseconds,
    pair,
    priority,
    unique,
    with_hint,
)
from pabal.cli.verbs import Document, Verb, ask, ask_many, mq_verb, queue_needed, target_option
from pabal.clock import SystemClock
from pabal.errors import InvalidInput, NotJson, NotUtf8, Refused, TooLarge
from pabal.ids import IdMaker
from pabal.jsontext import Json
from pabal.policy.policy import LARGEST_MAX_BYTES

_AT_ONCE = 500  # messages of one request file
_HINT = "to send it as it stands use --text or --bytes"


@command("publish")
@queue_argument
@click.argument("body", required=False)
@click.option("--file", "path", type=click.Path(dir_okay=False), metavar="PATH", help="Read the body from a file.")
@click.option("--text", "as_text", is_flag=True, help="The body is text, whatever it looks like.")
@click.option("--bytes", "as_bytes", is_flag=True, help="The body is bytes, kept as they are.")
@click.option("--lines", is_flag=True, help="Each line of the input is a message; all in one commit.")
@click.option("--type", "type", metavar="TEXT", help="What kind of message it is, such as order.placed.")
@click.option("--priority", type=priority, metavar="N", help="-100 to 100, larger first; or critical, high, low.")
@click.option("--delay", type=duration, metavar="TIME", help="Consumers get it only after this time.")
@click.option("--ttl", type=lasting, metavar="TIME", help="It is dead if it was not leased by then.")
@click.option("--dedup-key", metavar="TEXT", help="A second message with this key is not stored.")
@click.option("--unique", metavar="TEXT", help="Not stored while a message with this key waits or is in flight.")
@click.option("--group", metavar="TEXT", help="Messages of one group are handled in order, one at a time.")
@target_option
@click.option("--header", "headers", type=pair, multiple=True, metavar="K=V", help="A header; may be repeated.")
@click.option(
    "--attribute", "attributes", type=pair, multiple=True, metavar="K=V", help="An attribute, JSON or text; likewise."
)
@click.option("--id", "id", metavar="ID", help="Your own id: publishing it again is harmless.")
@click.option("--sender", metavar="NAME", help="The sender.")
@click.option("--reply-to", metavar="QUEUE", help="Where an answer should go.")
@click.option("--thread-id", metavar="ID", help="The conversation it belongs to.")
@click.option("--trace-id", metavar="ID", help="The trace it belongs to.")
@json_option
def publish(
    queue: str,
    body: str | None,
    path: str | None,
    as_text: bool,
    as_bytes: bool,
    lines: bool,
    headers: tuple[tuple[str, str], ...],
    attributes: tuple[tuple[str, str], ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Put one message into QUEUE and print its id.

    BODY is JSON; a word that does not look like JSON is taken as text. Without BODY, or with -, it is read from
    stdin. When the id is printed, the message is on disk. TIME is seconds, or like 30s, 5m, 2h, 7d.

    \b
    Examples:
      pabal publish jobs '{"resize": "cat.png"}' --priority high
      pabal publish jobs hello --delay 5m
      pabal publish jobs --file photo.jpg --bytes --type photo
      git diff | pabal publish review --text
      jq -c '.[]' orders.json | pabal publish orders --lines

    --json: queue, id, duplicate, dead (the body does not fit the schema of the queue: the message is a dead letter).
    """
    if as_text and as_bytes:
        raise click.UsageError("--text and --bytes exclude each other")
    if lines and (options["id"] or options["dedup_key"] or options["unique"]):
        raise click.UsageError("--id, --dedup-key and --unique are of one message, --lines makes many")
    data = source(body, path)
    bodies = [content(part, as_text=as_text, as_bytes=as_bytes) for part in (data.splitlines() if lines else [data])]
    given = {name: value for name, value in options.items() if value is not None}
    if headers:
        given["headers"] = unique(headers, "--header")
    if attributes:
        given["attributes"] = {key: loose_json(text) for key, text in unique(attributes, "--attribute").items()}
    with opened(create=True) as mq:
        target = mq.queue(queue)
        published = target.publish_many(bodies, **given) if lines else [target.publish(bodies[0], **given)]
    for answer in published:
        document = {"queue": queue, "id": answer.id, "duplicate": answer.duplicate, "dead": answer.dead}
        click.echo(json_text(document) if as_json else answer.id)
        if answer.duplicate and not as_json:
            click.echo("duplicate: it was there already, nothing was stored", err=True)
        elif answer.dead and not as_json:
            click.echo(f"dead: its body does not fit the schema of {queue}; see `pabal list-dlq {queue}`", err=True)


def source(body: str | None, path: str | None) -> bytes:
    """Return the body from the command line, a file or stdin."""
    if path is not None:
        if body is not None:
            raise click.UsageError("give BODY or --file, not both")
        try:
            with click.open_file(path, "rb") as file:
                return _read(file)
        except OSError as exc:
            raise click.FileError(path, exc.strerror) from exc
    if body is None and sys.stdin.isatty():
        raise click.UsageError("give a BODY, --file PATH, or something on stdin")
    if body is None or body == "-":
        return _read(sys.stdin.buffer)
    return os.fsencode(body)


def _read(file: IO[bytes]) -> bytes:
    data = file.read(LARGEST_MAX_BYTES + 1)
    if len(data) > LARGEST_MAX_BYTES:
        raise TooLarge(f"a body has at most {LARGEST_MAX_BYTES} bytes; there are more")
    return data


def content(data: bytes, *, as_text: bool, as_bytes: bool) -> Json | bytes:
    """Return the body that was typed: JSON, or a word that does not look like JSON; text or bytes if asked for."""
    if as_bytes:
        return data
    try:
        return _decoded(data) if as_text else _parsed(data)
    except InvalidInput as exc:
        raise with_hint(exc, "to send it as it stands use --bytes" if as_text else _HINT) from exc


def _parsed(data: bytes) -> Json:
    try:
        value: Json = jsontext.read(data)
    except NotJson:
        text = _decoded(data)
        if not text.strip():
            raise NotJson("the body is empty") from None
        if looks_like_json(text):
            raise
        return text.removesuffix("\n")
    return value


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise NotUtf8(f"text must be UTF-8: {exc.reason} at byte {exc.start}") from exc


@mq_verb("publish")
@queue_needed
@click.option("--message", metavar="JSON", help="The message, JSON; - to read it from stdin.")
@click.option("--lines", is_flag=True, help="Each line of stdin is a message, JSON; up to 500 in one commit.")
@click.option("--attributes", default="", metavar="JSON", help="Its attributes: a JSON object.")
@click.option("--priority", default=0, metavar="N", help="-100 to 100, larger first.")
@click.option("--delay", type=milliseconds, default="0", metavar="MS", help="How long before it can be taken.")
@target_option
@click.option("--type", "kind", default="", metavar="TEXT", help="What kind of message it is, such as order.placed.")
@click.option("--dedup-key", default="", metavar="TEXT", help="A second message with this key is not stored.")
@click.option(
    "--unique",
    "unique_key",
    default="",
    metavar="TEXT",
    help="Not stored while one with this key waits or is in flight.",
)
@click.option("--trace-id", default="", metavar="ID", help="The trace it belongs to.")
@click.option("--id", "id", default="", metavar="ID", help="Your own id: publishing it again is harmless.")
@click.option("--ttl", type=lasting, metavar="SECONDS", help="It is dead if it was not leased by then.")
def mq_publish(
    queue: str,
    message: str | None,
    lines: bool,
    attributes: str,
    priority: int,
    delay: int,
    target: str,
    kind: str,
    dedup_key: str,
    unique_key: str,
    trace_id: str,
    id: str,
    ttl: float | None,
    as_json: bool,
) -> None:
    """Put one message, or with --lines many, into a queue.

    Prints the key of each.

    \b
    Examples:
      pabal mq publish --queue telemetry --message '{"temp": 36.5}' --priority 5
      jq -c '.[]' all.json | pabal mq publish --queue telemetry --lines

    --json: messageId, messageKey, duplicate if it was there already, deadLettered and reason if it is a dead letter
    because its body does not fit the schema of the queue; one document for each message.
    """
    if lines == (message is not None):
        raise click.UsageError("give --message JSON, or --lines with messages on stdin")
    if lines and (id or dedup_key or unique_key):
        raise click.UsageError("--id, --dedup-key and --unique are of one message, --lines makes many")
    shared: Document = {
        "queue": queue,
        "attributes": attributes,
        "priority": priority,
        "delayMs": delay,
        "targetConsumerId": target,
        "type": kind,
        "deduplicationKey": dedup_key,
        "uniqueKey": unique_key,
        "traceId": trace_id,
    }
    if ttl is not None:
        shared["ttlSec"] = ttl
    if message is not None:
        body = sys.stdin.read() if message == "-" else message
        data = ask("publish", {**shared, "messageId": id or IdMaker(SystemClock())(), "message": body})
        _show_published(data, as_json=as_json)
    else:
        _publish_lines(shared, as_json=as_json)


def _publish_lines(shared: Document, *, as_json: bool) -> None:
    """Publish each line of stdin and print its key; refused lines are named, and the others are published."""
    numbered = ((number, line) for number, line in enumerate(sys.stdin, 1) if line.strip())
    refused: Refused | None = None
    ids = IdMaker(SystemClock())  # they rise, so the messages of one commit keep the order of their lines
    while some := list(islice(numbered, _AT_ONCE)):
        found = ask_many("publish", [{**shared, "messageId": ids(), "message": line.rstrip("\n")} for _, line in some])
        for (number, _), data in zip(some, found, strict=True):
            if isinstance(data, Refused):
                refused = refused or data
                click.echo(f"line {number}: {data.code}: {clean(str(data))}", err=True)
            else:
                _show_published(data, as_json=as_json)
    if refused is not None:
        raise refused


def _show_published(data: Document, *, as_json: bool) -> None:
    click.echo(json_text(data) if as_json else data["messageKey"])
    if "deadLettered" in data and not as_json:
        click.echo(f"dead: its body does not fit the schema of the queue: {clean(data['reason'])}", err=True)


PUBLISH_VERBS = (Verb(publish, mq_publish),)
