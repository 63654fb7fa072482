"""`pabal kingdom questions` and `answer`: what the kingdom wants to know from people."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

import click

from pabal.cli.kingdom_session import command, opened
from pabal.cli.session import json_option
from pabal.cli.text import clean, json_text

if TYPE_CHECKING:
    from pabal.kingdom.envoy.questions import Question


@command("questions")
@json_option
@click.option("--all", "everything", is_flag=True, help="Show those too that are answered or ran out.")
def questions(as_json: bool, everything: bool) -> None:
    """List the questions that wait for an answer.

    \b
    Examples:
      pabal kingdom questions
      pabal kingdom questions --all --json

    --json: task_id, text, kind, options, asked_at, expires_at, state, answer, responder, via.
    """
    from pabal.kingdom.documents import document_of
    from pabal.kingdom.envoy.questions import Questions

    with opened() as home:
        kept = Questions(home)
        found = kept.all() if everything else kept.open()
    for question in found:
        if as_json:
            click.echo(json_text(document_of(question)))
        else:
            for line in _lines(question):
                click.echo(clean(line))
    if not found and not as_json:
        click.echo("none")


def _lines(question: Question) -> list[str]:
    head = f"{question.task_id}  {question.asked_at}  {question.text}"
    if question.state == "answered":
        return [head, f"  answered by {question.responder} ({question.via}): {question.answer}"]
    if question.state == "expired":
        return [head, f"  ran out at {question.expires_at}"]
    options = [f"  {number}. {option}" for number, option in enumerate(question.options, 1)]
    return [head, *(["  yes or no"] if question.kind == "confirm" else options)]


@command("answer")
@click.argument("task", metavar="TASK")
@click.argument("text", metavar="TEXT")
@click.option("--as", "responder", default="", metavar="NAME", help="Who answers; else your name on this machine.")
def answer(task: str, text: str, responder: str) -> None:
    """Answer the question of TASK; its work goes on with that.

    The first answer counts, wherever it comes from. A question to choose takes the number or the words of an option,
    one to confirm takes yes or no.

    \b
    Examples:
      pabal kingdom answer task-20260226-001 yes
      pabal kingdom answer task-20260226-001 "use the second branch" --as ann
    """
    from pabal.kingdom.envoy.questions import Questions

    with opened() as home:
        done = Questions(home).answer(task, text, responder=responder or getpass.getuser(), via="terminal")
    click.echo(clean(f"{done.task_id} answered: {done.answer}"))
