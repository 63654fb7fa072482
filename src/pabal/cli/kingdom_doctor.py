"""`pabal kingdom doctor` and `logs`: what became of a task, and what happened lately."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from pabal import jsontext
from pabal.cli.kingdom_session import command, opened
from pabal.cli.session import json_option
from pabal.cli.text import clean, json_text


@command("doctor")
@click.argument("task", metavar="[TASK]", required=False)
@json_option
def doctor(task: str | None, as_json: bool) -> None:
    """Tell what became of TASK, or which failed lately.

    Shows the task, its result, its failed tries, the size of its prompt, the last lines its soldier wrote and the
    journal of it.

    \b
    Examples:
      pabal kingdom doctor
      pabal kingdom doctor task-20260226-001

    --json: task, result, failures, soldier, prompt_bytes, last_words, journal.
    """
    from pabal.kingdom.diagnosis import diagnose, failures

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
@click.option("--lines", type=click.IntRange(0), default=20, metavar="COUNT", help="Begin so far back; 20 by default.")
@click.option("--follow", is_flag=True, help="Go on with what is written, until Ctrl-C.")
@click.option("--system", is_flag=True, help="What the roles print, instead of the journal.")
def logs(lines: int, follow: bool, system: bool) -> None:
    """Print the journal of the kingdom.

    \b
    Examples:
      pabal kingdom logs --lines 100
      pabal kingdom logs --follow | jq .type
    """
    from pabal.kingdom.diagnosis import tail
    from pabal.kingdom.journal import FILE
    from pabal.kingdom.supervision import LOG

    with opened() as home:
        path = home.root / (LOG if system else FILE)
    for line in tail(path, lines):
        click.echo(clean(line))
    if follow:
        _follow(path)


def _follow(path: Path) -> None:
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
                click.echo(clean(line))
