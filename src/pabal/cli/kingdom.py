"""`pabal kingdom`: make a kingdom, hold it up, let it down; and the group of all its commands."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import click

from pabal.cli.exits import Exit, NotFound
from pabal.cli.kingdom_doctor import doctor, logs
from pabal.cli.kingdom_generals import install_general, remove_general, run_schedule
from pabal.cli.kingdom_look import events, status, tasks
from pabal.cli.kingdom_people import answer, questions
from pabal.cli.kingdom_session import command, current_home, home_option, opened
from pabal.cli.session import help_if_alone

if TYPE_CHECKING:
    from pabal.runtime.supervisor import ChildState

_PROGRAM = "from pabal.cli.main import main; main()"
_MADE = """\
kingdom   {root}
queues    {queues}

Next:
  pabal kingdom install-general PATH    a folder with a manifest.yaml
  pabal kingdom up                      run it in this terminal
"""


@click.group("kingdom", invoke_without_command=True)
@home_option
@click.pass_context
def kingdom(ctx: click.Context) -> None:
    """Events in, work out, humans in the loop."""
    help_if_alone(ctx)


@command("init")
@click.option("--queues", default="", metavar="URL", help="A store URL such as sqlite:state/kingdom.db; else files.")
def init(queues: str) -> None:
    """Make a kingdom, or complete one.

    What is there stays as it is.

    \b
    Examples:
      pabal kingdom init --home /srv/kingdom
      pabal kingdom init --queues sqlite:state/kingdom.db
    """
    from pabal.kingdom.home import Home

    with Home.make(current_home(), queues=queues) as home:
        click.echo(_MADE.format(root=home.root, queues=home.config.queues or "files in queue/ and state/results"))


@command("up")
def up() -> None:
    """Run every role and every general until Ctrl-C or SIGTERM.

    A role that ends is started again, generals come and go with their manifests. What a role has in hand when the
    kingdom goes down is finished or given back. The roles write to logs/system.log.

    \b
    Examples:
      pabal kingdom up
      pabal kingdom up --home /srv/kingdom
    """
    from pabal.kingdom.supervision import reign

    with opened() as home:
        home.prepare()
        root = str(home.root)
        click.echo(f"kingdom   {root}, pid {os.getpid()}\nlog       {root}/logs/system.log\nCtrl-C lets it down.")
        argv = (sys.executable, "-c", _PROGRAM, "kingdom", "role")
        reign(home, lambda role: (*argv, role, "--home", root), _Ended(f"{root}/logs/system.log").tell)
    click.echo("down; everything is on disk")


class _Ended:
    """Tells on the terminal of each role that ends, the first time."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._told: set[str] = set()

    def tell(self, states: list[ChildState]) -> None:
        for state in states:
            if state.restarts and state.name not in self._told:
                self._told.add(state.name)
                click.echo(f"{state.name} ended with {state.status} and is started again; why: {self._log}", err=True)


@command("down")
@click.option("--timeout", type=float, default=60.0, metavar="SECONDS", help="Wait no longer than this; 60 by default.")
def down(timeout: float) -> None:
    """Let a kingdom down that runs elsewhere.

    Waits for its end.

    \b
    Example:
      pabal kingdom down --home /srv/kingdom
    """
    from pabal.kingdom.supervision import holder_of

    root = current_home()
    pid = holder_of(root)
    if pid is None:
        raise NotFound(f"no kingdom is up at {root}")
    os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + timeout
    while holder_of(root) == pid:
        if time.monotonic() > end:
            click.echo(f"pabal: process {pid} has not ended in {timeout:g} seconds", err=True)
            raise SystemExit(Exit.STORE)
        time.sleep(0.05)
    click.echo("down")


@command("role")
@click.argument("name", metavar="NAME")
def role(name: str) -> None:
    """Be one role in this terminal.

    NAME is king, sentinel, envoy, chamberlain or gen-…. `pabal kingdom up` starts each role so. One
    process may be a role at a time.

    \b
    Examples:
      pabal kingdom role king
      pabal kingdom role gen-pr --home /srv/kingdom
    """
    from pabal.kingdom.roles import run_role

    with opened() as home:
        run_role(home, name)


def add(group: click.Group, commands: list[click.Command]) -> None:
    for each in commands:
        group.add_command(each)


add(
    kingdom,
    [
        init,
        up,
        down,
        status,
        doctor,
        events,
        tasks,
        questions,
        answer,
        install_general,
        remove_general,
        run_schedule,
        logs,
        role,
    ],
)
