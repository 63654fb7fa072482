"""`pabal bridge`: carry messages of a queue to a topic, or records of a topic to a queue."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager

import click

from pabal.bridge import to_queue, to_topic
from pabal.cli.exits import Exit, on_signals
from pabal.cli.session import help_if_alone, opened, queue_argument, url_option
from pabal.cli.topic_session import known_topic, opened_topics, topic_argument, topics_option
from pabal.cli.values import FOREVER, patience
from pabal.names import check_name


@click.group("bridge", invoke_without_command=True)
@topics_option(envvar="PABAL_TOPICS")
@click.pass_context
def bridge(ctx: click.Context) -> None:
    """Carry messages between queues and topics.

    \b
    Examples:
      pabal bridge to-topic orders events
      pabal bridge to-queue events orders --group orders-bridge
    """
    help_if_alone(ctx)


_wait = click.option("--wait", type=patience, default="forever", metavar="TIME", help="End after so long without any.")
_count = click.option("--count", type=click.IntRange(1, 10**9), metavar="N", help="End after N.")


@bridge.command("to-topic")
@url_option()
@topics_option()
@queue_argument
@topic_argument
@_wait
@_count
def to_topic_command(queue: str, name: str, wait: float, count: int | None) -> None:
    """Append each message of QUEUE to topic NAME, then ack it.

    At least once: after a crash a record may stand twice, with the same pabal-id header. The group of a message is the
    key of its record. A failing store of the topic makes it wait.

    \b
    Examples:
      pabal bridge to-topic orders events
    """
    with opened(create=True) as mq, opened_topics() as topics:
        carrier = to_topic(mq.queue(queue), known_topic(topics, name))
        with _stopping(carrier.stop):
            done = carrier.run(wait=None if wait == FOREVER else wait, count=count)
    _tell(done)


@bridge.command("to-queue")
@url_option()
@topics_option()
@topic_argument
@queue_argument
@click.option("--group", default="", metavar="NAME", help="The group that keeps its place. By default bridge.QUEUE.")
@_wait
@_count
def to_queue_command(name: str, queue: str, group: str, wait: float, count: int | None) -> None:
    """Publish each record of topic NAME to QUEUE, then commit it.

    What a crash carries twice is stored once, within the queue's dedup window. The key of a record is the group of its
    message. A full queue or a failing store makes it wait; a body that the queue refuses goes to the topic's dlq.

    \b
    Examples:
      pabal bridge to-queue events orders
    """
    with opened(create=True) as mq, opened_topics() as topics:
        group = check_name(group or f"bridge.{queue}", "group")
        carrier = to_queue(known_topic(topics, name), group, mq.queue(queue))
        with _stopping(carrier.stop):
            done = carrier.run(wait=None if wait == FOREVER else wait, count=count)
    _tell(done)


def _stopping(stop: Callable[[], None]) -> AbstractContextManager[None]:
    return on_signals(lambda number, frame: stop(), signal.SIGTERM, signal.SIGINT)


def _tell(done: int) -> None:
    click.echo(f"carried {done}")
    if not done:
        click.get_current_context().exit(Exit.NOTHING)
