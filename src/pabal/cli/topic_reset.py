"""`pabal topic reset-offsets`: let a group read again, or skip."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from pabal.appending import Topic
from pabal.cli.text import table
from pabal.cli.topic_session import known_topic, opened_topics, topic_argument, topics_option
from pabal.cli.values import duration


def _moment(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"an instant is like 2026-11-15T22:51:03Z; found {text!r:.40}") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


@click.command("reset-offsets")
@topics_option()
@topic_argument
@click.option("--group", required=True, metavar="NAME", help="The group; none of its members may be alive.")
@click.option("--to", "to", type=click.Choice(["earliest", "latest"]), help="All that is kept, or only what comes.")
@click.option(
    "--offset", type=click.IntRange(0), metavar="N", help="This offset in every partition, or in --partition."
)
@click.option("--at", type=_moment, metavar="INSTANT", help="What was appended from this moment on, UTC.")
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
        raise click.UsageError("say one of --to, --offset, --at, --back")
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
