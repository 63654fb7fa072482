"""`pabal ignite send | inbox | read`: mail goes out, comes in and is read."""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pabal.cli.exits import Exit
from pabal.cli.ignite_session import agent_argument, command, held_by, message_argument, opened
from pabal.cli.session import json_option
from pabal.cli.text import ago, clean, json_text, table
from pabal.cli.values import FOREVER, duration, pair, patience, priority, unique
from pabal.errors import InvalidInput, StoreError
from pabal.watch import ATTRIB, CLOSE_WRITE, MOVED_TO, PathWatch

if TYPE_CHECKING:
    from pabal.ignite.memory import Fact
    from pabal.ignite.workspace import Held, Workspace

_SLOW_LOOK = 1.0  # seconds


@command("send")
@click.option("--from", "sender", metavar="AGENT", help="Who sends it; IGNITE_AGENT by default, else user.")
@click.option("--to", multiple=True, required=True, metavar="AGENT", help="Who gets it; may be given several times.")
@click.option("--cc", multiple=True, metavar="AGENT", help="Who gets a copy; may be given several times.")
@click.option("--type", "type", required=True, metavar="TYPE", help="What kind of message it is.")
@click.option("--priority", type=priority, default="normal", metavar="LEVEL", help="critical, high, normal or low.")
@click.option("--thread-id", default="", metavar="ID", help="The conversation it belongs to.")
@click.option("--in-reply-to", default="", metavar="ID", help="The message that it answers.")
@click.option("--repo", "repository", default="", metavar="OWNER/NAME", help="The repository it is about.")
@click.option("--issue", default="", metavar="NUMBER", help="The issue it is about.")
@click.option("--header", "headers", type=pair, multiple=True, metavar="NAME=TEXT", help="A further header.")
@click.option("--id", default="", metavar="ID", help="Its id: sending it again with the same one is safe.")
@click.option("--delay", type=duration, default="0", metavar="TIME", help="Let it wait before it is given out.")
@click.option("--ttl", type=duration, default="0", metavar="TIME", help="Bury it if it was not given out by then.")
@click.option("--body", metavar="YAML", help="The body.")
@click.option("--body-file", metavar="PATH", help="Read the body from a file, or from stdin if it is -.")
@json_option
def send(
    sender: str | None,
    headers: tuple[tuple[str, str], ...],
    body: str | None,
    body_file: str | None,
    as_json: bool,
    **parts: Any,
) -> None:
    """Send a message to one agent or several.

    It is checked first: recipients must be in the team, the type known, the body whole. When the command ends, every
    recipient has it.

    \b
    Examples:
      pabal ignite send --to leader --type user_goal --body 'goal: fly'
      pabal ignite send --from leader --to strategist --cc architect \\
          --type user_goal --body-file goal.yaml --priority high
    """
    from pabal.codecs.mime import yaml_read
    from pabal.ignite import mail

    if (body is None) == (body_file is None):
        raise click.UsageError("give the body by --body or by --body-file")
    text = os.fsencode(body) if body is not None else _read(body_file or "-")
    with opened() as workspace:
        published = mail.send(
            workspace,
            sender=sender or os.environ.get("IGNITE_AGENT") or "user",
            body=yaml_read.read(text),
            headers=unique(headers, "--header"),
            **parts,
        )
    for each in published:
        told = {"id": each.id, "duplicate": each.duplicate}
        click.echo(json_text(told) if as_json else f"{each.id}{' (was there already)' * each.duplicate}")


