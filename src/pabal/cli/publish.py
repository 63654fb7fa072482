"""`pabal publish`: put one message into a queue and print its id."""

from __future__ import annotations

import os
import sys
from typing import IO, Any

import click

from pabal import jsontext
from pabal.cli.session import command, json_option, opened, queue_argument
from pabal.cli.text import json_text
from pabal.cli.values import duration, hinted, lasting, looks_like_json, loose_json, pair, priority, unique
from pabal.errors import InvalidInput, NotJson, NotUtf8, TooLarge
from pabal.jsontext import Json
from pabal.policy import LARGEST_MAX_BYTES

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
@click.option("--delay", type=duration, metavar="TIME", help="Nobody gets it before this time has passed.")
@click.option("--ttl", type=lasting, metavar="TIME", help="If nobody took it by then, it is dead.")
@click.option("--dedup-key", metavar="TEXT", help="A second message with this key is not stored.")
@click.option("--group", metavar="TEXT", help="Messages of one group are handled in order, one at a time.")
@click.option("--target", metavar="NAME", help="Only the consumer of this name may take it.")
@click.option("--header", "headers", type=pair, multiple=True, metavar="K=V", help="A header; may be repeated.")
@click.option(
    "--attribute", "attributes", type=pair, multiple=True, metavar="K=V", help="An attribute, JSON or text; likewise."
)
@click.option("--id", "id", metavar="ID", help="Your own id: publishing it again is harmless.")
@click.option("--sender", metavar="NAME", help="Who sends it.")
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
    """
    if as_text and as_bytes:
        raise click.UsageError("--text and --bytes exclude each other")
    if lines and (options["id"] or options["dedup_key"]):
        raise click.UsageError("--id and --dedup-key are of one message, --lines makes many")
    data = source(body, path)
    bodies = [content(part, as_text=as_text, as_bytes=as_bytes) for part in (data.splitlines() if lines else [data])]
    given = {name: value for name, value in options.items() if value is not None}
    if headers:
        given["headers"] = unique(headers, "--header")
    if attributes:
        given["attributes"] = {key: loose_json(text) for key, text in unique(attributes, "--attribute").items()}
    with opened(create=True) as mq:
        published = mq.queue(queue).publish_many(bodies, **given)
    for id, duplicate in ((answer.id, answer.duplicate) for answer in published):
        click.echo(json_text({"queue": queue, "id": id, "duplicate": duplicate}) if as_json else id)
        if duplicate and not as_json:
            click.echo("duplicate: it was there already, nothing was stored", err=True)


def source(body: str | None, path: str | None) -> bytes:
    """Return a body as it was typed, or read from a file or stdin."""
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
    """Return what a body means: JSON, or a word that does not look like it; text or bytes if so asked."""
    if as_bytes:
        return data
    try:
        return _decoded(data) if as_text else _parsed(data)
    except InvalidInput as exc:
        raise hinted(exc, "to send it as it stands use --bytes" if as_text else _HINT) from exc


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
