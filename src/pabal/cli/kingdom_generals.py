"""`pabal kingdom install-general`, `remove-general` and `run-schedule`."""

from __future__ import annotations

from pathlib import Path

import click

from pabal.cli.kingdom_session import command, opened


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
    from pabal.kingdom.installing import install

    with opened() as home:
        manifest = install(home, path, force=force)
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
    from pabal.kingdom.installing import remove

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
    from pabal.ids import new_token
    from pabal.kingdom.king.schedules import find, key_of, send
    from pabal.kingdom.manifests import FOLDER, load
    from pabal.kingdom.routing import Table

    with opened() as home:
        manifest, schedule = find(Table(load(home.root / FOLDER)), name)
        click.echo(send(home, manifest, schedule, f"{key_of(manifest, schedule)}!{new_token()}"))
