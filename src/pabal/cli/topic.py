"""`pabal topic`: make topics, append to them, read them as a group, see how far the groups are."""

from __future__ import annotations

import sys
import time
from typing import IO

import click

from pabal import jsontext
from pabal.cli.exits import Exit, unwinding_on_sigterm
from pabal.cli.publish import content, source
from pabal.cli.session import help_if_alone, json_option
from pabal.cli.text import clean, json_text, table
from pabal.cli.topic_dlq import dlq
from pabal.cli.topic_reset import reset_offsets
from pabal.cli.topic_retain import retain
from pabal.cli.topic_session import known_topic, opened_topics, topic_argument, topics_option
from pabal.cli.topic_tail import record_document, record_line, tail
from pabal.cli.values import FOREVER, duration, lasting, pair, patience, unique
from pabal.errors import InvalidInput
from pabal.jsontext import Json
from pabal.names import check_name
from pabal.topic import DEFAULT_SESSION, Member

_BATCH = 500
_SLICE = 1.0  # seconds


@click.group("topic", invoke_without_command=True)
@topics_option(envvar="PABAL_TOPICS")
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


@topic.command("list")
@topics_option()
@json_option
def list_topics(as_json: bool) -> None:
    """List the topics with their partitions and records.

    \b
    Examples:
      pabal topic list
    """
    with opened_topics() as topics:
        rows = [
            {
                "topic": name,
                "partitions": len(bounds),
                "records": sum(end - first for first, end in bounds),
                "groups": len(topics.topic(name).groups()),
            }
            for name in topics.topics()
            for bounds in [topics.topic(name).bounds()]
        ]
    if as_json:
        for row in rows:
            click.echo(json_text(row))
    elif rows:
        lines = [[str(value) for value in row.values()] for row in rows]
        click.echo("\n".join(table(["TOPIC", "PARTITIONS", "RECORDS", "GROUPS"], lines, right=" rrr")))
    else:
        click.echo("no topics", err=True)
        click.get_current_context().exit(Exit.NOTHING)


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
@click.option("--group", required=True, metavar="NAME", help="Whose place is kept; each group sees every record.")
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

    Several readers of one group share the partitions. What was printed is committed; whoever is killed in between is
    repeated by the next. Ends with 1 if there was nothing.

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
        click.echo(f"nothing new in {name} for {group}", err=True)
        click.get_current_context().exit(Exit.NOTHING)


def _show(member: Member, limit: float, wait: float, as_json: bool) -> int:
    shown, rest, since = 0, wait, time.monotonic()
    while shown < limit and rest >= 0:
        records = member.read(int(min(_BATCH, limit - shown)), min(_SLICE, rest))
        now = time.monotonic()
        since = now if records else since
        rest = wait - (now - since)
        for record in records:
            click.echo(json_text(record_document(record)) if as_json else record_line(record))
        sys.stdout.flush()
        member.commit({record.partition: record.offset + 1 for record in records})
        shown += len(records)
    return shown


@topic.command("groups")
@topics_option()
@topic_argument
@json_option
def groups(name: str, as_json: bool) -> None:
    """Show how far each group of a topic is, and who reads.

    \b
    Examples:
      pabal topic groups events
    """
    with opened_topics() as topics:
        found = known_topic(topics, name).groups()
    rows = [(group, share) for group, shares in found.items() for share in shares]
    if as_json:
        for group, share in rows:
            click.echo(json_text({"topic": name, "group": group, **share._asdict()}))
    elif rows:
        lines = [[group, str(s.partition), str(s.committed), str(s.lag), clean(s.owner)] for group, s in rows]
        click.echo("\n".join(table(["GROUP", "PARTITION", "COMMITTED", "LAG", "OWNER"], lines, right=" rrr")))
    else:
        click.echo(f"no group has read {name}", err=True)
        click.get_current_context().exit(Exit.NOTHING)


def _schema(data: bytes) -> dict[str, Json]:
    document = jsontext.read(data)
    if not isinstance(document, dict):
        raise InvalidInput("a JSON Schema is an object")
    return document


topic.add_command(retain)
topic.add_command(tail)
topic.add_command(reset_offsets)
topic.add_command(dlq)
