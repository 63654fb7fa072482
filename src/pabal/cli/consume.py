"""`pabal consume`: lease messages and print them, or run a command on each."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress

import click

from pabal.cli.documents import delivery_document
from pabal.cli.execute import Execution, command_line
from pabal.cli.exits import Exit, unwinding_on_sigterm
from pabal.cli.session import command, current_url, json_option, known, opened, queue_argument
from pabal.cli.text import body_text, clean, json_text, span
from pabal.cli.values import FOREVER, lasting, patience
from pabal.delivery import Delivery
from pabal.errors import PabalError
from pabal.queue import Queue
from pabal.store import State

_BATCH = 100
_TOLD = ("type", "sender", "group", "thread_id", "reply_to")


@command("consume")
@queue_argument
@click.option(
    "--wait",
    type=patience,
    metavar="TIME",
    help="How long to wait for a message; forever is allowed. By default not at all, with --exec for ever.",
)
@click.option(
    "--count",
    type=click.IntRange(0, 10**9),
    metavar="N",
    help="Stop after N messages, 0 for no end. By default 1, with --exec no end.",
)
@click.option(
    "--lease",
    "seconds",
    type=lasting,
    metavar="TIME",
    help="How long they are yours. By default as the policy says.",
)
@click.option("--ack", is_flag=True, help="Settle each as done once it is printed.")
@click.option("--exec", "line", metavar="CMD", help="Run CMD on each message and settle by its exit status.")
@click.option("--concurrency", type=click.IntRange(1, 1000), metavar="N", help="With --exec: so many at a time.")
@click.option("--timeout", type=lasting, metavar="TIME", help="With --exec: end CMD after so long; that is a failure.")
@click.option("--consumer", metavar="NAME", default="", help="Your name, for messages addressed to you.")
@json_option
def consume(
    queue: str,
    wait: float | None,
    count: int | None,
    seconds: float | None,
    ack: bool,
    line: str | None,
    concurrency: int | None,
    timeout: float | None,
    consumer: str,
    as_json: bool,
) -> None:
    """Lease messages from QUEUE and print each with its receipt.

    A leased message is yours until the lease runs out; then it comes back. Settle it with `pabal ack RECEIPT` or
    `pabal nack RECEIPT`, or let --ack do it. TIME is seconds, or like 30s, 5m, 2h. Ends with 1 if there
    was nothing.

    \b
    Examples:
      pabal consume jobs --wait 20s
      pabal consume jobs --json --count 10 --ack | jq .body
      pabal consume jobs --exec './resize.sh' --concurrency 4

    --exec runs CMD without a shell, the body on its stdin (JSON, or the bytes as they are) and PABAL_ID, PABAL_QUEUE,
    PABAL_TYPE, PABAL_ATTEMPT and PABAL_URL in its environment. Exit status 0 is an ack, any other a nack whose reason
    is the last line of CMD's stderr. The lease is renewed while CMD runs. After Ctrl-C or SIGTERM running commands may
    finish for 30 seconds; a second one ends them at once and gives their messages back, which counts as an attempt.
    """
    if line is None and (concurrency is not None or timeout is not None):
        raise click.UsageError(f"{'--timeout' if concurrency is None else '--concurrency'} needs --exec")
    if line is not None and (ack or as_json):
        raise click.UsageError(f"{'--ack' if ack else '--json'} and --exec exclude each other")
    argv = [] if line is None else command_line(line)
    patience = (FOREVER if argv else 0.0) if wait is None else wait
    limit = (FOREVER if argv else 1) if count is None else count or FOREVER
    with opened(create=patience > 0, consumer=consumer) as mq:
        source = mq.queue(queue) if patience else known(mq, queue)
        if argv:
            execution = Execution(
                source, argv, current_url(), concurrency=concurrency or 1, seconds=seconds, timeout=timeout
            )
            taken = execution.run(wait=patience, count=limit)
            if execution.signalled is not None:
                click.get_current_context().exit(Exit(128 + execution.signalled))
        else:
            with unwinding_on_sigterm():
                taken = _show_all(source, limit, seconds, patience, ack=ack, as_json=as_json)
        if not taken:
            click.echo(_why_nothing(source), err=True)
            click.get_current_context().exit(Exit.NOTHING)


def _show_all(queue: Queue, count: float, seconds: float | None, wait: float, *, ack: bool, as_json: bool) -> int:
    shown = 0
    while shown < count:
        batch = queue.lease(int(min(_BATCH, count - shown)), seconds, wait)
        if not batch:
            break
        _show_batch(queue, batch, ack=ack, as_json=as_json, first=shown == 0)
        shown += len(batch)
    return shown


def _show_batch(queue: Queue, batch: list[Delivery], *, ack: bool, as_json: bool, first: bool) -> None:
    held = list(batch)
    try:
        for delivery in batch:
            if as_json:
                click.echo(json_text(delivery_document(delivery)))
            else:
                click.echo(("" if first and delivery is batch[0] else "\n") + "\n".join(_lines(delivery)))
            if not ack:
                held.remove(delivery)  # its receipt is out: whoever reads it settles it
        sys.stdout.flush()
        if ack:
            queue.ack_many(batch)
            held.clear()
    finally:
        _give_back(held)


def _give_back(deliveries: Iterable[Delivery]) -> None:
    for delivery in deliveries:
        with suppress(PabalError):  # at worst its lease runs out
            delivery.release()


def _lines(delivery: Delivery) -> list[str]:
    message = delivery.message
    fields = [("id", message.id), ("receipt", str(delivery.receipt)), ("attempt", str(delivery.attempt))]
    if delivery.failure is not None:
        fields.append(("before", f"{delivery.failure.code}: {delivery.failure.reason}"))
    fields += [(name, text) for name in _TOLD if (text := getattr(message, name))]
    fields.append(("body", body_text(message.body)))
    return [f"{name:<9}{clean(text)}" for name, text in fields]


def _why_nothing(queue: Queue) -> str:
    if queue.policy.paused:
        return f"{queue.name} is paused; pabal resume {queue.name}, unless it was moved to another store"
    counts = queue.counts()
    facts = [f"{counts.get(state, 0)} {state}" for state in (State.READY, State.DELAYED, State.INFLIGHT)]
    due = queue.store.next_due(queue.name)
    soon = f"; next in {span(due)}" if due is not None else ""
    return f"nothing to take from {queue.name}: {', '.join(facts)}{soon}"
