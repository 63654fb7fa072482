"""`pabal ignite send | inbox | read | done | fail | beat`: the messages of an agent."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pabal.cli.exits import Exit
from pabal.cli.ignite_hooks import answer_hook
from pabal.cli.ignite_session import (
    agent_argument,
    command,
    held_by,
    message_argument,
    opened,
    own_name,
    some_agent_argument,
)
from pabal.cli.ignite_talk import item_document
from pabal.cli.session import json_option
from pabal.cli.text import ago, clean, json_text, span, table
from pabal.cli.values import duration, pair, patience, priority, unique
from pabal.clock import iso_stamp
from pabal.errors import InvalidInput, MessageUnknown, StoreError
from pabal.names import shown_name
from pabal.store import Draft, FailureCode

if TYPE_CHECKING:
    from pabal.apps.ignite.archive import MailItem
    from pabal.apps.ignite.memory import Fact
    from pabal.apps.ignite.workspace import Held, Workspace


@command("send")
@click.option("--from", "sender", metavar="AGENT", help="The sender; IGNITE_AGENT by default, else user.")
@click.option("--to", multiple=True, required=True, metavar="AGENT", help="A recipient; may be given several times.")
@click.option("--cc", multiple=True, metavar="AGENT", help="The recipient of a copy; may be given several times.")
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
    from pabal.apps.ignite import mail
    from pabal.codecs import yaml

    if (body is None) == (body_file is None):
        raise click.UsageError("give the body by --body or by --body-file")
    text = os.fsencode(body) if body is not None else _read(body_file or "-")
    with opened() as workspace:
        published = mail.send(
            workspace,
            sender=sender or own_name() or "user",
            body=yaml.read(text),
            headers=unique(headers, "--header"),
            **parts,
        )
    for each in published:
        document = {"id": each.id, "duplicate": each.duplicate}
        click.echo(json_text(document) if as_json else f"{each.id}{' (was there already)' * each.duplicate}")


@command("inbox")
@some_agent_argument
@click.option(
    "--wait", is_flag=False, flag_value="forever", type=patience, metavar="[TIME]", help="Wait for a message."
)
@click.option("--hook", is_flag=True, help="Answer a hook of Claude Code or Codex, whose JSON is on stdin.")
@click.option("--rewake", is_flag=True, help="With --hook: wait in the background, and end with 2 when mail comes.")
@json_option
@click.pass_context
def inbox(ctx: click.Context, agent: str | None, wait: float | None, hook: bool, rewake: bool, as_json: bool) -> None:
    """Show what an agent has in hand, what waits, and what was.

    Delivered, woken, read and done are four moments of each message. With --wait it returns as soon as the agent has
    one in hand, prints the path alone, and ends with 1 if none came. The inbox of user is that of the person.

    \b
    Examples:
      pabal ignite inbox leader
      pabal ignite inbox user
      path=$(pabal ignite inbox leader --wait)
    """
    from pabal.apps.ignite.inbox import inbox as view
    from pabal.apps.ignite.readers import wait_for_mail

    agent = agent or own_name()
    if hook:
        ctx.exit(answer_hook(agent, wait=wait or 0.0, rewake=rewake))
    if not agent:
        raise click.UsageError("give the AGENT, or set IGNITE_AGENT")
    with opened() as workspace:
        name = workspace.team.recipient_of(agent)
        if wait is not None and name not in workspace.team.agents:
            raise click.UsageError("mail for the person is not given out; `pabal needs-you --watch` waits for it")
        if wait is not None:
            own = own_name()
            held = wait_for_mail(workspace, name, wait, own=bool(own) and workspace.team.filter_of(own) == name)
            for each in held:
                click.echo(json_text(_document(each)) if as_json else clean(each.path))
            ctx.exit(Exit.DONE if held else Exit.NOTHING)
        items, facts = view(workspace, name), _facts(workspace, name)
        if as_json:
            for item in items:
                click.echo(json_text({**item_document(item), "facts": _fact_of(item, facts)}))
            return
        for line in _lines(workspace, name, items, facts):
            click.echo(line)


@command("read")
@message_argument
@click.option("--body", "body_only", is_flag=True, help="Only the body.")
def read(message: str, body_only: bool) -> None:
    """Print a message, and take note that it was read.

    For an agent that has it in hand it is a sign of life too. A message that waits, or is done, is printed as well.
    MESSAGE is an id, a file name or a path.

    \b
    Examples:
      pabal ignite read 1770263544.12345.abcdef
      pabal ignite read --body "$IGNITE_MESSAGE"
    """
    from pabal.apps.ignite.inbox import find
    from pabal.apps.ignite.memory import Fact
    from pabal.apps.ignite.readers import beat
    from pabal.codecs.mime.fields import read_head

    with opened(message) as workspace:
        try:
            held = held_by(workspace, message)
        except MessageUnknown:
            click.echo(_shown(find(workspace, message, own=own_name()), body_only=body_only), nl=False)
            return
        data = Path(held.path).read_bytes()
        beat(workspace, held.receipt.queue)
        with suppress(StoreError):
            fact = Fact(held.receipt.queue, held.receipt.id, held.attempt, read_at=workspace.clock.now())
            workspace.memory.record([fact])
    data = data[read_head(data).size :] if body_only else data
    if sys.stdout.isatty():  # the text is that of another agent: nothing in it controls the terminal
        data = "".join(f"{clean(line)}\n" for line in data.decode(errors="replace").splitlines()).encode()
    click.echo(data, nl=False)


def _shown(item: MailItem, *, body_only: bool) -> str:
    """Return a message that nobody has in hand as text: its main headers and its body."""
    from pabal.codecs import yaml
    from pabal.codecs.mime.codec import priority_text

    head = {
        "Message-ID": f"<{item.id}@ignite.local>",
        "From": item.sender,
        "To": ", ".join(item.to),
        "Date": iso_stamp(item.at),
        "Subject": item.subject,
        "X-IGNITE-Type": item.type,
        "X-IGNITE-Priority": priority_text(item.priority),
        "X-IGNITE-Thread-ID": item.thread,
    }
    lines = "".join(f"{name}: {clean(text)}\n" for name, text in head.items())
    body = yaml.write(item.body)
    return body if body_only else f"{lines}\n{body}"


def _read(path: str) -> bytes:
    return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()


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


def _fact_of(item: MailItem, facts: list[Fact]) -> dict[str, Any] | None:
    found = next((fact for fact in facts if (fact.id, fact.attempt) == (item.id, item.attempt)), None)
    return found._asdict() if found is not None else None


def _lines(workspace: Workspace, agent: str, items: list[MailItem], facts: list[Fact]) -> list[str]:
    from pabal.apps.ignite.inbox import WAITING
    from pabal.codecs.mime.codec import priority_text

    load = workspace.mail.load(agent)
    lines = [f"{shown_name(agent)}: {load.ready} waiting, {load.delayed} to be tried again, {load.inflight} in hand"]
    lines += [f"! {line}" for line in urgent_lines(item for item in items if item.state == WAITING)]
    lines += [f"  in hand: {clean(item.path)}" for item in items if item.path]
    rows = [
        (
            item.state,
            clean(shown_name(item.sender)),
            priority_text(item.priority),
            span(time.time() - item.at),
            clean(item.type),
            item.id,
            clean(item.subject),
        )
        for item in items
    ]
    lines += (
        ["", *table(("is", "from", "priority", "age", "type", "id", "subject"), rows, right="   r")] if rows else []
    )
    if facts:
        head = ("type", "id", "try", "delivered", "woken", "read", "done", "outcome", "error")
        lines += ["", *table(head, [_row(fact) for fact in facts], right="  r")]
    return lines


def urgent_lines(waiting: Iterable[MailItem]) -> list[str]:
    """Return a line for each critical message among those that wait."""
    from pabal.message import PRIORITIES

    return [
        f"critical mail waits: {clean(item.subject)} (from {shown_name(item.sender)}): `pabal ignite read {item.id}`"
        for item in waiting
        if item.priority >= PRIORITIES["critical"]
    ]


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


@command("done")
@message_argument
@click.option(
    "--then", "answers", multiple=True, type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="Send this."
)
def done(message: str, answers: tuple[str, ...]) -> None:
    """Acknowledge a message, and send answers.

    Answers are files that pabal mime build made. They are sent if and only if the message becomes done: both or
    neither, whatever is killed in between. MESSAGE is an id, a file name or a path. Removing the file acknowledges
    it too. Mail for the person, user, is taken out of the inbox.

    \b
    Examples:
      pabal ignite done
      pabal ignite done "$IGNITE_MESSAGE" --then answer.mime
    """
    from pabal.apps.ignite import mail
    from pabal.apps.ignite.conversation import note_end, put_away
    from pabal.apps.ignite.workspace import TEST_TOKEN

    with opened(message) as workspace:
        drafts = [draft for path in answers for draft in _drafts(workspace, Path(path))]
        try:
            held = held_by(workspace, message)
        except MessageUnknown:
            click.echo(f"done {put_away(workspace, message, then=drafts).id}")
            return
        if held.receipt.token == TEST_TOKEN:
            os.unlink(held.path)
            click.echo(f"done {held.message.id}, the message of a wake-test{'; answers are not sent' * bool(drafts)}")
            return
        with mail.limit_explained(workspace, drafts):
            workspace.delivery(held).ack(then=drafts)
        note_end(workspace, held, done=True)
    click.echo(f"done {held.message.id}")


@command("fail")
@message_argument
@click.option("--reason", default="", metavar="TEXT", help="Why, for the person who investigates.")
@click.option("--bury", is_flag=True, help="Do not try it again: trying cannot help.")
@click.option("--delay", type=duration, metavar="TIME", help="Try it again after this, whatever the team file sets.")
def fail(message: str, reason: str, bury: bool, delay: float | None) -> None:
    """Report that a message could not be handled.

    It is tried again as the team file sets, and buried with a dead letter when it was tried often enough.

    \b
    Examples:
      pabal ignite fail --reason "the build is red"
      pabal ignite fail "$IGNITE_MESSAGE" --bury --reason "no such task"
    """
    from pabal.apps.ignite.conversation import note_end
    from pabal.apps.ignite.workspace import TEST_TOKEN

    with opened(message) as workspace:
        held = held_by(workspace, message)
        if held.receipt.token == TEST_TOKEN:
            os.replace(held.path, Path(held.path).with_suffix(".failed"))
            click.echo(f"failed {held.message.id}, the message of a wake-test")
            return
        workspace.delivery(held).fail(FailureCode.NACKED, reason, delay=delay, final=bury)
        note_end(workspace, held, error=reason)
    click.echo(f"failed {held.message.id}")


@command("beat")
@agent_argument
def beat(agent: str) -> None:
    """Give a sign of life in a long turn.

    So it is not taken for lost. Critical mail that waits meanwhile is printed.

    \b
    Examples:
      pabal ignite beat
      pabal ignite beat ignitian_1
    """
    from pabal.apps.ignite.inbox import urgent
    from pabal.apps.ignite.readers import beat as give

    with opened() as workspace:
        name = workspace.team.name_of(agent)
        give(workspace, name)
        for line in urgent_lines(urgent(workspace, name)):
            click.echo(line)


_NOT_SENT = ("To", "Cc", "Message-ID", "Delivered-To")  # headers of a file that a new message gets anew


def _drafts(workspace: Workspace, path: Path) -> list[Draft]:
    from pabal.apps.ignite import mail
    from pabal.codecs.mime.addresses import named
    from pabal.codecs.mime.fields import read_head
    from pabal.errors import DecodeError

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
        headers={name: text for name, text in found.headers.items() if name not in _NOT_SENT},
        id=found.id,
    )
