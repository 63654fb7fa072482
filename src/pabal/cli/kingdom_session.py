"""Which kingdom a command of `pabal kingdom` works on, and the option that its commands share.

`--home` is taken before or after the command's name; the later one counts, then KINGDOM_BASE_DIR, then this folder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pabal.cli.session import command_with, option_anywhere

if TYPE_CHECKING:
    from pabal.apps.kingdom.home import Home

_HOME = "pabal.kingdom.home"
_FILE = "config/environment"

home_option = option_anywhere(
    _HOME,
    "--home",
    metavar="DIR",
    help="The kingdom. Else KINGDOM_BASE_DIR, else this folder.",
)


command = command_with(home_option)


def current_home() -> Path:
    """Return the folder of the kingdom."""
    return Path(click.get_current_context().meta.get(_HOME) or os.environ.get("KINGDOM_BASE_DIR") or ".")


def variables_of(root: Path) -> dict[str, str]:
    """Return the variables of a kingdom: those of the process, and those of `config/environment` that it does not have.

    Such a file is one for systemd (EnvironmentFile): NAME=value on each line, perhaps in quotes, and comments.
    """
    from pabal.filesystem import read_plain

    try:
        text = read_plain(root / _FILE).decode(errors="replace")
    except OSError:
        return dict(os.environ)
    found = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith(("#", ";")):
            value = value.strip()
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
            found[name.strip()] = value[1:-1] if quoted else value
    return {**found, **os.environ}


def opened() -> Home:
    """Open the kingdom of this command, which must exist."""
    from pabal.apps.kingdom.home import Home

    root = current_home()
    return Home.open(root, variables=variables_of(root))
