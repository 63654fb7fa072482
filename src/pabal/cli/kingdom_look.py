"""`pabal kingdom status | events | tasks | doctor | logs | questions | answer`: the state of a kingdom."""

from __future__ import annotations

import getpass
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pabal import jsontext
from pabal.cli.exits import Exit
from pabal.cli.kingdom_session import command, opened
from pabal.cli.kingdom_work import print_rows
from pabal.cli.session import json_option
from pabal.cli.text import clean, json_text, table
from pabal.cli.values import duration
from pabal.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from pabal.apps.kingdom.envoy.questions import Question
    from pabal.apps.kingdom.status import Report


@command("status")
@json_option
def status(as_json: bool) -> None:
    """Show questions, roles, queues, and what is wrong.

    Ends with 1 if the kingdom is down.

    \b
    Examples:
      pabal kingdom status
      pabal kingdom status --json | jq .problems

    --json: home, up, roles, health, soldiers, most_soldiers, questions, queues, problems.
    """
    from pabal.apps.kingdom.status import report

    with opened() as home:
        found = report(home)
    if as_json:
        click.echo(json_text(asdict(found)))
    else:
        for line in _status_lines(found):
            click.echo(clean(line))
    if found.up is None:
        raise SystemExit(Exit.NOTHING)


def _status_lines(found: Report) -> list[str]:
    roles = [[role.name, role.state, str(role.pid or ""), role.since] for role in found.roles]
    queues = [
        [name, "  ".join(f"{count} {word}" for word, count in counts.items())] for name, counts in found.queues.items()
    ]
    lines = [f"? {' '.join(question.split())}" for question in found.questions]
    lines += [""] * bool(lines)
    lines += [
        f"kingdom   {'up, pid ' + str(found.up) if found.up else 'down: `pabal kingdom up` starts it'}",
        f"health    {found.health}",
        f"soldiers  {found.soldiers} of {found.most_soldiers}",
        "",
        *(table(["ROLE", "STATE", "PID", "LAST PASS"], roles, right="llrr") if roles else ["no role runs"]),
        "",
        *table(["QUEUE", "DOCUMENTS"], queues),
    ]
    if found.problems:
        lines += ["", *(f"! {' '.join(problem.split())}" for problem in found.problems)]
    return lines


@command("events")
@json_option
@click.option("--completed", is_flag=True, help="Show those that are over instead, newest first.")
@click.option("--limit", type=click.IntRange(1), default=100, metavar="COUNT", help="Show so many; 100 by default.")
def events(as_json: bool, completed: bool, limit: int) -> None:
    """List events that wait, each with the reason.

    Malformed ones are listed with what is wrong with them.

    \b
    Examples:
      pabal kingdom events
      pabal kingdom events --completed --json

    --json: id, type, priority, created_at, why.
    """
    from pabal.apps.kingdom.status import completed_events, waiting_events

    with opened() as home:
        found = completed_events(home, limit) if completed else waiting_events(home, limit)
    print_rows(found, as_json, ["id", "type", "priority", "created_at", "why"])


@command("tasks")
@json_option
@click.option("--completed", is_flag=True, help="Show those that are over instead, newest first.")
@click.option("--limit", type=click.IntRange(1), default=100, metavar="COUNT", help="Show so many; 100 by default.")
def tasks(as_json: bool, completed: bool, limit: int) -> None:
    """List tasks that wait or run, each with how it stands.

    \b
    Examples:
      pabal kingdom tasks
      pabal kingdom tasks --completed --limit 20

    --json: id, general, type, priority, created_at, why.
    """
    from pabal.apps.kingdom.status import finished_tasks, open_tasks

    with opened() as home:
        found = finished_tasks(home, limit) if completed else open_tasks(home, limit)
    print_rows(found, as_json, ["id", "general", "type", "priority", "created_at", "why"])


@command("doctor")
@click.argument("task", metavar="[TASK]", required=False)
@json_option
def doctor(task: str | None, as_json: bool) -> None:
    """Show the history of TASK, or the tasks that failed lately.

    Shows the task, its result, its failed tries, the size of its prompt, the last lines its soldier wrote and the
    journal of it.

    \b
    Examples:
      pabal kingdom doctor
      pabal kingdom doctor task-20260226-001

    --json: task, result, failures, soldier, prompt_bytes, last_words, journal.
    """
    from pabal.apps.kingdom.status import diagnose, failures

    with opened() as home:
        if task is None:
            found = failures(home)
            for line in found:
                click.echo(json_text(line) if as_json else clean(_failure(line)))
            if not found and not as_json:
                click.echo("no task failed lately")
            return
        about = diagnose(home, task)
    if as_json:
        click.echo(json_text(about))
        return
    for name, value in about.items():
        click.echo(f"{name}:")
        for text in _lines(value):
            click.echo(f"  {clean(text)}")


