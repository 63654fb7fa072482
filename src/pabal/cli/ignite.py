"""`pabal ignite`: teams of agents that send each other messages."""

from __future__ import annotations

import click

from pabal.cli.ignite_dlq import dlq, replay
from pabal.cli.ignite_init import init
from pabal.cli.ignite_look import logs, status, top
from pabal.cli.ignite_mail import inbox, read, send
from pabal.cli.ignite_session import root_option
from pabal.cli.ignite_settle import beat, done, fail
from pabal.cli.ignite_tasks import coordinate, tasks
from pabal.cli.ignite_team import down, up
from pabal.cli.ignite_wake import wake_test
from pabal.cli.ignite_watch import watch
from pabal.cli.session import help_if_alone

_SECTIONS: dict[str, list[click.Command]] = {
    "Team": [init, up, down, wake_test],
    "Mail": [send, inbox, read, done, fail, beat],
    "Work": [tasks, coordinate, watch],
    "Looking": [status, top, logs, dlq, replay],
}


class Sectioned(click.Group):
    """Lists its commands by what they are for."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(command.name or "", command.get_short_help_str(60)) for command in commands])


@click.group("ignite", cls=Sectioned, invoke_without_command=True)
@root_option
@click.pass_context
def ignite(ctx: click.Context) -> None:
    """Serve a team of agents: mail that wakes them and is answered for."""
    help_if_alone(ctx)


for _commands in _SECTIONS.values():
    for _command in _commands:
        ignite.add_command(_command)
