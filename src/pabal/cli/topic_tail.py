"""`pabal topic tail`: show the newest records of a topic, outside of all groups."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click

from pabal.appending import Topic, body_of
from pabal.cli.documents import instant
from pabal.cli.exits import Exit
from pabal.cli.session import json_option
from pabal.cli.text import clean, clip, glance, json_text, screen_width
from pabal.cli.topic_session import known_topic, opened_topics, topic_argument, topics_option
from pabal.topic import Record

_POLL = 0.5  # seconds
_PAGE = 500


@click.command("tail")
@topics_option()
@topic_argument
@click.option("-f", "--follow", is_flag=True, help="Go on showing records as they come, until Ctrl-C.")
@click.option(
    "-n", "--lines", type=click.IntRange(0, 10**6), default=10, show_default=True, help="Begin with the last N."
)
@json_option
def tail(name: str, follow: bool, lines: int, as_json: bool) -> None:
    """Show the newest records of a topic, without a group.

    \b
    Examples:
      pabal topic tail events -n 3
      pabal topic tail -f events --json | jq .body
    """
    with opened_topics() as topics:
        source = known_topic(topics, name)
        ends = [bounds.next for bounds in source.bounds()]
        records = list(_last(source, ends, lines))
        for record in records:
            show(record, as_json=as_json)
        if follow:
            _follow(source, ends, as_json=as_json)
        elif not records and lines:
            click.echo(f"{name} holds no records", err=True)
            click.get_current_context().exit(Exit.NOTHING)


def show(record: Record, *, as_json: bool) -> None:
    """Print a record on one line."""
    click.echo(json_text(record_document(record)) if as_json else record_line(record))


def record_line(record: Record) -> str:
    """Return a record as people read it."""
    at = datetime.fromtimestamp(record.at).strftime("%H:%M:%S")
    body = record.fault or glance(body_of(record))
    line = "  ".join(filter(None, (at, str(record), clean(record.key), clean(body))))
    screen = screen_width()
    return line if screen is None else clip(line, screen)


def record_document(record: Record) -> dict[str, Any]:
    """Return a record as `--json` prints it; every key is always there."""
    body = None if record.fault else body_of(record)
    binary = isinstance(body, bytes)
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "at": instant(record.at),
        "key": _utf8(record.key) or None,
        "body": b64encode(body).decode() if isinstance(body, bytes) else body,
        "body_encoding": "base64" if binary else None,
        "headers": {_utf8(name): _utf8(text) for name, text in record.headers.items()},
        "fault": record.fault or None,
    }


def _utf8(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _last(topic: Topic, ends: list[int], lines: int) -> list[Record]:
    if not lines:
        return []
    found: list[Record] = []
    for number, end in enumerate(ends):
        found += _between(topic, number, max(0, end - lines), end)
    return sorted(found, key=lambda record: (record.at, record.partition, record.offset))[-lines:]


def _between(topic: Topic, number: int, start: int, end: int) -> Iterator[Record]:
    while start < end:
        page = topic.read(number, start, min(_PAGE, end - start))
        yield from page
        if not page:
            return
        start = page[-1].offset + 1


def _follow(topic: Topic, ends: list[int], *, as_json: bool) -> None:
    while True:
        fresh: list[Record] = []
        for number, bounds in enumerate(topic.bounds()):
            fresh += _between(topic, number, max(ends[number], bounds.first), bounds.next)
            ends[number] = max(ends[number], bounds.next)
        for record in sorted(fresh, key=lambda record: (record.at, record.partition, record.offset)):
            show(record, as_json=as_json)
        if not fresh:
            time.sleep(_POLL)
