"""`pabal chat`: a chat in one command, or its gateways and workers apart."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from pabal.cli.chat_gateway import gateway
from pabal.cli.chat_look import root_option, status
from pabal.cli.chat_options import extra, limit_option, limits_of, log_to_stderr, own_name, places_options
from pabal.cli.session import help_if_alone
from pabal.names import check_name

_PROGRAM = "from pabal.cli.main import main; main()"
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONPATH", "PYTHONWARNINGS")
_UP = """\
chat      {address}
folder    {root}
log       {root}/chat.log

Open the address, register, make a room. Ctrl-C stops it; nothing is lost.\
"""


@click.group("chat", invoke_without_command=True)
@click.pass_context
def chat(ctx: click.Context) -> None:
    """A chat: rooms, messages, images, in one command or at scale.

    \b
    Examples:
      pabal chat up
      pabal chat gateway --topics kafka://k1:9092 --db postgresql://db/chat
      pabal chat worker --topics kafka://k1:9092 --db postgresql://db/chat
    """
    help_if_alone(ctx)


@chat.command("up")
@root_option
@click.option("--port", type=click.IntRange(0, 65535), default=8080, metavar="N", help="The port. By default 8080.")
@limit_option
def up(root: Path, port: int, limits: tuple[tuple[str, str], ...]) -> None:
    """Run a whole chat on this machine: topics, database, page.

    Everything lies in one folder. A gateway and a worker are started, and started again if they end. Serves on
    loopback until Ctrl-C or SIGTERM. With port 0 a free one is taken.

    \b
    Examples:
      pabal chat up
      pabal chat up --root /srv/chat --port 8000
    """
    with extra():
        from pabal.chat.up import Place, hold_up

    limits_of(limits)
    place = Place(root)
    hold_up(
        place,
        port,
        lambda arguments: (sys.executable, "-c", _PROGRAM, *arguments),
        more=[part for name, number in limits for part in ("--limit", f"{name}={number}")],
        variables={name: os.environ[name] for name in _KEPT if name in os.environ},
        started=lambda address: click.echo(_UP.format(address=address, root=place.root)),
    )
    click.echo("stopped; everything is on disk")


@chat.command("worker")
@places_options
def worker(topics: str, db: str, name: str | None, heartbeat: Path | None) -> None:
    """Store what gateways take in and publish it, one of any number.

    Several workers share the rooms. While the database is down they wait; nothing is lost and nothing is rejected.

    \b
    Examples:
      pabal chat worker --topics sqlite:topics.db --db sqlite:chat.db
      pabal chat worker --topics kafka://k1:9092 --db postgresql://db/chat
    """
    from pabal.chat.worker.role import run_worker

    log_to_stderr()
    run_worker(topics, db, check_name(name or own_name(os.getpid()), "worker"), heartbeat=heartbeat)


for _command in (gateway, status):
    chat.add_command(_command)
