"""`pabal ignite hooks install | remove`: the hooks of Claude Code and Codex; and the answer to a hook."""

from __future__ import annotations

import difflib
import json
import os
import shlex
import shutil
import sys
from pathlib import Path

import click

from pabal.cli.ignite_session import command, current_root, named_root
from pabal.cli.session import help_if_alone
from pabal.cli.text import clean, short_path
from pabal.cli.values import duration
from pabal.errors import InvalidConfig

_CLIENTS = ("claude", "codex")
_client = click.argument("client", type=click.Choice(_CLIENTS))
_yes = click.option("--yes", is_flag=True, help="Write without asking.")
_scope = (
    click.option("--shared", "scope", flag_value="shared", help="In the settings that the project shares (claude)."),
    click.option("--user", "scope", flag_value="user", help="In your own settings, for all projects."),
)


@click.group("hooks", invoke_without_command=True)
@click.pass_context
def hooks(ctx: click.Context) -> None:
    """Let sessions of Claude Code and Codex hear of their mail.

    With the hooks a session shows its mail when a prompt is submitted and when a turn ends, and each tool call is a
    sign of life. An agent with wake: claude-hook is also woken while it is idle. The agent of a session is
    IGNITE_AGENT, or that of its tmux pane; the hooks do nothing in any other session.
    """
    help_if_alone(ctx)


@command("install")
@_client
@_scope[0]
@_scope[1]
@click.option("--wait", type=duration, default="0", metavar="TIME", help="codex: let a turn end this much later.")
@_yes
def install(client: str, scope: str | None, wait: float, yes: bool) -> None:
    """Write the hooks into the settings of a client.

    They are shown before they are written. Our hooks that are there already are replaced, all others stay.

    \b
    Examples:
      pabal ignite hooks install claude
      pabal ignite hooks install codex --wait 10m --yes
    """
    from pabal.apps.ignite.hook_settings import wanted_hooks

    if wait and client != "codex":
        raise click.UsageError("--wait is for codex: a session of Claude Code waits in the background")
    root = os.path.abspath(named_root()) if named_root() else ""  # else it is found from the folder of the session
    _change(client, scope or "local", wanted_hooks(client, _program(), root=root, wait=wait), yes=yes)
    if client == "codex":
        click.echo("Codex runs new hooks after you trusted them: `/hooks` in a session.")


@command("remove")
@_client
@_scope[0]
@_scope[1]
@_yes
def remove(client: str, scope: str | None, yes: bool) -> None:
    """Remove our hooks from the settings of a client.

    \b
    Example:
      pabal ignite hooks remove claude
    """
    _change(client, scope or "local", {}, yes=yes)


for _each in (install, remove):
    hooks.add_command(_each)


def _program() -> str:
    """Return how a hook runs pabal."""
    beside = Path(sys.executable).with_name("pabal")
    found = "pabal" if shutil.which("pabal") else str(beside) if beside.exists() else ""
    if not found:
        raise InvalidConfig("pabal is not in PATH, so a hook could not run it")
    return shlex.quote(found)


def _change(client: str, scope: str, wanted: dict[str, list[dict[str, object]]], *, yes: bool) -> None:
    from pabal.apps.ignite.hook_settings import changed_settings, places, read_settings, settings_text, write_settings

    found = places(client, Path(os.path.abspath(current_root())).parent, os.environ)
    if scope not in found:
        raise click.UsageError(f"{client} has no settings of this kind; there are {', '.join(found)}")
    place = found[scope]
    name = str(short_path(place.path))
    before = read_settings(place.path)
    after = changed_settings(before, wanted)
    if after == before:
        click.echo(f"{name} is as it should be already")
        return
    old, new = settings_text(before), settings_text(after)
    for line in difflib.unified_diff(old.splitlines(), new.splitlines(), name, name, lineterm="", n=2):
        click.echo(clean(line))
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("nothing was written: give --yes, or run it on a terminal")
        click.confirm(f"Write {name}, for {place.whose}?", default=True, abort=True)
    if read_settings(place.path) != before:  # its client writes it too, for example when a tool is allowed
        raise InvalidConfig(f"{name} was changed meanwhile; nothing was written: run the command again")
    write_settings(place.path, new)
    click.echo(f"wrote {name}" if new else f"removed {name}, nothing else was in it")


def answer_hook(agent: str, *, wait: float, rewake: bool) -> int:
    """Answer a hook of a client, whose document is on stdin; do nothing in a session that is none of an agent."""
    from pabal.apps.ignite import hooks as ignite_hooks
    from pabal.apps.ignite.workspace import Workspace
    from pabal.errors import PabalError

    try:
        document = json.loads(sys.stdin.buffer.read() or b"{}")
        event = str(document.get("hook_event_name", "")) if isinstance(document, dict) else ""
    except (ValueError, RecursionError):
        event = ""
    if not agent:
        return 0
    try:
        with Workspace.open(current_root(), warn=lambda text: None) as workspace:
            name = workspace.team.name_of(agent)
            found = (
                ignite_hooks.rewake(workspace, name)
                if rewake
                else ignite_hooks.answer(workspace, name, event, wait=wait)
            )
    except (PabalError, OSError) as exc:
        click.echo(f"pabal: {clean(str(exc))}", err=True)
        return 1  # shown to the person, and the session goes on
    if found.document is not None:
        click.echo(json.dumps(found.document, ensure_ascii=False))
    if found.text:
        click.echo(found.text, err=True)
    return found.status
