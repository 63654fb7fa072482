"""`pabal ignite watch`: run the team's watchers by hand, and show their state."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pabal.cli.exits import Exit, unwinding_on_sigterm
from pabal.cli.ignite_session import command, opened
from pabal.cli.session import help_if_alone, json_option, own_argv
from pabal.cli.text import ago, clean, json_text, table
from pabal.queues.documents import instant

if TYPE_CHECKING:
    from collections.abc import Callable

    from pabal.apps.ignite.watchers.processes import WatcherProcesses
    from pabal.apps.ignite.watchers.settings import WatcherSettings
    from pabal.apps.ignite.workspace import Workspace
    from pabal.runtime.wake import FdWatch

name_argument = click.argument("name", metavar="WATCHER")


@click.group("watch", invoke_without_command=True)
@click.pass_context
def watch(ctx: click.Context) -> None:
    """Watch what happens outside and send it to the team.

    Watchers stand in the team file. `pabal ignite up` starts those with auto_start; these commands are for running one
    by hand, for cron, and to show their state.
    """
    help_if_alone(ctx)


@command("list")
@json_option
def list_watchers(as_json: bool) -> int:
    """Show the team's watchers and when each last looked.

    \b
    Example:
      pabal ignite watch list
    """
    with opened() as workspace:
        found = [_look(workspace, name) for name in workspace.team.watchers]
    if as_json:
        for each in found:
            click.echo(json_text(_document(each)))
    elif found:
        click.echo("\n".join(table(("WATCHER", "KIND", "RUNS", "EVERY", "TO", "LOOKED", ""), list(map(_row, found)))))
    return Exit.DONE if found else Exit.NOTHING


@command("once")
@name_argument
def once(name: str) -> None:
    """Look once and print how many messages were sent.

    \b
    Example:
      pabal ignite watch once github_watcher
    """
    from pabal.apps.ignite.watchers.publish import watch_loop, watcher_lock

    with opened() as workspace, watcher_lock(workspace, name):
        sent = watch_loop(workspace, name, folder=Path.cwd(), variables=os.environ).once()
    click.echo(f"{sent} sent")


@command("run")
@name_argument
def run(name: str) -> None:
    """Look again and again, until stopped.

    \b
    Example:
      pabal ignite watch run github_watcher
    """
    from pabal.apps.ignite.watchers.publish import watch_loop, watcher_lock
    from pabal.runtime.logs import log_lines

    with log_lines(name, form=logging.Formatter()), opened() as workspace, watcher_lock(workspace, name):
        with unwinding_on_sigterm():
            watch_loop(workspace, name, folder=Path.cwd(), variables=os.environ).run()


for _command in (list_watchers, once, run):
    watch.add_command(_command)


def watcher_processes(
    workspace: Workspace, fd_watch: FdWatch, *, names: Callable[[], list[str]], folder: Path
) -> WatcherProcesses:
    """Return the task that runs the named watchers beside the team."""
    from pabal.apps.ignite.watchers.processes import WatcherProcesses
    from pabal.apps.ignite.watchers.settings import allowed_variables
    from pabal.runtime.process import Command

    def commands() -> dict[str, Command]:
        return {
            name: Command(
                argv=own_argv("ignite", "watch", "run", "--root", str(workspace.root), name),
                cwd=folder.absolute(),
                env=allowed_variables(workspace.team, name, os.environ),
            )
            for name in names()
        }

    return WatcherProcesses(workspace, commands, watch=fd_watch)


class _Seen(NamedTuple):
    name: str
    settings: WatcherSettings
    pid: int | None
    since: float | None
    looked: float | None


def _look(workspace: Workspace, name: str) -> _Seen:
    from pabal.apps.ignite.watchers.publish import lock_path, state_file, state_path
    from pabal.apps.ignite.watchers.settings import read_settings
    from pabal.runtime.role_lock import holder

    path = state_path(workspace, name)
    known = state_file(path, 0.0).value if path.exists() else None
    pid = holder(lock_path(workspace, name))
    since, looked = (known.initialized_at, known.last_check) if known else (None, None)
    return _Seen(name, read_settings(workspace.team, name), pid, since, looked)


def _document(seen: _Seen) -> dict[str, Any]:
    settings = seen.settings
    return {
        "name": seen.name,
        "kind": settings.kind,
        "enabled": settings.enabled,
        "auto_start": settings.auto_start,
        "interval": settings.interval,
        "to": settings.to,
        "pid": seen.pid,
        "initialized_at": instant(seen.since),
        "last_check": instant(seen.looked),
        "description": settings.description or None,
    }


def _row(seen: _Seen) -> tuple[str, ...]:
    settings = seen.settings
    runs = f"pid {seen.pid}" if seen.pid else "no" if settings.enabled else "disabled"
    looked = ago(seen.looked) if seen.looked else "never"
    return seen.name, settings.kind, runs, f"{settings.interval:g}s", settings.to, looked, clean(settings.description)
