"""The `pabal` command: the group of all commands, and its entry point."""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.shell_completion import get_completion_class

from pabal.cli.backup import backup, restore
from pabal.cli.bridge import bridge
from pabal.cli.chat import chat
from pabal.cli.consume import CONSUME_VERBS
from pabal.cli.dlq import DLQ_VERBS
from pabal.cli.exits import Reported
from pabal.cli.gateway import gateway, gateway_keys
from pabal.cli.ignite import ignite
from pabal.cli.kingdom import kingdom
from pabal.cli.manager import config, install_service, up
from pabal.cli.mcp import mcp
from pabal.cli.metrics import check, metrics
from pabal.cli.mime import mime
from pabal.cli.mq import mq
from pabal.cli.needs_you import needs_you
from pabal.cli.policy import policy
from pabal.cli.publish import PUBLISH_VERBS
from pabal.cli.queues import PAUSE_VERBS, QUEUE_VERBS
from pabal.cli.schedule import schedule
from pabal.cli.session import help_if_alone, url_option, write_sections
from pabal.cli.stores import compact, doctor, move
from pabal.cli.tail import tail
from pabal.cli.takeover import takeover
from pabal.cli.top import top
from pabal.cli.topic import topic
from pabal.cli.verbs import Verb
from pabal.cli.work import work

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


def _forms(*tables: Iterable[Verb]) -> list[click.Command]:
    """Return the form that each verb has outside of `pabal mq`."""
    return [verb.pabal for table in tables for verb in table if verb.pabal is not None]


_SECTIONS: dict[str, list[click.Command]] = {
    "Messages": [*_forms(PUBLISH_VERBS, CONSUME_VERBS), work, schedule],
    "Inspection": [*_forms(QUEUE_VERBS), top, tail, metrics, check],
    "Topics": [topic, bridge],
    "Dead letters": _forms(DLQ_VERBS),
    "Maintenance": [policy, *_forms(PAUSE_VERBS), move, doctor, backup, restore, compact, takeover],
    "Manager": [up, mq, config, install_service],
    "Agents": [needs_you, ignite, kingdom, mcp, mime],
    "HTTP": [gateway, gateway_keys],
    "Chat": [chat],
    "More": [completion],
}


class Sectioned(Reported):
    """Lists its commands by section."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [command.name or "" for commands in _SECTIONS.values() for command in commands]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(formatter, _SECTIONS, 66)


@click.group(
    "pabal", cls=Sectioned, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="pabal", message="pabal %(version)s")
@url_option(envvar="PABAL_URL")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Durable queues in a file: publish, consume, and nothing is lost.

    \b
    Examples:
      pabal publish jobs '{"hello": "world"}'
      pabal consume jobs
      pabal ack RECEIPT

    Exit codes: 0 done, 1 nothing there, 2 invalid input, 3 unknown queue, message or store, 4 lease lost, 5 full,
    6 store failed, 7 extra not installed.
    """
    help_if_alone(ctx)


for _commands in _SECTIONS.values():
    for _command in _commands:
        cli.add_command(_command)


def main() -> None:
    cli(prog_name="pabal")
