"""`pabal ignite done | fail | beat`: what an agent says of the message it has in hand."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pabal.cli.ignite_session import agent_argument, command, held_by, message_argument, opened
from pabal.cli.values import duration
from pabal.errors import InvalidInput, StoreError
from pabal.store import Draft, FailureCode

if TYPE_CHECKING:
    from pabal.ignite.workspace import Held, Workspace


@command("done")
@message_argument
@click.option(
    "--then", "answers", multiple=True, type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="Send this."
)
def done(message: str, answers: tuple[str, ...]) -> None:
    """Say that a message was handled, and send answers.

    Answers are files that pabal mime build made. They are sent if and only if the message becomes done: both or
    neither, whatever is killed in between. MESSAGE is an id, a file name or a path; removing the file says done too.

    \b
    Examples:
      pabal ignite done
      pabal ignite done "$IGNITE_MESSAGE" --then answer.mime
    """
    with opened() as workspace:
        held = held_by(workspace, message)
        drafts = [draft for path in answers for draft in _drafts(workspace, Path(path))]
        workspace.delivery(held).ack(then=drafts)
        _note(workspace, held, "done", "")
    click.echo(f"done {held.message.id}")


@command("fail")
@message_argument
@click.option("--reason", default="", metavar="TEXT", help="Why, for whoever looks into it.")
@click.option("--bury", is_flag=True, help="Do not try it again: trying cannot help.")
@click.option("--delay", type=duration, metavar="TIME", help="Try it again after this, whatever the team file says.")
def fail(message: str, reason: str, bury: bool, delay: float | None) -> None:
    """Say that a message could not be handled.

    It is tried again as the team file says, and buried with a dead letter when it was tried often enough.

    \b
    Examples:
      pabal ignite fail --reason "the build is red"
      pabal ignite fail "$IGNITE_MESSAGE" --bury --reason "no such task"
    """
    with opened() as workspace:
        held = held_by(workspace, message)
        workspace.delivery(held).fail(FailureCode.NACKED, reason, delay=delay, final=bury)
        _note(workspace, held, "", reason)
    click.echo(f"failed {held.message.id}")


@command("beat")
@agent_argument
def beat(agent: str) -> None:
    """Give a sign of life in a long turn.

    So it is not taken for lost.

    \b
    Examples:
      pabal ignite beat
      pabal ignite beat ignitian_1
    """
    from pabal.ignite.beats import beat as give

    with opened() as workspace:
        give(workspace, workspace.team.name_of(agent))


def _drafts(workspace: Workspace, path: Path) -> list[Draft]:
    from pabal.codecs.mime.addresses import named
    from pabal.codecs.mime.head import read_head
    from pabal.errors import DecodeError
    from pabal.ignite import mail

    data = path.read_bytes()
    try:
        found = workspace.layout.codec.decode(data)
    except DecodeError as exc:
        raise InvalidInput(f"{path}: {exc.reason}; `pabal mime build` makes such files") from exc
    recipients = named(found)
    if isinstance(found.body, bytes):
        raise InvalidInput(f"{path}: the body must be YAML")
    return mail.compose(
        workspace,
        sender=found.sender,
        to=recipients.to or (read_head(data).get("To") or ""),
        cc=recipients.cc,
        type=found.type,
        body=found.body,
        priority=found.priority,
        thread_id=found.thread_id,
        headers={name: text for name, text in found.headers.items() if name not in ("To", "Cc", "Message-ID")},
        id=found.id,
    )


def _note(workspace: Workspace, held: Held, outcome: str, error: str) -> None:
    from pabal.ignite.memory import Fact

    at = workspace.clock.now() if outcome == "done" else None
    fact = Fact(held.receipt.queue, held.receipt.id, held.attempt, done_at=at, outcome=outcome, error=error)
    with suppress(StoreError):
        workspace.memory.record([fact])
