"""`pabal mcp`: the tools of queues, or of an agent's mail, for clients of the Model Context Protocol."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from pabal.cli.session import command, current_url, json_option
from pabal.cli.text import json_text, table
from pabal.cli.values import lasting
from pabal.errors import ExtraMissing

if TYPE_CHECKING:
    from pabal.mcp.desk import Desk


@command("mcp")
@click.option(
    "--workspace",
    type=click.Path(path_type=Path),
    envvar="IGNITE_ROOT",
    metavar="DIR",
    help="Serve the mail of an agent of this team. Else IGNITE_ROOT.",
)
@click.option("--agent", envvar="IGNITE_AGENT", metavar="NAME", help="Who the agent is. Else IGNITE_AGENT.")
@click.option(
    "--human-queue", default="human", show_default=True, metavar="QUEUE", help="With --url: where questions go."
)
@click.option(
    "--hold",
    type=lasting,
    default="30m",
    show_default=True,
    metavar="TIME",
    help="With --url: renew leases so long after the agent's last call.",
)
@click.option("--cost", is_flag=True, help="Print what the tools cost an agent, in tokens, and end.")
@json_option
@click.pass_context
def mcp(
    ctx: click.Context,
    workspace: Path | None,
    agent: str | None,
    human_queue: str,
    hold: float,
    cost: bool,
    as_json: bool,
) -> None:
    """Serve an agent over MCP, on stdin and stdout.

    The tools are send, receive, ack, fail, extend, look, ask_human and status. They work on the queues of a store
    (--url, PABAL_URL), or on the mail of an agent (--workspace and --agent, or IGNITE_ROOT and IGNITE_AGENT). Your
    client starts this command; it ends when the client closes stdin, and gives back what its agent holds of queues.
    Mail stays in the hand of its agent. The log goes to stderr.

    \b
    Examples:
      claude mcp add pabal -- pabal mcp --url sqlite:///home/me/jobs.db
      codex mcp add mail -- pabal mcp --workspace /app/.ignite --agent ann
      pabal mcp --cost
    """
    if cost:
        _show_cost(as_json)
        return
    desk = _desk(ctx, workspace, agent or "", human_queue, hold)
    try:
        from pabal.mcp.stdio import serve_stdio
    except ImportError as exc:
        raise ExtraMissing(f"pabal mcp needs {exc.name}: install Pabal with its extra 'mcp' (README, Extras)") from exc
    from pabal.runtime.logs import log_lines

    if sys.stdin.isatty():
        click.echo("waiting for a client of MCP on stdin; clients start this command themselves, see --help", err=True)
    with log_lines(agent or "mcp"):
        serve_stdio(desk)


def _desk(ctx: click.Context, workspace: Path | None, agent: str, human_queue: str, hold: float) -> Desk:
    """Return the desk that the options or the environment name; the options count first."""
    urls = [each.get_parameter_source("url") for each in (ctx, ctx.find_root())]
    named_url = ParameterSource.COMMANDLINE in urls
    named_workspace = ctx.get_parameter_source("workspace") is ParameterSource.COMMANDLINE
    if named_url and named_workspace:
        raise click.UsageError("--url and --workspace exclude each other")
    if workspace is not None and not named_url:
        from pabal.mcp.mail_desk import MailDesk

        if not agent:
            raise click.UsageError("a workspace has several agents: give --agent NAME, or set IGNITE_AGENT")
        return MailDesk(workspace, agent)
    if not named_url and ParameterSource.ENVIRONMENT not in urls:
        raise click.UsageError(
            "give --url URL or PABAL_URL for queues, or --workspace DIR and --agent NAME for mail;"
            " clients start this command in any folder, so that none is assumed"
        )
    from pabal.mcp.queue_desk import QueueDesk

    return QueueDesk(current_url(), agent=agent, human_queue=human_queue, hold=hold)


def _show_cost(as_json: bool) -> None:
    from pabal.mcp.tools import MAIL_TOOLS, MOST_TOKENS, QUEUE_TOOLS, cost

    found = {"queues": cost(QUEUE_TOOLS), "mail": cost(MAIL_TOOLS)}
    totals = {name: sum(tools.values()) for name, tools in found.items()}
    if as_json:
        click.echo(json_text({name: {"tools": tools, "total": totals[name]} for name, tools in found.items()}))
        return
    rows = [(name, *(str(tools[name]) for tools in found.values())) for name in found["queues"]]
    total = ("all", *(str(count) for count in totals.values()))
    click.echo("\n".join(table(("tool", *found), [*rows, total], right=" rr")))
    click.echo(f"tokens of each definition, counted rather too high; at most {MOST_TOKENS} together")
