"""Which kingdom a command works on, and what the commands of `pabal kingdom` share.

`--home` is taken before or after the command's name; the later one counts, then KINGDOM_BASE_DIR, then this folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pabal.kingdom.home import Home

_HOME = "pabal.kingdom.home"

F = TypeVar("F", bound=Callable[..., Any])


def _remember(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[_HOME] = value


home_option = click.option(
    "--home",
    metavar="DIR",
    expose_value=False,
    callback=_remember,
    help="The kingdom. Else KINGDOM_BASE_DIR, else this folder.",
)


def command(name: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command that takes `--home`."""

    def make(function: Callable[..., Any]) -> click.Command:
        made: click.Command = click.command(name)(home_option(function))
        return made

    return make


def current_home() -> Path:
    """Return the folder that is meant."""
    return Path(click.get_current_context().meta.get(_HOME) or os.environ.get("KINGDOM_BASE_DIR") or ".")


def opened() -> Home:
    """Open the kingdom of this command, which must be there."""
    from pabal.kingdom.home import Home

    return Home.open(current_home(), variables=dict(os.environ))
