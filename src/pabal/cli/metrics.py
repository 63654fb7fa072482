"""`pabal metrics` and `pabal check`: the figures of a store, for monitoring. No manager is needed."""

from __future__ import annotations

import time

import click

from pabal.cli.session import command, known, opened, some_queue_argument
from pabal.cli.text import json_text, span
from pabal.cli.values import duration
from pabal.cli.verbs import Document
from pabal.queues.metrics import UNUSABLE, age_of_oldest, queues_metrics
from pabal.queues.prometheus import prometheus_text
from pabal.queues.queue import Queue
from pabal.runtime.resources import store_metrics
from pabal.store import State

CRITICAL = 2  # as monitoring plugins end


@command("metrics")
@some_queue_argument
@click.option("--prometheus", is_flag=True, help="Print text for Prometheus; this is the default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def metrics(queue: str | None, prometheus: bool, as_json: bool) -> None:
    """Print the figures of all queues, or of QUEUE, for monitoring.

    Counts, ages and durations are kept in the store, whichever process publishes and consumes. All series are there
    from the beginning, with 0. Of a process that was killed, the last leases and acks may be missing.

    \b
    Examples:
      pabal metrics > /var/lib/node_exporter/pabal.prom
      pabal metrics jobs --json | jq .queues.jobs.acked

    --json: store {freeBytes, ballast}, consumers [{consumer, host, pid, seenSeconds, holds {QUEUE: {messages,
    seconds}}}], queues {NAME: {ready, delayed, inflight, dead, done, corrupt,
    oldestReadySeconds, oldestInflightSeconds, paused, published, leased, acked, retries, expirations, dropped, stale,
    deadLetters, secondsInQueue, secondsInWork}}.
    """
    if prometheus and as_json:
        raise click.UsageError("--prometheus and --json exclude each other: give one of them")
    with opened() as mq:
        names = [known(mq, queue).name] if queue else mq.queues()
        document = {"store": store_metrics(mq.store), **queues_metrics(mq.store, map(mq.queue, names), time.time())}
    if as_json:
        click.echo(json_text(document))
    else:
        click.echo(prometheus_text(document), nl=False)


@command("check")
@some_queue_argument
@click.option("--max-oldest", type=duration, metavar="TIME", help="The oldest ready message: at most so old.")
@click.option("--max-inflight-age", type=duration, metavar="TIME", help="The oldest one in flight: at most so old.")
@click.option("--max-dead", type=click.IntRange(0), metavar="N", help="Dead messages in a queue: at most N.")
@click.pass_context
def check(
    ctx: click.Context,
    queue: str | None,
    max_oldest: float | None,
    max_inflight_age: float | None,
    max_dead: int | None,
) -> None:
    """Say in one line whether all queues, or QUEUE, keep these limits.

    For cron, Nagios and systemd. Ends with 0 if they do, with 2 if not, with 3 if there is no such store or queue, with
    6 if the store cannot be read. Messages that could not be read (corrupt) are always too many.

    \b
    Example:
      pabal check --max-oldest 5m --max-dead 0 --max-inflight-age 10m
    """
    with opened() as mq:
        names = [known(mq, queue).name] if queue else mq.queues()
        now = time.time()
        found = [(name, _figures(mq.queue(name), now)) for name in names]
    faults = [
        f"{name}: {fault}"
        for name, figures in found
        for fault in _faults(figures, max_oldest, max_inflight_age, max_dead)
    ]
    if faults:
        click.echo(f"CRITICAL - {'; '.join(faults)}")
        ctx.exit(CRITICAL)
    ready, dead = (sum(figures[key] for _, figures in found) for key in ("ready", "dead"))
    oldest = max((figures["oldest"] or 0.0 for _, figures in found), default=0.0)
    click.echo(f"OK - {len(found)} queue{'s' * (len(found) != 1)}, {ready} ready, oldest {span(oldest)}, {dead} dead")


def _figures(queue: Queue, now: float) -> Document:
    try:
        counts = queue.counts()
    except UNUSABLE as exc:
        return {"ready": 0, "dead": 0, "corrupt": 0, "oldest": None, "inflight": None, "fault": str(exc)}
    return {
        "ready": counts[State.READY],
        "dead": counts[State.DEAD],
        "corrupt": counts[State.CORRUPT],
        "oldest": age_of_oldest(queue, State.READY, now),
        "inflight": age_of_oldest(queue, State.INFLIGHT, now),
        "fault": "",
    }


def _faults(
    figures: Document, max_oldest: float | None, max_inflight_age: float | None, max_dead: int | None
) -> list[str]:
    faults = [figures["fault"]] if figures["fault"] else []
    for age, most, what in (
        (figures["oldest"], max_oldest, "the oldest ready message waits for"),
        (figures["inflight"], max_inflight_age, "the oldest message in flight is held for"),
    ):
        if age is not None and most is not None and age > most:
            faults.append(f"{what} {span(age)}, {span(most)} at most")
    if max_dead is not None and figures["dead"] > max_dead:
        faults.append(f"{figures['dead']} dead, {max_dead} at most")
    if figures["corrupt"]:
        faults.append(f"{figures['corrupt']} corrupt")
    return faults
