"""`pabal ack`, `nack` and `extend-lease`: settle what `consume` leased, by receipt."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from pabal.cli.exits import Exit, complain
from pabal.cli.session import command, opened
from pabal.cli.text import ago
from pabal.cli.values import duration, lasting
from pabal.connect import Connection
from pabal.errors import LeaseLost
from pabal.names import check_id, check_name
from pabal.queue import Queue
from pabal.store import Receipt, State

receipts_argument = click.argument("receipts", metavar="RECEIPT...", nargs=-1, required=True)


@command("ack")
@receipts_argument
def ack(receipts: tuple[str, ...]) -> None:
    """Say that leased messages were handled.

    RECEIPT is what `pabal consume` printed. Repeating an ack is harmless. Ends with 4 if a lease was lost: then
    somebody else has the message, and nothing was changed.

    \b
    Example:
      pabal ack jobs/0199c1d2-.../w3k9...
    """

    def settle(queue: Queue, receipt: Receipt) -> None:
        queue.ack(receipt)
        click.echo(f"done {receipt.id}")

    _each(receipts, settle)


@command("nack")
@receipts_argument
@click.option("--delay", type=duration, metavar="TIME", help="When it comes back, instead of the policy's backoff.")
@click.option("--reason", default="", metavar="TEXT", help="Why, kept with the message.")
@click.option("--bury", is_flag=True, help="Do not try again: set it aside as dead.")
def nack(receipts: tuple[str, ...], delay: float | None, reason: str, bury: bool) -> None:
    """Say that leased messages failed.

    The policy of their queue decides whether and when they come back, or are dead.

    \b
    Examples:
      pabal nack jobs/0199c1d2-.../w3k9... --reason 'no such file' --delay 5m
      pabal nack jobs/0199c1d2-.../w3k9... --bury --reason 'cannot be parsed'
    """
    if bury and delay is not None:
        raise click.UsageError("--bury and --delay exclude each other")

    def settle(queue: Queue, receipt: Receipt) -> None:
        if bury:
            queue.bury(receipt, reason)
        else:
            queue.nack(receipt, delay, reason)
        click.echo(_fate(queue, receipt))

    _each(receipts, settle)


@command("extend-lease")
@click.argument("receipt", metavar="RECEIPT")
@click.argument("seconds", metavar="SECONDS", type=lasting)
def extend_lease(receipt: str, seconds: float) -> None:
    """Let a lease end SECONDS from now.

    For work that takes longer than the lease. SECONDS may be written like 30s, 5m, 2h.

    \b
    Example:
      pabal extend-lease jobs/0199c1d2-.../w3k9... 10m
    """

    def settle(queue: Queue, receipt: Receipt) -> None:
        queue.extend(receipt, seconds)
        click.echo(f"extended {receipt.id} by {seconds:g}s from now")

    _each([receipt], settle)


def _each(texts: Sequence[str], settle: Callable[[Queue, Receipt], None]) -> None:
    """Settle all, also when one is lost; a receipt that is none stops everything before it begins."""
    receipts = [_receipt(text) for text in texts]
    lost = False
    with opened() as mq:
        for receipt in receipts:
            lost |= not _settled(mq, receipt, settle)
    if lost:
        click.get_current_context().exit(Exit.LEASE_LOST)


def _settled(mq: Connection, receipt: Receipt, settle: Callable[[Queue, Receipt], None]) -> bool:
    try:
        settle(mq.queue(receipt.queue), receipt)
    except LeaseLost as exc:
        complain(exc)
        return False
    return True


def _receipt(text: str) -> Receipt:
    receipt = Receipt.parse(text)
    check_name(receipt.queue)
    check_id(receipt.id)
    return receipt


def _fate(queue: Queue, receipt: Receipt) -> str:
    entry = queue.find(receipt.id)
    if entry is None or entry.state is State.DONE:
        return f"dropped {receipt.id}: the policy keeps no dead letters"
    if entry.state is State.DELAYED:
        return f"delayed {receipt.id}: ready {ago(entry.due_at)}"
    return f"{entry.state} {receipt.id}"