@command("inbox")
@agent_argument
@click.option(
    "--wait", is_flag=False, flag_value="forever", type=patience, metavar="[TIME]", help="Wait for a message."
)
@json_option
@click.pass_context
def inbox(ctx: click.Context, agent: str, wait: float | None, as_json: bool) -> None:
    """Show what an agent has in hand, and what became of the last.

    Delivered, woken, read and done are four moments of each message. With --wait it returns as soon as the agent has
    one in hand, prints the path alone, and ends with 1 if none came.

    \b
    Examples:
      pabal ignite inbox leader
      path=$(pabal ignite inbox leader --wait)
    """
    with opened() as workspace:
        name = workspace.team.name_of(agent)
        if wait is not None:
            held = _await(workspace, name, wait)
            for each in held:
                click.echo(json_text(_document(each)) if as_json else clean(each.path))
            ctx.exit(Exit.DONE if held else Exit.NOTHING)
        held, facts = workspace.held(name), _facts(workspace, name)
        if as_json:
            for each in held:
                click.echo(json_text({**_document(each), "facts": _fact_of(each, facts)}))
            return
        for line in _lines(workspace, name, held, facts):
            click.echo(line)


@command("read")
@message_argument
@click.option("--body", "body_only", is_flag=True, help="Only the body.")
def read(message: str, body_only: bool) -> None:
    """Print a message in hand, and take note that it was read.

    It is a sign of life too. MESSAGE is an id, a file name or a path.

    \b
    Examples:
      pabal ignite read 1770263544.12345.abcdef
      pabal ignite read --body "$IGNITE_MESSAGE"
    """
    from pabal.codecs.mime.head import read_head
    from pabal.ignite.beats import beat
    from pabal.ignite.memory import Fact

    with opened() as workspace:
        held = held_by(workspace, message)
        data = Path(held.path).read_bytes()
        beat(workspace, held.receipt.queue)
        with suppress(StoreError):
            fact = Fact(held.receipt.queue, held.receipt.id, held.attempt, read_at=workspace.clock.now())
            workspace.memory.record([fact])
    click.echo(data[read_head(data).size :] if body_only else data, nl=False)


def _read(path: str) -> bytes:
    return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()


def _await(workspace: Workspace, agent: str, wait: float) -> list[Held]:
    from pabal.ignite.beats import beat
    from pabal.ignite.workspace import HOOKS

    end = time.monotonic() + wait
    hook = workspace.root / HOOKS / agent
    hook.touch(exist_ok=True)
    with closing(PathWatch({str(hook): ATTRIB | CLOSE_WRITE, workspace.processed(agent): MOVED_TO})) as watch:
        while True:
            beat(workspace, agent)
            if held := workspace.held(agent):
                return held
            left = end - time.monotonic()
            if left <= 0:
                return []
            watch.wait(min(left, _SLOW_LOOK) if wait != FOREVER else _SLOW_LOOK)


def _facts(workspace: Workspace, agent: str) -> list[Fact]:
    try:
        return workspace.memory.facts(agent, limit=20)
    except StoreError as exc:
        raise InvalidInput(f"{exc}; state/memory.db may be deleted, the team goes on") from exc


def _document(held: Held) -> dict[str, Any]:
    message = held.message
    return {
        "id": message.id,
        "path": held.path,
        "receipt": str(held.receipt),
        "type": message.type,
        "from": message.sender,
        "attempt": held.attempt,
    }


def _fact_of(held: Held, facts: list[Fact]) -> dict[str, Any] | None:
    found = next((fact for fact in facts if (fact.id, fact.attempt) == (held.message.id, held.attempt)), None)
    return found._asdict() if found is not None else None


def _lines(workspace: Workspace, agent: str, held: list[Held], facts: list[Fact]) -> list[str]:
    from pabal.ignite.health import load_of

    load = load_of(workspace, agent)
    lines = [f"{agent}: {load.ready} waiting, {load.delayed} to be tried again, {load.inflight} in hand"]
    lines += [f"  in hand: {clean(each.path)}" for each in held]
    if facts:
        head = ("type", "id", "try", "delivered", "woken", "read", "done", "outcome", "error")
        rows = [_row(fact) for fact in facts]
        lines += ["", *table(head, rows, right="  r")]
    return lines


def _row(fact: Fact) -> tuple[str, ...]:
    times = (fact.delivered_at, fact.woken_at, fact.read_at, fact.done_at)
    return (
        clean(fact.type),
        fact.id,
        str(fact.attempt),
        *("-" if at is None else ago(at) for at in times),
        fact.outcome,
        clean(fact.error),
    )
