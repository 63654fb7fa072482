"""Options that may stand before or after the name of a command, and commands that take them: the later one counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def option_anywhere(key: str, *names: str, **more: Any) -> Callable[[F], F]:
    """Make an option whose value is kept under `key`, for this command and those below it."""

    def remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value is not None:
            ctx.meta[key] = value

    return click.option(*names, expose_value=False, callback=remember, **more)


def command_with(option: Callable[[F], F]) -> Callable[[str], Callable[[F], click.Command]]:
    """Return what makes a command that takes this option."""

    def command(name: str) -> Callable[[F], click.Command]:
        def make(function: F) -> click.Command:
            made: click.Command = click.command(name)(option(function))
            return made

        return make

    return command
