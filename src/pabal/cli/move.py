"""`pabal move`: carry queues from one store to another."""

from __future__ import annotations

import sys
import time

import click

from pabal.cli.exits import Exit
from pabal.cli.session import json_option, known
from pabal.cli.text import json_text
from pabal.cli.values import patience
from pabal.connect import connect
from pabal.moving import Moved
from pabal.moving import move as carry


@click.command("move")
@click.option("--from", "source", metavar="URL", required=True, help="The store that the messages are in.")
@click.option("--to", "target", metavar="URL", required=True, help="The store that they shall be in.")
@click.option("--wait", metavar="TIME", type=patience, default="0", help="Wait so long for what consumers still hold.")
@click.argument("queues", metavar="[QUEUE]...", nargs=-1)
@json_option
def move(source: str, target: str, wait: float, queues: tuple[str, ...], as_json: bool) -> None:
    """Carry queues, all if none is named, from one store to another.

    Ids, attempts, delays, dead letters and settings come along. The queues of the source are paused first and stay so.
    It may be killed at any point and started again: nothing is lost or doubled. Ends with 1 if consumers still hold
    something at the source.

    \b
    Examples:
      pabal move --from sqlite:pabal.db --to postgresql://me@host/mydb
      pabal move --from file:spool --to sqlite:pabal.db jobs --wait 60

    --json: queue, ready, delayed, dead, done, left.
    """
    left = 0
    with connect(source, create=False) as old, connect(target) as new:
        for name in queues or old.queues():
            found = carry(old.store, new.store, known(old, name).name, wait=wait, told=_Progress())
            click.echo(json_text(found._asdict()) if as_json else _line(found))
            left += found.left
    if left:
        click.get_current_context().exit(Exit.NOTHING)


class _Progress:
    """Says how far it is, on a terminal and at most twice a second."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def __call__(self, moved: Moved) -> None:
        if sys.stderr.isatty() and time.monotonic() - self._said > 0.5:
            self._said = time.monotonic()
            total = moved.ready + moved.delayed + moved.dead + moved.done
            click.echo(f"{moved.queue}: {total} carried", err=True)


def _line(moved: Moved) -> str:
    carried = f"{moved.ready} ready, {moved.delayed} delayed, {moved.dead} dead, {moved.done} done"
    held = f"; {moved.left} left at the source: move again when they are settled" if moved.left else ""
    return f"{moved.queue}: {carried}{held}"
