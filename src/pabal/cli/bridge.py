"""`pabal bridge`: copy messages of a queue to a topic, or records of a topic to a queue, as they come."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

import click

from pabal.cli.exits import end_with_nothing
from pabal.cli.session import (
    TOPICS_VARIABLE,
    help_if_alone,
    known_topic,
    opened,
    opened_topics,
    queue_argument,
    topic_argument,
    topics_option,
    url_option,
)
from pabal.cli.values import FOREVER, patience
from pabal.connect import Connection, TopicConnection
from pabal.errors import StoreError
from pabal.names import check_name
from pabal.queues.worker import Worker
from pabal.runtime.grace import run_until_signal
from pabal.runtime.reopening import Reopening
from pabal.topics.bridge import to_queue, to_topic
from pabal.topics.consumer import Consumer

log = logging.getLogger("pabal")

Make: TypeAlias = Callable[[Connection, TopicConnection], Worker | Consumer]


@click.group("bridge", invoke_without_command=True)
@topics_option(envvar=TOPICS_VARIABLE)
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
    key of its record. A store that fails makes it wait, and is opened again.

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
    message. A full queue makes it wait, and so does a store that fails, which is opened again; a body that the queue
    refuses goes to the topic's dlq.

    \b
    Examples:
      pabal bridge to-queue events orders
    """
    group = check_name(group or f"bridge.{queue}", "group")
    _run(lambda mq, topics: to_queue(known_topic(topics, name), group, mq.queue(queue)), wait, count)


class _Bridge:
    """Runs a bridge until it is done or stopped. After a store failed, both stores are opened again, after a pause."""

    def __init__(self, make: Make, wait: float | None, count: int | None) -> None:
        self._make, self._wait, self._count = make, wait, count
        self._reopening = Reopening((StoreError,), failed=_log_failure)
        self.stop = self._reopening.stop
        self.done = 0

    def run(self) -> None:
        self._reopening.run(self._serve)

    def _serve(self) -> None:
        """Run on one pair of connections until all is done or one of them fails."""
        with opened(create=True) as mq, opened_topics() as topics:
            runner = self._make(mq, topics)
            self._reopening.began(runner)
            if self._reopening.stopping:
                return
            try:
                runner.run(wait=self._wait, count=None if self._count is None else self._count - self.done)
                self._reopening.stopping = True
            finally:
                self.done += runner.handled
                if runner.handled:
                    self._reopening.passed()


def _log_failure(exc: Exception, pause: float) -> None:
    code = exc.code if isinstance(exc, StoreError) else ""
    fields = {"again_in": pause, "code": code, "error": str(exc)}
    log.warning("the bridge waits %(again_in)g s: %(code)s: %(error)s", fields)


def _run(make: Make, wait: float, count: int | None) -> None:
    bridging = _Bridge(make, None if wait == FOREVER else wait, count)
    context = click.get_current_context()

    def carry() -> None:
        with context.scope(cleanup=False):  # the context of a command belongs to its thread
            bridging.run()

    run_until_signal(carry, bridging.stop)
    click.echo(f"carried {bridging.done}")
    if not bridging.done:
        end_with_nothing()
