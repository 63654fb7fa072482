"""`pabal completion`: the script that lets a shell complete commands, options and queue names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Examples:
      eval "$(pabal completion bash)"       in ~/.bashrc
      eval "$(pabal completion zsh)"        in ~/.zshrc
      pabal completion fish > ~/.config/fish/completions/pabal.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "pabal", "_PABAL_COMPLETE").source())
