"""`pabal topic retain`: keep more or less of a topic that is there."""

from __future__ import annotations

import click

from pabal.cli.text import span
from pabal.cli.topic_session import known_topic, opened_topics, topic_argument, topics_option
from pabal.cli.values import duration


@click.command("retain")
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

    What is not said stays as it is. Whoever uses the topic goes by it at once.

    \b
    Examples:
      pabal topic retain events --max-age 30d
      pabal topic retain events --max-age 0 --max-bytes 1000000000
    """
    if max_age is None and max_bytes is None:
        raise click.UsageError("say --max-age, --max-bytes or both")
    with opened_topics() as topics:
        known_topic(topics, name).retain(max_age=max_age, max_bytes=max_bytes)
    told = []
    if max_age is not None:
        told.append(f"records of {span(max_age)}" if max_age else "records of any age")
    if max_bytes is not None:
        told.append(f"{max_bytes} bytes in each partition" if max_bytes else "any number of bytes")
    click.echo(f"{name} keeps {', '.join(told)}")
