"""Which kingdom a command works on, and what the commands of `pabal kingdom` share.

`--home` is taken before or after the command's name; the later one counts, then KINGDOM_BASE_DIR, then this folder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pabal.cli.anywhere import command_with, option_anywhere

if TYPE_CHECKING:
    from pabal.kingdom.home import Home

_HOME = "pabal.kingdom.home"

home_option = option_anywhere(
    _HOME,
    "--home",
    metavar="DIR",
    help="The kingdom. Else KINGDOM_BASE_DIR, else this folder.",
)


command = command_with(home_option)


def current_home() -> Path:
    """Return the folder that is meant."""
    return Path(click.get_current_context().meta.get(_HOME) or os.environ.get("KINGDOM_BASE_DIR") or ".")


def opened() -> Home:
    """Open the kingdom of this command, which must be there."""
    from pabal.kingdom.home import Home

    return Home.open(current_home(), variables=dict(os.environ))
