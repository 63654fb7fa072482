"""`pabal kingdom`: make, start and stop a kingdom, install generals; and the group of all its commands."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pabal.cli.exits import Exit, NotFound
from pabal.cli.kingdom_look import answer, doctor, events, logs, questions, status, tasks
from pabal.cli.kingdom_service import install_service, top
from pabal.cli.kingdom_session import command, current_home, home_option, opened
from pabal.cli.kingdom_work import (
    cancel,
    check,
    dismiss,
    generals,
    messages,
    move_queues,
    requeue,
    retry,
    routes,
    run_soldier,
    show,
    submit,
)
from pabal.cli.session import help_if_alone, own_argv

if TYPE_CHECKING:
    from collections.abc import Callable

    from pabal.runtime.supervisor import ChildState


@command("install-general")
@click.argument("path", metavar="PATH", type=click.Path(exists=True, path_type=Path))
@click.option("--force", is_flag=True, help="Put it in the place of one of the same name.")
def install_general(path: Path, force: bool) -> None:
    """Install a general.

    PATH is a folder with a manifest.yaml, or a manifest. Refused if its name is taken or if another general claims one
    of the types it subscribes to. A kingdom that is up starts it within seconds.

    \b
    Examples:
      pabal kingdom install-general generals/gen-pr
      pabal kingdom install-general --force gen-pr.yaml
    """
    from pabal.apps.kingdom.manifests import install
    from pabal.apps.kingdom.preflight import check_general

    with opened() as home:
        manifest = install(home, path, force=force)
        wrong = [each for each in check_general(home, manifest) if each.problem]
    for each in wrong:
        click.echo(f"pabal: {each.what}: {each.problem}; {each.advice}", err=True)
    types, times = ", ".join(manifest.subscribes) or "no events", len(manifest.schedules)
    click.echo(f"{manifest.name}: {types}; {times} {'schedule' if times == 1 else 'schedules'}")


@command("remove-general")
@click.argument("name", metavar="NAME")
def remove_general(name: str) -> None:
    """Remove a general that has no tasks left.

    \b
    Example:
      pabal kingdom remove-general gen-pr
    """
    from pabal.apps.kingdom.manifests import remove

    with opened() as home:
        remove(home, name)
    click.echo(f"{name} removed")


@command("run-schedule")
@click.argument("name", metavar="NAME")
def run_schedule(name: str) -> None:
    """Make the task of a schedule now.

    Whatever the time and the gate. NAME is that of the schedule, or general and schedule as in gen-test:daily-test.

    \b
    Example:
      pabal kingdom run-schedule daily-test
    """
    from pabal.apps.kingdom.king.schedules import find, key_of, send
    from pabal.apps.kingdom.manifests import FOLDER, Table, load
    from pabal.ids import new_token

    with opened() as home:
        manifest, schedule = find(Table(load(home.root / FOLDER)), name)
        click.echo(send(home, manifest, schedule, f"{key_of(manifest, schedule)}!{new_token()}"))


_MADE = """\
kingdom   {root}
queues    {queues}

Next:
  pabal kingdom install-general PATH    a folder with a manifest.yaml
  pabal kingdom up                      run it in this terminal
"""


_MADE_EXAMPLE = """\
kingdom   {root}
queues    {queues}
general   gen-hello, which takes events of the types hello.*

Next, with --home {root}:
  pabal kingdom up                                          run it in this terminal
  echo '{{"type": "hello.world"}}' | pabal kingdom submit -    in another one
  pabal kingdom tasks --completed
  echo '{{"type": "hello.stranger"}}' | pabal kingdom submit - it asks: pabal kingdom questions, then answer
"""


@click.group("kingdom", invoke_without_command=True)
@home_option
@click.pass_context
def kingdom(ctx: click.Context) -> None:
    """Events in, work out, humans in the loop."""
    help_if_alone(ctx)


@command("init")
@click.option("--queues", default="", metavar="URL", help="A store URL such as sqlite:state/kingdom.db; else files.")
@click.option("--example", is_flag=True, help="Also install a sample general that works at once.")
def init(queues: str, example: bool) -> None:
    """Make a kingdom, or complete one.

    What is there stays as it is.

    \b
    Examples:
      pabal kingdom init --home /srv/kingdom
      pabal kingdom init --queues sqlite:state/kingdom.db
      pabal kingdom init --example
    """
    from pabal.apps.kingdom.home import Home
    from pabal.apps.kingdom.queue_place import require_place
    from pabal.apps.kingdom.sample import install_sample
    from pabal.names import shown_url

    with Home.make(current_home(), queues=queues) as home:
        require_place(home)
        if example:
            install_sample(home)
        made = _MADE_EXAMPLE if example else _MADE
        place = shown_url(home.config.queues) if home.config.queues else "files in queue/ and state/results"
        click.echo(made.format(root=home.root, queues=place))


@command("up")
def up() -> None:
    """Run every role and every general until Ctrl-C or SIGTERM.

    A role that ends is started again, generals come and go with their manifests. The work of a role is
    finished or given back when the kingdom goes down. The roles write to logs/system.log.

    \b
    Examples:
      pabal kingdom up
      pabal kingdom up --home /srv/kingdom
    """
    from pabal.apps.kingdom.queue_place import require_place
    from pabal.apps.kingdom.supervision import run_kingdom

    with opened() as home:
        home.prepare()
        require_place(home)
        root = str(home.root)
        click.echo(f"kingdom   {root}, pid {os.getpid()}\nlog       {root}/logs/system.log\nCtrl-C lets it down.")
        log = f"{root}/logs/system.log"
        run_kingdom(home, lambda role: own_argv("kingdom", "role", role, "--home", root), _print_ends(log))
    click.echo("down; everything is on disk")


def _print_ends(log: str) -> Callable[[list[ChildState]], None]:
    """Return a function that prints a line the first time that a role ends."""
    printed: set[str] = set()

    def passed(states: list[ChildState]) -> None:
        for state in states:
            if state.restarts and state.name not in printed:
                printed.add(state.name)
                click.echo(f"{state.name} ended with {state.status} and is started again; why: {log}", err=True)

    return passed


@command("down")
@click.option("--timeout", type=float, default=60.0, metavar="SECONDS", help="Wait no longer than this; 60 by default.")
def down(timeout: float) -> None:
    """Let a kingdom down that runs elsewhere.

    Waits for its end.

    \b
    Example:
      pabal kingdom down --home /srv/kingdom
    """
    from pabal.apps.kingdom.supervision import holder_of

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
    from pabal.apps.kingdom.roles import run_role

    with opened() as home:
        run_role(home, name)


_LIFE = (init, up, down, role, install_service, move_queues)
_STATE = (status, top, check, events, tasks, show, messages, questions, answer, doctor, logs)
_WORK = (submit, retry, cancel, requeue, dismiss)
_GENERALS = (generals, routes, install_general, remove_general, run_schedule, run_soldier)
for _command in (*_LIFE, *_STATE, *_WORK, *_GENERALS):
    kingdom.add_command(_command)
