"""`pabal bridge`: carry messages of a queue to a topic, or records of a topic to a queue."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from typing import TypeAlias

import click

from pabal.bridge import sit_out, to_queue, to_topic
from pabal.cli.exits import Exit, on_signals
from pabal.cli.session import help_if_alone, opened, queue_argument, url_option
from pabal.cli.topic_session import known_topic, opened_topics, topic_argument, topics_option
from pabal.cli.values import FOREVER, patience
from pabal.connect import Connection
from pabal.connect_topics import TopicConnection
from pabal.consuming import Consumer
from pabal.errors import StoreFailed, Uncertain
from pabal.names import check_name
from pabal.worker import Worker

log = logging.getLogger("pabal")

Make: TypeAlias = Callable[[Connection, TopicConnection], Worker | Consumer]


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
    key of its record. A store that fails makes it wait, and is opened anew.

    \b
    Examples:
      pabal bridge to-topic orders events
    """
    _run(lambda mq, topics: to_topic(mq.queue(queue), known_topic(topics, name)), wait, count)


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
    message. A full queue makes it wait, and so does a store that fails, which is opened anew; a body that the queue
    refuses goes to the topic's dlq.

    \b
    Examples:
      pabal bridge to-queue events orders
    """
    group = check_name(group or f"bridge.{queue}", "group")
    _run(lambda mq, topics: to_queue(known_topic(topics, name), group, mq.queue(queue)), wait, count)


class _Carrying:
    """Carries until it is done or told to stop. When a store has failed, both are opened anew, after a while."""

    def __init__(self, make: Make, wait: float | None, count: int | None) -> None:
        self._make, self._wait, self._count = make, wait, count
        self._carrier: Worker | Consumer | None = None
        self._stopping = False
        self.done = 0

    def run(self) -> None:
        failures = 0
        while not self._stopping:
            before = self.done
            try:
                self._shift()
                return
            except (StoreFailed, Uncertain) as exc:
                if self._carrier is None:
                    raise  # it never was at work: more likely a wrong URL
                failures = failures + 1 if self.done == before else 1
                log.warning("the bridge waits: %s: %s", exc.code, exc)
            sit_out(failures, lambda: self._stopping)

    def stop(self) -> None:
        self._stopping = True
        if self._carrier is not None:
            self._carrier.stop()

    def _shift(self) -> None:
        """Work with one pair of connections until all is done or one of them breaks."""
        with opened(create=True) as mq, opened_topics() as topics:
            self._carrier = carrier = self._make(mq, topics)
            if self._stopping:
                return
            try:
                carrier.run(wait=self._wait, count=None if self._count is None else self._count - self.done)
            finally:
                self.done += carrier.handled


def _run(make: Make, wait: float, count: int | None) -> None:
    carrying = _Carrying(make, None if wait == FOREVER else wait, count)
    with on_signals(lambda number, frame: carrying.stop(), signal.SIGTERM, signal.SIGINT):
        carrying.run()
    click.echo(f"carried {carrying.done}")
    if not carrying.done:
        click.get_current_context().exit(Exit.NOTHING)
