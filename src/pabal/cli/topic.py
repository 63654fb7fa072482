"""`pabal topic`: create topics, append records, read them as a group or without one, and the offsets of groups."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import IO

import click

from pabal import jsontext
from pabal.cli.exits import end_with_nothing, unwinding_on_sigterm
from pabal.cli.publish import content, source
from pabal.cli.session import (
    TOPICS_VARIABLE,
    help_if_alone,
    json_option,
    known_topic,
    opened_topics,
    topic_argument,
    topics_option,
)
from pabal.cli.stores import report
from pabal.cli.text import clean, fitted, glance, json_text, span, table
from pabal.cli.values import FOREVER, duration, lasting, pair, patience, unique
from pabal.clock import time_of_day
from pabal.errors import InvalidInput
from pabal.jsontext import Json
from pabal.names import check_name
from pabal.store import Checkable
from pabal.topic_store import DEFAULT_SESSION, Member, Record
from pabal.topics.browse import records_before
from pabal.topics.dead_records import dead_of, replay, waiting
from pabal.topics.documents import TopicSummary, dead_record_document, record_document, share_document, topic_summary
from pabal.topics.topic import Topic, body_of

_BATCH = 500  # records of one read
_READ_SECONDS = 1.0  # of one read, so that signals are noticed
_POLL = 0.5  # seconds between reads of `tail --follow`


@click.group("topic", invoke_without_command=True)
@topics_option(envvar=TOPICS_VARIABLE)
@click.pass_context
def topic(ctx: click.Context) -> None:
    """Topics: logs that many groups read, each at its own pace.

    \b
    Examples:
      pabal topic create chat.messages.v1 --partitions 3
      pabal topic append chat.messages.v1 '{"text": "hi"}' --key room-1
      pabal topic read chat.messages.v1 --group archive --count 10
    """
    help_if_alone(ctx)


@topic.command("create")
@topics_option()
@topic_argument
@click.option(
    "--partitions", type=int, default=1, show_default=True, metavar="N", help="Into how many parts it is cut."
)
@click.option("--max-age", type=duration, default="0", metavar="TIME", help="Remove records older than that.")
@click.option("--max-bytes", type=int, default=0, metavar="N", help="Remove the oldest of a partition above that size.")
@click.option("--schema", type=click.File("rb"), metavar="PATH", help="A file with the JSON Schema of its records.")
def create(name: str, partitions: int, max_age: float, max_bytes: int, schema: IO[bytes] | None) -> None:
    """Make a topic; it keeps its partitions and its schema.

    The version of the schema is part of the name: another schema is another topic, such as chat.messages.v2. Making a
    topic that is there is fine, unless it has another number of partitions or another schema.

    \b
    Examples:
      pabal topic create events --partitions 12 --max-age 7d
      pabal topic create chat.messages.v1 --schema message.json
    """
    document = None if schema is None else _schema(schema.read())
    with opened_topics(create=True) as topics:
        made = topics.topic(name).create(partitions, max_age=max_age, max_bytes=max_bytes, schema=document)
    click.echo(f"{'made' if made else 'there already:'} {name}, {partitions} partition{'s' * (partitions != 1)}")


def _schema(data: bytes) -> dict[str, Json]:
    document = jsontext.read(data)
    if not isinstance(document, dict):
        raise InvalidInput("a JSON Schema is an object")
    return document


@topic.command("retain")
@topics_option()
@topic_argument
@click.option("--max-age", type=duration, metavar="TIME", help="Remove records older than that; 0 for no limit.")
@click.option(
    "--max-bytes",
    type=click.IntRange(0),
    metavar="N",
    help="Remove the oldest of a partition above that size; 0 for no limit.",
)
def retain(name: str, max_age: float | None, max_bytes: int | None) -> None:
    """Change how long records are kept, or how many.

    A limit that is not given stays as it is. All users of the topic apply the change at once.

    \b
    Examples:
      pabal topic retain events --max-age 30d
      pabal topic retain events --max-age 0 --max-bytes 1000000000
    """
    if max_age is None and max_bytes is None:
        raise click.UsageError("give --max-age, --max-bytes or both")
    with opened_topics() as topics:
        known_topic(topics, name).retain(max_age=max_age, max_bytes=max_bytes)
    limits = []
    if max_age is not None:
        limits.append(f"records of {span(max_age)}" if max_age else "records of any age")
    if max_bytes is not None:
        limits.append(f"{max_bytes} bytes in each partition" if max_bytes else "any number of bytes")
    click.echo(f"{name} keeps {', '.join(limits)}")


@topic.command("list")
@topics_option()
@json_option
def list_topics(as_json: bool) -> None:
    """List the topics with their partitions and records.

    LAG is that of the group that is furthest behind, DEAD how many records wait for a replay.

    \b
    Examples:
      pabal topic list

    --json: topic, partitions, records, groups [{group, lag, members}], dead.
    """
    with opened_topics() as topics:
        names = topics.topics()
        rows = [topic_summary(topics.topic(name), names) for name in names]
    if as_json:
        for row in rows:
            click.echo(json_text(row))
    elif rows:
        lines = [
            [row["topic"], *map(str, (row["partitions"], row["records"], len(row["groups"]), _lag(row), row["dead"]))]
            for row in rows
        ]
        heads = ["TOPIC", "PARTITIONS", "RECORDS", "GROUPS", "LAG", "DEAD"]
        click.echo("\n".join(table(heads, lines, right=" rrrrr")))
    else:
        end_with_nothing("no topics")


def _lag(row: TopicSummary) -> int:
    return max((group["lag"] for group in row["groups"]), default=0)


@topic.command("append")
@topics_option()
@topic_argument
@click.argument("body", required=False)
@click.option("--file", "path", type=click.Path(dir_okay=False), metavar="PATH", help="Read the body from a file.")
@click.option("--text", "as_text", is_flag=True, help="The body is text, whatever it looks like.")
@click.option("--bytes", "as_bytes", is_flag=True, help="The body is bytes, kept as they are.")
@click.option("--lines", is_flag=True, help="Each line of the input is a record; all in one append.")
@click.option("--key", default="", metavar="TEXT", help="Records of one key stay in one partition, in order.")
@click.option("--partition", type=int, metavar="N", help="The partition, instead of the key's.")
@click.option("--header", "headers", type=pair, multiple=True, metavar="K=V", help="A header; may be repeated.")
@json_option
def append(
    name: str,
    body: str | None,
    path: str | None,
    as_text: bool,
    as_bytes: bool,
    lines: bool,
    key: str,
    partition: int | None,
    headers: tuple[tuple[str, str], ...],
    as_json: bool,
) -> None:
    """Append one record to a topic and print where it stands.

    BODY is JSON; a word that does not look like JSON is taken as text. Without BODY, or with -, it is read from
    stdin. When the position is printed, the record is safe.

    \b
    Examples:
      pabal topic append events '{"placed": 17}' --key customer-4
      jq -c '.[]' events.json | pabal topic append events --lines
    """
    if as_text and as_bytes:
        raise click.UsageError("--text and --bytes exclude each other")
    data = source(body, path)
    parts = data.splitlines() if lines else [data]
    bodies: list[Json | bytes] = [content(part, as_text=as_text, as_bytes=as_bytes) for part in parts]
    with opened_topics() as topics:
        positions = known_topic(topics, name).append_many(
            bodies, key=key, partition=partition, headers=unique(headers, "--header")
        )
    for number, offset in positions:
        click.echo(
            json_text({"topic": name, "partition": number, "offset": offset})
            if as_json
            else f"{name}/{number}/{offset}"
        )


@topic.command("read")
@topics_option()
@topic_argument
@click.option(
    "--group", required=True, metavar="NAME", help="The group whose offsets are used; each group sees every record."
)
@click.option(
    "--count", type=click.IntRange(0, 10**9), default=1, metavar="N", help="Stop after N, 0 for no end. By default 1."
)
@click.option("--wait", type=patience, metavar="TIME", help="How long to wait for a record. By default 5s.")
@click.option(
    "--session",
    type=lasting,
    default=str(DEFAULT_SESSION),
    metavar="TIME",
    help="Silence after which others take over.",
)
@json_option
def read(name: str, group: str, count: int, wait: float | None, session: float, as_json: bool) -> None:
    """Read on where a group is, print each record and commit it.

    Several readers of one group share the partitions. What was printed is committed; if the reader is killed before
    the commit, the next one prints it again. Ends with 1 if there was nothing.

    \b
    Examples:
      pabal topic read events --group billing --count 100 --json
      pabal topic read events --group audit --count 0 --wait forever
    """
    check_name(group, "group")
    shown = 0
    limit, rest = count or FOREVER, 5.0 if wait is None else wait
    with opened_topics() as topics, unwinding_on_sigterm():
        member = known_topic(topics, name).topics.join(name, group, session=session)
        try:
            shown = _show(member, limit, rest, as_json)
        finally:
            member.close()
    if not shown:
        end_with_nothing(f"nothing new in {name} for {group}")


def _show(member: Member, limit: float, wait: float, as_json: bool) -> int:
    shown, rest, since = 0, wait, time.monotonic()
    while shown < limit and rest >= 0:
        records = member.read(int(min(_BATCH, limit - shown)), min(_READ_SECONDS, rest))
        now = time.monotonic()
        since = now if records else since
        rest = wait - (now - since)
        for record in records:
            _print(record, as_json=as_json)
        sys.stdout.flush()
        member.commit({record.partition: record.offset + 1 for record in records})
        shown += len(records)
    return shown


@topic.command("tail")
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
        records = records_before(source, dict(enumerate(ends)), lines)[0] if lines else []
        for record in records:
            _print(record, as_json=as_json)
        if follow:
            _follow(source, ends, as_json=as_json)
        elif not records and lines:
            end_with_nothing(f"{name} holds no records")


def _between(topic: Topic, number: int, start: int, end: int) -> Iterator[Record]:
    while start < end:
        page = topic.read(number, start, min(_BATCH, end - start))
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
            _print(record, as_json=as_json)
        if not fresh:
            time.sleep(_POLL)


def _print(record: Record, *, as_json: bool) -> None:
    """Print a record on one line."""
    click.echo(json_text(record_document(record)) if as_json else _record_line(record))


def _record_line(record: Record) -> str:
    """Return a record as one line of text."""
    at = time_of_day(record.at)
    body = record.fault or glance(body_of(record))
    return fitted("  ".join(filter(None, (at, str(record), clean(record.key), clean(body)))))


@topic.command("groups")
@topics_option()
@topic_argument
@json_option
def groups(name: str, as_json: bool) -> None:
    """Show how far each group of a topic is, and its readers.

    \b
    Examples:
      pabal topic groups events
    """
    with opened_topics() as topics:
        found = known_topic(topics, name).groups()
    rows = [(group, share) for group, shares in found.items() for share in shares]
    if as_json:
        for group, share in rows:
            click.echo(json_text({"topic": name, "group": group, **share_document(share)}))
    elif rows:
        lines = [[group, str(s.partition), str(s.committed), str(s.lag), clean(s.owner)] for group, s in rows]
        click.echo("\n".join(table(["GROUP", "PARTITION", "COMMITTED", "LAG", "OWNER"], lines, right=" rrr")))
    else:
        end_with_nothing(f"no group has read {name}")


def _instant(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"an instant is like 2026-11-15T22:51:03Z; found {text!r:.40}") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


@topic.command("reset-offsets")
@topics_option()
@topic_argument
@click.option("--group", required=True, metavar="NAME", help="The group; none of its members may be alive.")
@click.option("--to", "to", type=click.Choice(["earliest", "latest"]), help="All that is kept, or only what comes.")
@click.option(
    "--offset", type=click.IntRange(0), metavar="N", help="This offset in every partition, or in --partition."
)
@click.option("--at", type=_instant, metavar="INSTANT", help="What was appended from this moment on, UTC.")
@click.option("--back", type=duration, metavar="TIME", help="What was appended within the last TIME, such as 2h.")
@click.option("--partition", type=int, metavar="N", help="Only this partition.")
def reset_offsets(
    name: str,
    group: str,
    to: str | None,
    offset: int | None,
    at: float | None,
    back: float | None,
    partition: int | None,
) -> None:
    """Let a group go on from another place: replay or skip.

    \b
    Examples:
      pabal topic reset-offsets events --group billing --to earliest
      pabal topic reset-offsets events --group billing --back 2h
      pabal topic reset-offsets events --group billing --offset 17 --partition 3
    """
    if sum(value is not None for value in (to, offset, at, back)) != 1:
        raise click.UsageError("give one of --to, --offset, --at, --back")
    if back is not None:
        at = datetime.now(UTC).timestamp() - back
    with opened_topics() as topics:
        source = known_topic(topics, name)
        wanted = _offsets(source, to, offset, at)
        if partition is not None:
            if partition not in wanted:
                raise click.UsageError(f"{name} has partitions 0 to {len(wanted) - 1}; found {partition}")
            wanted = {partition: wanted[partition]}
        source.topics.reset(name, group, wanted)
    lines = [[group, str(number), str(place)] for number, place in wanted.items()]
    click.echo("\n".join(table(["GROUP", "PARTITION", "OFFSET"], lines, right=" rr")))


def _offsets(topic: Topic, to: str | None, offset: int | None, at: float | None) -> dict[int, int]:
    if at is not None:
        return dict(enumerate(topic.topics.offsets_at(topic.name, at)))
    bounds = topic.bounds()
    if offset is not None:
        return {number: min(max(offset, first), end) for number, (first, end) in enumerate(bounds)}
    return {number: end if to == "latest" else first for number, (first, end) in enumerate(bounds)}


@topic.command("dlq")
@topics_option()
@topic_argument
@click.option(
    "--count", type=click.IntRange(1, 10**6), metavar="N", help="At most so many. By default 100, with --replay all."
)
@click.option("--replay", "again", is_flag=True, help="Append them to the topic again, for the group that failed.")
@json_option
def dlq(name: str, count: int | None, again: bool, as_json: bool) -> None:
    """List dead records with the reason, or replay them.

    Dead records of NAME stand in NAME.dlq. Listed are those that were not replayed yet.

    \b
    Examples:
      pabal topic dlq chat.messages.v1
      pabal topic dlq chat.messages.v1 --replay
    """
    with opened_topics() as topics:
        source = known_topic(topics, name)
        if again:
            done = replay(source, count)
            click.echo(f"replayed {done}")
            return
        records = waiting(source, count or 100)
    for record in records:
        if as_json:
            click.echo(json_text(dead_record_document(record)))
        else:
            dead = dead_of(record)
            click.echo(_record_line(record))
            click.echo(clean(f"    {dead.code} for {dead.group} after {dead.attempts}: {dead.reason}"))
    if not records:
        end_with_nothing(f"no dead records of {name}")


@topic.command("doctor")
@topics_option()
@click.option("--repair", is_flag=True, help="Repair what is found.")
@json_option
def doctor(repair: bool, as_json: bool) -> None:
    """Check the file of the topics for damage.

    Ends with 1 if something is wrong and was not mended. Kafka checks its own files.

    \b
    Examples:
      pabal topic doctor
      pabal topic doctor --repair

    --json: where, problem, remedy, repaired.
    """
    with opened_topics(damaged=True) as topics:
        driver = topics.driver
        found = driver.check(repair=repair) if isinstance(driver, Checkable) else []
        facts = driver.facts()
    report(found, facts, repair=repair, as_json=as_json)
