"""The `pabal` command: the group of all commands and the way in."""

from __future__ import annotations

import logging
import os
import sys

import click

from pabal.cli.bridge import bridge
from pabal.cli.chat import chat
from pabal.cli.completion import completion
from pabal.cli.config import config
from pabal.cli.consume import consume
from pabal.cli.demo import demo
from pabal.cli.dlq import list_dlq, purge, reprocess
from pabal.cli.doctor import doctor
from pabal.cli.exits import Reported
from pabal.cli.ignite import ignite
from pabal.cli.kingdom import kingdom
from pabal.cli.look import peek, queues, show, status
from pabal.cli.mime import mime
from pabal.cli.move import move
from pabal.cli.mq import mq
from pabal.cli.policy import pause, policy, resume
from pabal.cli.publish import publish
from pabal.cli.service import install_service
from pabal.cli.session import help_if_alone, url_option
from pabal.cli.settle import ack, extend_lease, nack
from pabal.cli.tail import tail
from pabal.cli.topic import topic
from pabal.cli.up import up

_SECTIONS: dict[str, list[click.Command]] = {
    "Messages": [publish, consume, ack, nack, extend_lease],
    "Looking": [status, queues, peek, show, tail],
    "Topics": [topic, bridge],
    "Dead letters": [list_dlq, reprocess, purge],
    "Tending": [policy, pause, resume, move, doctor],
    "Manager": [up, mq, config, install_service],
    "Agents": [ignite, kingdom, mime],
    "Chat": [chat],
    "More": [demo, completion],
}


class Sectioned(Reported):
    """Lists its commands by what they are for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [command.name or "" for commands in _SECTIONS.values() for command in commands]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(command.name or "", command.get_short_help_str(66)) for command in commands])


@click.group(
    "pabal", cls=Sectioned, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="pabal", message="pabal %(version)s")
@url_option(envvar="PABAL_URL")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Durable queues in a file: publish, consume, and nothing is lost.

    \b
    Examples:
      pabal publish jobs '{"hello": "world"}'
      pabal consume jobs
      pabal ack RECEIPT

    Exit codes: 0 done, 1 nothing there, 2 invalid input, 3 unknown queue, message or store, 4 lease lost, 5 full,
    6 store failed, 7 extra not installed.
    """
    # What the library would log, the commands print in their own words.
    logging.getLogger("pabal").addHandler(logging.NullHandler())
    help_if_alone(ctx)


for _commands in _SECTIONS.values():
    for _command in _commands:
        cli.add_command(_command)


def main() -> None:
    _mend_streams()
    cli(prog_name="pabal")


def _mend_streams() -> None:
    """Put the null device where a standard stream was closed, before a store's file takes its number."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdin = sys.stdin or open(os.devnull)
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")
