"""Which workspace a command of `pabal ignite` works on, and what its commands share.

`--root` is taken before or after the command's name; the later one counts, then IGNITE_ROOT, then `.ignite`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pabal.cli.anywhere import command_with, option_anywhere

if TYPE_CHECKING:
    from pabal.ignite.workspace import Held, Workspace

DEFAULT_ROOT = ".ignite"
_ROOT = "pabal.ignite.root"

root_option = option_anywhere(
    _ROOT,
    "--root",
    metavar="DIR",
    help=f"The workspace. Else IGNITE_ROOT, else {DEFAULT_ROOT}.",
)


command = command_with(root_option)


def current_root() -> Path:
    """Return the workspace that is meant."""
    return Path(click.get_current_context().meta.get(_ROOT) or os.environ.get("IGNITE_ROOT") or DEFAULT_ROOT)


def opened() -> Workspace:
    """Open the workspace of this command, which must be there."""
    from pabal.ignite.workspace import Workspace

    return Workspace.open(current_root())


def _own_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    found = value or os.environ.get("IGNITE_AGENT", "")
    if not found:
        raise click.UsageError("say which AGENT, or set IGNITE_AGENT")
    return found


agent_argument = click.argument("agent", metavar="[AGENT]", required=False, callback=_own_name)
some_agent_argument = click.argument("agent", metavar="[AGENT]", required=False)


def _own_message(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    found = value or os.environ.get("IGNITE_MESSAGE_ID", "")
    if not found:
        raise click.UsageError("say which message: its id, file name or path; or set IGNITE_MESSAGE_ID")
    return found


message_argument = click.argument("message", metavar="[MESSAGE]", required=False, callback=_own_message)


def held_by(workspace: Workspace, message: str) -> Held:
    """Return a message that an agent has in hand; in a command that was run for it, that very one."""
    own = os.environ.get("IGNITE_MESSAGE_ID", "") == message
    return workspace.find_held(message, receipt=os.environ.get("IGNITE_RECEIPT", "") if own else "")
