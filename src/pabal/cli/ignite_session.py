"""Which workspace a command of `pabal ignite` works on, and the options that its commands share.

`--root` is taken before or after the command's name; the later one counts, then the path of a message that is given,
then IGNITE_ROOT, then `.ignite` in the current folder or one above it, also from a git worktree.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pabal.cli.session import command_with, option_anywhere

if TYPE_CHECKING:
    from pabal.apps.ignite.workspace import Held, Workspace

DEFAULT_ROOT = ".ignite"
_ROOT = "pabal.ignite.root"

root_option = option_anywhere(
    _ROOT,
    "--root",
    metavar="DIR",
    help=f"The workspace. Else IGNITE_ROOT, else {DEFAULT_ROOT} here or above.",
)


command = command_with(root_option)


def named_root() -> str:
    """Return the workspace that an option or a variable names; empty if none does."""
    return click.get_current_context().meta.get(_ROOT) or os.environ.get("IGNITE_ROOT") or ""


def current_root(message: str = "") -> Path:
    """Return the folder of the workspace; `message` may be the path of a message in it."""
    from pabal.apps.ignite.workspace import find_root, root_of

    by_option = click.get_current_context().meta.get(_ROOT)
    if "/" in message and not by_option and (found := root_of(message)):
        return found
    if named := named_root():
        return Path(named)
    found = find_root(Path.cwd())
    # As it is usually written, if it is here.
    return Path(DEFAULT_ROOT) if found is None or found.parent == Path.cwd() else found


def opened(message: str = "") -> Workspace:
    """Open the workspace of this command, which must exist. A mistake in its team file is a warning."""
    from pabal.apps.ignite.team import FILE
    from pabal.apps.ignite.workspace import Workspace, is_made
    from pabal.errors import StoreMissing

    root = current_root(message)
    if (root / FILE).is_file() and not is_made(root):  # as in a new clone: nothing is made by looking
        raise StoreMissing(f"{root} has a team file only: `pabal ignite init` makes the queues of its agents")
    return Workspace.open(root, warn=lambda text: click.echo(f"warning: {text}", err=True))


def own_name() -> str:
    """Return the agent that runs this command: IGNITE_AGENT, or that of its tmux pane; empty if it is none."""
    named = os.environ.get("IGNITE_AGENT", "")
    if named or not os.environ.get("TMUX_PANE"):
        return named
    from pabal.apps.ignite.team import FILE, read_team
    from pabal.apps.ignite.wakes.tmux import agent_of_pane
    from pabal.errors import PabalError

    root = Path(os.path.abspath(current_root()))
    try:
        return agent_of_pane(root, read_team(root / FILE).agents, os.environ)
    except PabalError:
        return ""


def _own_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    found = value or own_name()
    if not found:
        raise click.UsageError("give the AGENT, or set IGNITE_AGENT")
    return found


agent_argument = click.argument("agent", metavar="[AGENT]", required=False, callback=_own_name)
some_agent_argument = click.argument("agent", metavar="[AGENT]", required=False)


def _own_message(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    found = value or os.environ.get("IGNITE_MESSAGE_ID", "")
    if not found:
        raise click.UsageError("give the message: its id, file name or path; or set IGNITE_MESSAGE_ID")
    return found


message_argument = click.argument("message", metavar="[MESSAGE]", required=False, callback=_own_message)


def held_by(workspace: Workspace, message: str) -> Held:
    """Return a message that an agent holds; in a command that was run for this message, by its receipt."""
    mine = os.environ.get("IGNITE_MESSAGE_ID", "") == message
    return workspace.find_held(message, receipt=os.environ.get("IGNITE_RECEIPT", "") if mine else "", own=own_name())
