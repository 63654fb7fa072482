"""`pabal config`: look at a manager's configuration before it is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pabal.cli.exits import Exit
from pabal.cli.session import help_if_alone, json_option
from pabal.cli.text import clean, json_text
from pabal.errors import InvalidConfig
from pabal.policy import document_of

# The manager is imported when a command needs it: the others start faster without.
if TYPE_CHECKING:
    from pabal.manager.config import Config

config_option = click.option(
    "--config",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A pabal.toml or main_mq_configuration.json. By default the one in this folder, if any.",
)
root_option = click.option(
    "--root",
    "--data-root",
    "root",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where everything lies. By default paths.dataRoot of the configuration, else .pabal.",
)


@click.group("config", invoke_without_command=True)
@click.pass_context
def config(ctx: click.Context) -> None:
    """Check what a manager would work by."""
    help_if_alone(ctx)


@click.command("check")
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@root_option
@json_option
def check(file: Path | None, root: Path | None, as_json: bool) -> None:
    """Read a configuration and name every mistake in it.

    FILE is a pabal.toml or main_mq_configuration.json; without it the one in this folder is taken. If all is well,
    what the manager would work by is printed. Ends with 2 if there is a mistake.

    \b
    Examples:
      pabal config check
      pabal config check /etc/pabal/pabal.toml --json

    --json: source, nodeId, backend, root, mailbox, store, log, queues {name: policy}; with mistakes only those.
    """
    found = loaded(file, root, as_json=as_json)
    document = told(found)
    if as_json:
        click.echo(json_text(document))
        return
    for name, value in document.items():
        if name != "queues":
            click.echo(f"{name:<9}{clean(str(value))}")
    click.echo(f"queues   {', '.join(found.policies) or 'any'}")


config.add_command(check)


def loaded(path: Path | None, root: Path | None, *, as_json: bool = False, **changes: Any) -> Config:
    """Return the configuration of a command; print every mistake and end if there is one."""
    try:
        return read(path, root, **changes)
    except InvalidConfig as exc:
        if as_json:
            click.echo(json_text({"mistakes": list(exc.mistakes) or [str(exc)]}))
        elif exc.mistakes:
            count = len(exc.mistakes)
            click.echo(f"pabal: InvalidConfig: {count} mistake{'s' * (count > 1)} in {exc.place}", err=True)
            for mistake in exc.mistakes:
                click.echo(f"  {clean(mistake)}", err=True)
        else:
            raise
        raise click.exceptions.Exit(Exit.INVALID) from exc


def read(path: Path | None, root: Path | None, **changes: Any) -> Config:
    """Read the configuration that was named, or the one that lies here, or none."""
    from pabal.manager.config import find_config, read_config

    folder = Path.cwd()
    return read_config(find_config(folder) if path is None else path, folder=folder, root=root, **changes)


def told(found: Config) -> dict[str, Any]:
    """Return a configuration as `config check --json` prints it."""
    return {
        "source": found.source,
        "nodeId": found.node_id,
        "backend": found.backend,
        "root": str(found.root),
        "mailbox": str(found.ipc_root),
        "store": found.store_url,
        "log": str(found.log_root) if found.log_root else "stderr",
        "queues": {name: document_of(policy) for name, policy in found.policies.items()},
    }
