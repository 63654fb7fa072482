"""`pabal kingdom submit | show | retry | cancel | requeue | dismiss | …`: work with events and tasks by hand."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pabal import jsontext
from pabal.cli.exits import Exit
from pabal.cli.kingdom_session import command, opened
from pabal.cli.session import json_option
from pabal.cli.text import Progress, clean, json_text, table
from pabal.errors import InvalidInput

if TYPE_CHECKING:
    from pabal.apps.kingdom.home import Home
    from pabal.apps.kingdom.lookup import TaskStory
    from pabal.apps.kingdom.manifests import Table
    from pabal.queues.move import Moved

as_option = click.option(
    "--as", "person", default="", metavar="NAME", help="The name of the person who does it; else yours on this machine."
)


def table_of(home: Home) -> Table:
    """Return the routing table of a kingdom."""
    from pabal.apps.kingdom.manifests import FOLDER, Table, load

    return Table(load(home.root / FOLDER), home.config.engine)


@command("submit")
@click.argument("files", metavar="FILE|-...", nargs=-1, required=True, type=click.Path(path_type=Path))
def submit(files: tuple[Path, ...]) -> None:
    """Hand in events, on any store.

    A FILE holds one event, a list of them, or one on each line; - reads stdin. An event needs a type; without an id it
    gets one. The same id is the same event: it is handed in once.

    \b
    Examples:
      pabal kingdom submit event.json
      echo '{"type": "town.visitor"}' | pabal kingdom submit -
    """
    from pabal.apps.kingdom.operate import submit as hand_in
    from pabal.apps.kingdom.supervision import holder_of

    documents = [document for path in files for document in _documents(path)]
    with opened() as home:
        routing = table_of(home)
        for published in hand_in(home, documents):
            click.echo(f"{published.id}{' was handed in before' if published.duplicate else ''}")
        for type in dict.fromkeys(str(document.get("type")) for document in documents):
            if not type.startswith("slack.") and routing.find(type) is None:
                click.echo(
                    clean(f"pabal: no general subscribes to {type}: it will be completed without work"), err=True
                )
        if holder_of(home.root) is None:
            click.echo("pabal: the kingdom is down; `pabal kingdom up` starts it", err=True)


def _documents(path: Path) -> list[Any]:
    data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    try:
        found = jsontext.read(data)
    except InvalidInput:
        lines = [line for line in data.splitlines() if line.strip()]
        if len(lines) < 2:
            raise
        return [jsontext.read(line) for line in lines]
    return found if isinstance(found, list) else [found]


@command("show")
@click.argument("id", metavar="EVENT|TASK")
@json_option
def show(id: str, as_json: bool) -> None:
    """Show what became of an event or a task.

    From the event to its tasks, their results, questions and messages, and to the tasks that went on with them.

    \b
    Examples:
      pabal kingdom show evt-github-1-2026-02-07T10:00:00Z
      pabal kingdom show task-20260226-001 --json

    --json: id, state, event, tasks.
    """
    from dataclasses import asdict

    from pabal.apps.kingdom.lookup import story

    with opened() as home:
        found = story(home, id)
    if as_json:
        click.echo(json_text(asdict(found)))
        return
    event = found.event or {}
    lines = [f"event    {found.id}  {event.get('type', '')}  {found.state}"]
    if event.get("reason"):
        lines.append(f"  reason   {event['reason']}")
    for task in found.tasks:
        lines += _task_lines(task)
    for line in lines:
        click.echo(clean(line))


def _task_lines(task: TaskStory) -> list[str]:
    body, result, question = task.task or {}, task.result or {}, task.question or {}
    lines = [f"task     {task.id}  {body.get('target_general', '')}  {body.get('type', '')}  {task.state}"]
    if result:
        text = result.get("error") or result.get("reason") or result.get("question") or result.get("summary") or ""
        lines.append(f"  result   {result.get('status')}: {' '.join(str(text).split())}")
    if question:
        answer = (
            f"{question['responder']} ({question['via']}): {question['answer']}" if question["answer"] else "none yet"
        )
        lines.append(f"  answer   {answer}")
    lines += [f"  message  {each['created_at']}  {each['state']}  {each['text']}" for each in task.messages[::-1]]
    return [*lines, *(f"  went on as {id}" for id in task.went_on_as)]


@command("messages")
@json_option
@click.option("--task", default="", metavar="TASK", help="Only those about this task.")
@click.option("--limit", type=click.IntRange(1), default=50, metavar="COUNT", help="Show so many; 50 by default.")
def messages(as_json: bool, task: str, limit: int) -> None:
    """List what was said to people, the newest first.

    Says so if nobody hears it, because there is no Slack token.

    \b
    Examples:
      pabal kingdom messages
      pabal kingdom messages --task task-20260226-001

    --json: id, created_at, state, type, channel, task, text, problem.
    """
    from pabal.apps.kingdom.lookup import list_messages, unheard, unsent

    with opened() as home:
        found = [each for each in list_messages(home) if task in ("", each["task"])][:limit]
        silence = unheard(home) or unsent(home)
    print_rows(found, as_json, ["created_at", "state", "channel", "task", "text", "problem"])
    if silence and not as_json:
        click.echo(silence)


def print_rows(found: list[dict[str, Any]], as_json: bool, columns: list[str]) -> None:
    """Print documents as a table, or as JSON, one on each line."""
    if as_json:
        for document in found:
            click.echo(json_text(document))
    elif found:
        rows = [[clean(str(document.get(name) or "")) for name in columns] for document in found]
        for line in table([name.upper() for name in columns], rows):
            click.echo(line)
    else:
        click.echo("none")


@command("retry")
@click.argument("task", metavar="TASK")
@click.option("--general", default="", metavar="NAME", help="Give it to this general instead.")
def retry(task: str, general: str) -> None:
    """Make a task again; print the id of the new one.

    For a task that failed, was skipped or cancelled, was given up, waits for a retry, or is of a general that is gone.
    The question of a task that asks is closed.

    \b
    Examples:
      pabal kingdom retry task-20260226-001
      pabal kingdom retry task-20260226-001 --general gen-new
    """
    from pabal.apps.kingdom.operate import retry as make_again

    with opened() as home:
        click.echo(make_again(home, table_of(home), task, general))


@command("cancel")
@click.argument("task", metavar="TASK")
@as_option
def cancel(task: str, person: str) -> None:
    """Cancel a task that is not over.

    Its soldier is stopped, its event is completed, and people are told. If it asks a question, that is closed.

    \b
    Example:
      pabal kingdom cancel task-20260226-001
    """
    from pabal.apps.kingdom.operate import cancel as end

    with opened() as home:
        runs = end(home, task, person or getpass.getuser())
    click.echo(f"{task} is cancelled{'; its general stops the soldier' if runs else ''}")


@command("requeue")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option(
    "--all", "everything", is_flag=True, help="All that was set aside; ends with 1 if one is still malformed."
)
def requeue(ids: tuple[str, ...], everything: bool) -> None:
    """Take in documents again that were set aside or discarded.

    Malformed ones are read again, after you have mended their file; given up and failed ones are tried again. So are
    events that were completed without work, because no general subscribed to them.

    \b
    Examples:
      pabal kingdom requeue evt-1
      pabal kingdom requeue --all
    """
    from pabal.apps.kingdom.operate import requeue as take_in
    from pabal.apps.kingdom.operate import requeue_aside, set_aside

    if bool(ids) == everything:
        raise click.UsageError("give the ids to take in, or --all")
    with opened() as home:
        for id in ids:
            click.echo(clean(f"{id} is back in {take_in(home, id)}"))
        left = 0
        for aside in set_aside(home) if everything else []:
            try:
                click.echo(clean(f"{aside.id} is back in {requeue_aside(home, aside)}"))
            except InvalidInput as exc:
                left += 1
                click.echo(clean(f"pabal: {exc}"), err=True)
    if left:
        raise SystemExit(Exit.NOTHING)


@command("dismiss")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that was set aside, and all discarded events of status.")
def dismiss(ids: tuple[str, ...], everything: bool) -> None:
    """Put documents away that were set aside.

    Status shows them no more. Their bytes are kept in state/dismissed/.

    \b
    Examples:
      pabal kingdom dismiss evt-1
      pabal kingdom dismiss --all
    """
    from pabal.apps.kingdom.operate import dismiss as put_away
    from pabal.apps.kingdom.operate import dismiss_aside, dismiss_notes, set_aside

    if bool(ids) == everything:
        raise click.UsageError("give the ids to dismiss, or --all")
    with opened() as home:
        for id in ids:
            click.echo(clean(f"{id} is in {put_away(home, id)}"))
        if everything:
            for aside in set_aside(home):
                click.echo(clean(f"{aside.entry.id} is in {dismiss_aside(home, aside)}"))
            dismiss_notes(home)
            click.echo("discarded events up to now are not shown any more")


@command("generals")
@json_option
def generals(as_json: bool) -> None:
    """List the generals, their tasks and schedules.

    \b
    Example:
      pabal kingdom generals

    --json: name, state, soldiers, waiting, types, schedules, description.
    """
    from pabal.apps.kingdom.lookup import list_generals

    with opened() as home:
        found = list_generals(home, table_of(home))
    print_rows(found, as_json, ["name", "state", "soldiers", "waiting", "types", "schedules", "description"])


@command("routes")
@click.argument("type", metavar="[TYPE]", required=False, default="")
@json_option
def routes(type: str, as_json: bool) -> None:
    """Show which general gets events of TYPE.

    Without TYPE, every subscription and schedule.

    \b
    Examples:
      pabal kingdom routes github.pr.assigned
      pabal kingdom routes

    --json: type, general, by.
    """
    from pabal.apps.kingdom.lookup import routes as find_routes

    with opened() as home:
        found = find_routes(home, table_of(home), type)
    print_rows(list(found), as_json, ["type", "general", "by"])


@command("check")
@json_option
@click.option("--slack", is_flag=True, help="Also post to Slack, read it back, and say what is missing.")
def check(as_json: bool, slack: bool) -> None:
    """Check that everything is there before events arrive.

    Configuration, manifests, engine and commands, plugins, tokens, the channel. Ends with 1 if something is missing
    that the kingdom needs. --slack posts a message to the default channel, reads it back and removes it.

    \b
    Examples:
      pabal kingdom check
      pabal kingdom check --slack

    --json: what, problem, advice, warning.
    """
    from pabal.apps.kingdom.preflight import check as look
    from pabal.apps.kingdom.preflight import check_slack

    with opened() as home:
        found = [*look(home), *(check_slack(home) if slack else ())]
    for each in found:
        if as_json:
            click.echo(json_text(each._asdict()))
            continue
        mark = "ok" if not each.problem else "--" if each.warning else "!!"
        click.echo(clean(f"{mark}  {each.what}{f': {each.problem}' if each.problem else ''}"))
        if each.problem and each.advice:
            click.echo(clean(f"      {each.advice}"))
    if any(each.problem and not each.warning for each in found):
        raise SystemExit(Exit.NOTHING)


@command("run-soldier")
@click.argument("task", metavar="TASK")
@click.option("--dry-run", is_flag=True, help="Only show the command, the folder, the variables and the prompt.")
def run_soldier(task: str, dry_run: bool) -> None:
    """Run the soldier of a task in this terminal.

    It gets the prompt and the variables that its general would give it, and works in an empty folder. Its result is
    checked and shown. Task and event stay as they are.

    \b
    Example:
      pabal kingdom run-soldier task-20260226-001 --dry-run
    """
    from pabal.apps.kingdom.general.trial import trial_of, try_soldier

    with opened() as home:
        trial = trial_of(home, task)
        click.echo(clean(f"command    {' '.join(trial.command.argv)}"))
        click.echo(clean(f"folder     {trial.command.cwd}"))
        click.echo(clean(f"variables  {', '.join(sorted(trial.command.env))}"))
        if dry_run:
            click.echo(f"prompt     {len(trial.prompt.encode())} bytes\n")
            for line in trial.prompt.splitlines():
                click.echo(clean(line))
            return
        status, result = try_soldier(home, trial)
    click.echo(clean(f"ended with {status}; result: {result}"))


@command("move-queues")
def move_queues() -> None:
    """Move what waits to the configured store.

    That is the one that `queues:` in config/system.yaml names now. For a kingdom that is down and whose setting was
    changed; `up` refuses to start before. May be repeated.

    \b
    Example:
      pabal kingdom move-queues
    """
    from pabal.apps.kingdom.queue_place import move_queues as move_all

    progress = Progress()

    def report(moved: Moved) -> None:
        progress(f"{moved.queue}: {moved.ready + moved.delayed + moved.dead + moved.done} moved")

    with opened() as home:
        moved = move_all(home, report)
    for name, count in moved.items():
        click.echo(f"{name}  {count}")
    if not moved:
        click.echo("nothing to move: the queues are where the configuration says")
