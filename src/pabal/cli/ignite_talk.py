"""`pabal ignite say | reply | ask | thread | search`: plain messages, questions, and the mail of the past."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from pabal.cli.exits import Exit
from pabal.cli.ignite_session import command, opened, own_name
from pabal.cli.session import json_option
from pabal.cli.text import ago, clean, json_text, table
from pabal.cli.values import duration, patience
from pabal.names import shown_name

if TYPE_CHECKING:
    from pabal.apps.ignite.archive import MailItem
    from pabal.apps.ignite.workspace import Workspace

sender_option = click.option(
    "--from", "sender", metavar="AGENT", help="The sender; IGNITE_AGENT by default, else user."
)
urgent_option = click.option("--urgent", is_flag=True, help="Let it wait before all other mail.")


def _text(words: tuple[str, ...]) -> str:
    text = sys.stdin.read() if words == ("-",) else " ".join(words)
    if not text.strip():
        raise click.UsageError("give the TEXT, or - to read it from stdin")
    return text


@command("say")
@click.argument("to", metavar="AGENT")
@click.argument("words", metavar="TEXT", nargs=-1, required=True)
@sender_option
@click.option("--subject", default="", metavar="TEXT", help="What it is about; else the first line of the text.")
@click.option("--reply-to", default="", metavar="ID", help="The message that it answers: it joins that thread.")
@urgent_option
@click.option("--id", default="", metavar="ID", help="Its id: saying it again with the same one is safe.")
@json_option
def say(to: str, words: tuple[str, ...], sender: str | None, as_json: bool, **more: Any) -> None:
    """Send plain text to an agent or a person.

    AGENT is a name, or several with commas; user is the person at the terminal. TEXT is read from stdin if it is -.

    \b
    Examples:
      pabal ignite say architect "the schema changes tonight" --subject migration
      pabal ignite say worker_1,worker_2 --urgent "stop: main is red"
      git diff --stat | pabal ignite say user -
    """
    from pabal.apps.ignite.conversation import say as send

    with opened() as workspace:
        published = send(workspace, sender=sender or own_name() or "user", to=to, text=_text(words), **more)
    for each in published:
        document = {"id": each.id, "duplicate": each.duplicate}
        click.echo(json_text(document) if as_json else f"{each.id}{' (was there already)' * each.duplicate}")


@command("reply")
@click.argument("message", metavar="ID")
@click.argument("words", metavar="TEXT", nargs=-1, required=True)
@click.option("--from", "sender", metavar="AGENT", help="The sender; IGNITE_AGENT by default, else the recipient.")
@urgent_option
@click.option("--keep", is_flag=True, help="Leave the message in hand; else it becomes done in the same step.")
def reply(message: str, words: tuple[str, ...], sender: str | None, urgent: bool, keep: bool) -> None:
    """Answer a message or a question, in its thread.

    ID is that of the message, its file name or its path. If the sender has it in hand, it becomes done with the reply:
    both or neither.

    \b
    Examples:
      pabal ignite reply 1770263544.12345.abcdef "yes, after the tests"
      pabal ignite reply "$IGNITE_MESSAGE" --keep "I have begun"
    """
    from pabal.apps.ignite.conversation import reply as answer

    with opened(message) as workspace:
        test = workspace.find_test(message)
        if test is not None:
            os.unlink(test.path)
            click.echo(f"done {test.message.id}, the message of a wake-test; answers are not sent")
            return
        given = sender or own_name()
        if not given and _is_for_person(workspace, message) and not sys.stdin.isatty():
            raise click.UsageError("a question to user is answered by the person: on a terminal, or with --from user")
        click.echo(answer(workspace, message, _text(words), sender=given, urgent=urgent, keep=keep))


def _is_for_person(workspace: Workspace, id: str) -> bool:
    """Return whether this is a question to the person, which a model that has no name here must not answer."""
    from pabal.apps.ignite.questions import Questions

    questions = Questions(workspace)
    return questions.has(id) and questions.find(id).to == "user"


@command("ask")
@click.argument("to", metavar="AGENT")
@click.argument("words", metavar="TEXT", nargs=-1, required=True)
@sender_option
@click.option("--option", "options", multiple=True, metavar="TEXT", help="One of the answers to choose from.")
@click.option("--confirm", is_flag=True, help="Ask for yes or no.")
@urgent_option
@click.option("--wait", type=patience, default="forever", metavar="TIME", help="Wait so long; 0: do not wait.")
@click.option(
    "--ttl", type=duration, default="0", metavar="TIME", help="Close the question if nobody answered by then."
)
@click.option("--id", default="", metavar="ID", help="Its id: asking again with the same one joins the question.")
@json_option
def ask(to: str, words: tuple[str, ...], sender: str | None, wait: float, as_json: bool, **more: Any) -> int:
    """Put a question to a person or an agent and print the answer.

    The question is stored before the command waits. If the command ends before the answer comes, the answer is sent
    to the sender as mail, and asking again with --id returns it. Ends with 1 if there is no answer.

    \b
    Examples:
      pabal ignite ask user "Delete the old tables?" --confirm
      pabal ignite ask architect "REST?" --option REST --option gRPC --wait 10m
    """
    from pabal.apps.ignite.questions import Questions

    with opened() as workspace:
        questions = Questions(workspace)
        question = questions.ask(asker=sender or own_name() or "user", to=to, text=_text(words), **more)
        if not as_json:
            click.echo(f"question {question.id} to {shown_name(question.to)}", err=True)
        question = questions.wait(question.id, wait)
    if as_json:
        click.echo(json_text(_question_document(question)))
    elif question.state == "answered":
        for line in question.answer.splitlines():
            click.echo(clean(line))
        if question.responder != question.to:
            click.echo(f"answered by {shown_name(question.responder)}", err=True)
    elif question.state == "open":
        click.echo(f"no answer yet; ask again with --id {question.id}, or wait for it as mail", err=True)
    else:
        click.echo("nobody answered in time: the question is closed", err=True)
    return Exit.DONE if question.state == "answered" else Exit.NOTHING


def _question_document(question: Any) -> dict[str, Any]:
    names = "id asker to text kind options asked_at expires_at state answer responder answered_at".split()
    return {name: getattr(question, name) for name in names}


@command("thread")
@click.argument("message", metavar="ID")
@json_option
def thread(message: str, as_json: bool) -> None:
    """Show a conversation, the oldest message first.

    ID is that of the thread, or of any message in it.

    \b
    Examples:
      pabal ignite thread 1770263544.12345.abcdef
      pabal ignite thread 1770263544.12345.abcdef --json | jq .body
    """
    from pabal.apps.ignite.archive import text_of
    from pabal.apps.ignite.inbox import thread as view

    with opened() as workspace:
        found = view(workspace, message)
    for item in found:
        if as_json:
            click.echo(json_text(item_document(item)))
            continue
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(item.at))
        names = f"{shown_name(item.sender)} → {', '.join(map(shown_name, item.to))}"
        click.echo(clean(f"{when}  {names}  {item.subject}  [{item.state}]  {item.id}"))
        for line in text_of(item.body).strip().splitlines():
            click.echo(f"    {clean(line)}")


@command("search")
@click.argument("words", metavar="TEXT", nargs=-1, required=True)
@click.option("--from", "sender", default="", metavar="AGENT", help="Only messages of this sender.")
@click.option("--to", default="", metavar="AGENT", help="Only messages to this recipient.")
@click.option("--type", "type", default="", metavar="TYPE", help="Only messages of this type.")
@click.option("--since", type=duration, metavar="TIME", help="Only messages of the last 2h, 7d, ….")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, metavar="COUNT", help="Show so many; 50.")
@json_option
def search(words: tuple[str, ...], since: float | None, as_json: bool, limit: int, **filters: str) -> int:
    """Find messages by their words, the newest first.

    All words must occur, in the subject or the body, each by its beginning; words in double quotes stand together.
    Ends with 1 if nothing is found.

    \b
    Examples:
      pabal ignite search migration --from architect
      pabal ignite search '"connection pool"' --since 7d
    """
    from pabal.apps.ignite.inbox import search as find

    with opened() as workspace:
        at = workspace.clock.now() - since if since is not None else 0.0
        named = {key: workspace.team.filter_of(filters.pop(key)) for key in ("sender", "to") if filters[key]}
        found = find(workspace, " ".join(words), since=at, limit=limit, **{**filters, **named})
    if as_json:
        for item in found:
            click.echo(json_text(item_document(item)))
    elif found:
        rows = [
            (
                ago(item.at),
                shown_name(item.sender),
                ", ".join(map(shown_name, item.to)),
                clean(item.type),
                item.id,
                clean(item.subject),
            )
            for item in found
        ]
        click.echo("\n".join(table(("when", "from", "to", "type", "id", "subject"), rows)))
    return Exit.DONE if found else Exit.NOTHING


def item_document(item: MailItem) -> dict[str, Any]:
    """Return a message as `--json` prints it."""
    from pabal.codecs.mime.codec import priority_text

    return {
        "id": item.id,
        "thread": item.thread,
        "from": item.sender,
        "to": list(item.to),
        "agent": item.agent,
        "type": item.type,
        "priority": priority_text(item.priority),
        "subject": item.subject,
        "state": item.state,
        "at": item.at,
        "in_reply_to": item.in_reply_to or None,
        "path": item.path or None,
        "receipt": item.receipt or None,
        "attempt": item.attempt,
        "body": item.body,
    }
