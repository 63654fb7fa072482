"""`pabal demo`: a publisher, a worker that fails and is killed, and a live view of what becomes of the messages."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import click

from pabal.cli.demo_play import Play
from pabal.cli.demo_view import Screen
from pabal.cli.exits import unwinding_on_sigterm
from pabal.cli.values import lasting
from pabal.connect import connect

_PLACE = Path(".pabal/demo")
_STORES = {"sqlite": "pabal.db", "file": "files", "hybrid": "hybrid"}


@click.command("demo")
@click.option("--seconds", type=lasting, default="20", metavar="TIME", help="How long; 20s by default.")
@click.option("--store", type=click.Choice(list(_STORES)), default="sqlite", show_default=True, help="On which store.")
def demo(seconds: float, store: str) -> None:
    """Watch a queue at work: retries, dead letters, a kill -9.

    A publisher and a worker run as processes of their own on a fresh store in .pabal/demo. Ctrl-C ends it early.

    \b
    Examples:
      pabal demo
      pabal demo --store file --seconds 1m
    """
    with unwinding_on_sigterm(), _fresh_place():
        url = f"{store}:{_PLACE / _STORES[store]}"
        with connect(url) as mq, closing(Screen()) as screen:
            play = Play(mq, url, screen)
            play.run(seconds)
            click.echo("\n".join(play.epilogue()))


@contextmanager
def _fresh_place() -> Iterator[None]:
    """Empty the demo's own folder, unless another demo is running in it."""
    _PLACE.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(_PLACE / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise click.UsageError(f"another demo is running in {_PLACE}") from None
        for path in _PLACE.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()
        yield
    finally:
        os.close(lock)