def _failure(line: dict[str, Any]) -> str:
    data = line["data"]
    return f"{line['ts']}  {data.get('task', '')}  {data.get('general', '')}  {data.get('reason', '')}"


def _lines(value: Any) -> list[str]:
    if isinstance(value, list):
        return [each if isinstance(each, str) else jsontext.encode(each).decode() for each in value] or ["none"]
    if isinstance(value, dict):
        return jsontext.pretty(value).decode().splitlines()
    return str(value or "none").splitlines()


@command("logs")
@json_option
@click.option("--lines", type=click.IntRange(0), default=20, metavar="COUNT", help="Begin so far back; 20 by default.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what is written, until Ctrl-C.")
@click.option("--task", default="", metavar="TASK", help="Only lines about this task.")
@click.option("--general", default="", metavar="NAME", help="Only lines of or about this general or role.")
@click.option("--since", type=duration, metavar="DURATION", help="Only lines of the last 10m, 2h or so.")
@click.option("--system", is_flag=True, help="What the roles print, instead of the journal.")
def logs(as_json: bool, lines: int, follow: bool, task: str, general: str, since: float | None, system: bool) -> None:
    """Print the journal of the kingdom.

    Time, role, task, and what happened.

    \b
    Examples:
      pabal kingdom logs --lines 100
      pabal kingdom logs -f --general gen-pr
      pabal kingdom logs --json --since 1h | jq .type

    --json: ts, type, actor, data.
    """
    from pabal.apps.kingdom.documents import stamp
    from pabal.apps.kingdom.journal import FILE, tail
    from pabal.apps.kingdom.supervision import LOG

    with opened() as home:
        path = home.root / (LOG if system else FILE)
        after = "" if since is None else stamp(home.clock.now() - since)

    def shown(line: str) -> str | None:
        return line if system else _journal_line(line, task, general, after, as_json=as_json)

    found = [text for line in tail(path, 100_000) if (text := shown(line)) is not None]
    for text in found[-lines:] if lines else []:
        click.echo(clean(text))
    if follow:
        _follow(path, shown)


def _journal_line(line: str, task: str, general: str, after: str, *, as_json: bool) -> str | None:
    """Return a line of the journal as it is printed; None if it is not asked for."""
    try:
        document = jsontext.read(line.encode())
        data, actor, ts = document["data"], str(document["actor"]), str(document["ts"])
        about, whose = str(data.get("task", "")), (actor, data.get("general"), data.get("role"))
        if (task and about != task) or (general and general not in whose) or (after and ts < after):
            return None
        if as_json:
            return line
        facts = {name: value for name, value in data.items() if name != "task" and value not in ("", None)}
        rest = "  ".join(f"{name} {value}" for name, value in facts.items())
        words = str(document["type"]).replace(".", " ").replace("_", " ")
        return f"{ts[:19].replace('T', ' ')}  {actor:<12}  {about:<17}  {words}{f': {rest}' if rest else ''}".rstrip()
    except (InvalidInput, KeyError, TypeError, AttributeError):
        return None


def _follow(path: Path, shown: Callable[[str], str | None]) -> None:
    at = path.stat().st_size if path.exists() else 0
    while True:
        time.sleep(0.2)
        size = path.stat().st_size if path.exists() else 0
        if size < at:
            at = 0  # it was rotated
        if size > at:
            with path.open("rb") as file:
                file.seek(at)
                data = file.read(size - at)
            whole = data.rpartition(b"\n")[0]
            at += len(whole) + 1 if whole else 0
            for line in whole.decode(errors="replace").splitlines():
                if (text := shown(line)) is not None:
                    click.echo(clean(text))


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
    from pabal.apps.kingdom.documents import document_of
    from pabal.apps.kingdom.envoy.questions import Questions

    with opened() as home:
        kept = Questions(home)
        found = kept.all() if everything else kept.open()
    for question in found:
        if as_json:
            click.echo(json_text(document_of(question)))
        else:
            for line in _question_lines(question):
                click.echo(clean(line))
    if not found and not as_json:
        click.echo("none")


def _question_lines(question: Question) -> list[str]:
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
@click.option(
    "--as",
    "responder",
    default="",
    metavar="NAME",
    help="The name of the person who answers; else your name on this machine.",
)
def answer(task: str, text: str, responder: str) -> None:
    """Answer the question of TASK; its work goes on with that.

    The first answer counts, wherever it comes from. A question to choose takes the number or the words of an option,
    one to confirm takes yes or no.

    \b
    Examples:
      pabal kingdom answer task-20260226-001 yes
      pabal kingdom answer task-20260226-001 "use the second branch" --as ann
    """
    from pabal.apps.kingdom.envoy.questions import Questions

    with opened() as home:
        done = Questions(home).answer(task, text, responder=responder or getpass.getuser(), via="terminal")
    click.echo(clean(f"{done.task_id} answered: {done.answer}"))
