"""`pabal topic dlq`: what groups could not handle, and another try for it."""

from __future__ import annotations

import click

from pabal.cli.exits import Exit
from pabal.cli.session import json_option
from pabal.cli.text import clean, json_text
from pabal.cli.topic_session import known_topic, opened_topics, topic_argument, topics_option
from pabal.cli.topic_tail import record_document, record_line
from pabal.dead_records import dead_of, replay, waiting


@click.command("dlq")
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
        dead = dead_of(record)
        if as_json:
            click.echo(json_text({**record_document(record), "dead": dead._asdict()}))
        else:
            click.echo(record_line(record))
            click.echo(clean(f"    {dead.code} for {dead.group} after {dead.attempts}: {dead.reason}"))
    if not records:
        click.echo(f"no dead records of {name}", err=True)
        click.get_current_context().exit(Exit.NOTHING)
