"""`pabal ignite`: teams of agents that send each other messages."""

from __future__ import annotations

import click

from pabal.cli.ignite_files import release, reservations, reserve
from pabal.cli.ignite_hooks import hooks
from pabal.cli.ignite_init import doctor, init
from pabal.cli.ignite_look import dlq, logs, replay, status, top
from pabal.cli.ignite_mail import beat, done, fail, inbox, read, send
from pabal.cli.ignite_session import root_option
from pabal.cli.ignite_talk import ask, reply, say, search, thread
from pabal.cli.ignite_tasks import coordinate, task, tasks
from pabal.cli.ignite_team import down, up, wake_test
from pabal.cli.ignite_watch import watch
from pabal.cli.session import help_if_alone, write_sections

_SECTIONS: dict[str, list[click.Command]] = {
    "Team": [init, hooks, up, down, doctor, wake_test],
    "Mail": [say, reply, ask, send, inbox, read, done, fail, beat],
    "History": [thread, search],
    "Files": [reserve, reservations, release],
    "Work": [tasks, task, coordinate, watch],
    "Inspection": [status, top, logs, dlq, replay],
}


class Sectioned(click.Group):
    """Lists its commands by section."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(formatter, _SECTIONS, 60)


@click.group("ignite", cls=Sectioned, invoke_without_command=True)
@root_option
@click.pass_context
def ignite(ctx: click.Context) -> None:
    """Serve a team of agents: mail that wakes them and is answered for."""
    help_if_alone(ctx)


for _commands in _SECTIONS.values():
    for _command in _commands:
        ignite.add_command(_command)
