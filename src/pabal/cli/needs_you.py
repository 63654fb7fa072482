"""`pabal needs-you`: what waits for a person, of all applications, and the answers to it."""

from __future__ import annotations

import getpass
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from pabal.cli.exits import Exit
from pabal.cli.kingdom_session import variables_of
from pabal.cli.session import json_option
from pabal.cli.text import ago, clean, json_text
from pabal.errors import InvalidInput, MessageUnknown, StoreMissing
from pabal.names import shown_name

if TYPE_CHECKING:
    from pabal.apps.needs import Need

_EVERY = 1.0  # seconds
_KINDS = {"question": "QUESTION", "mail": "MAIL", "problem": "PROBLEM"}


class _Waiting(NamedTuple):
    """Something that waits for a person, where it is, and how it is answered."""

    place: str
    need: Need
    answer: Callable[[str], object]


@click.command("needs-you")
@click.option(
    "--root",
    "roots",
    multiple=True,
    metavar="DIR",
    help="The workspace of a team. Else IGNITE_ROOT, else .ignite here or above.",
)
@click.option(
    "--home", "homes", multiple=True, metavar="DIR", help="The kingdom. Else KINGDOM_BASE_DIR, else this folder."
)
@click.option("--answer", "asks", is_flag=True, help="Ask for the answer to each question, and give it.")
@click.option("--watch", is_flag=True, help="Go on, and ring the bell for what is new, until Ctrl-C.")
@json_option
def needs_you(roots: tuple[str, ...], homes: tuple[str, ...], asks: bool, watch: bool, as_json: bool) -> int:
    """Show what waits for you: questions, problems and mail.

    Of the teams of agents and of the kingdoms that are here, urgent ones first, each with the command for it. --root
    and --home may be given more than once. Ends with 1 if nothing waits.

    \b
    Examples:
      pabal needs-you
      pabal needs-you --answer
      pabal needs-you --home /srv/town --home /srv/village --watch
      pabal needs-you --json | jq -r .id
    """
    if asks and (watch or as_json):
        raise click.UsageError("--answer goes with neither --watch nor --json")
    shown: set[tuple[str, str, str]] = set()
    warned: set[str] = set()

    def warn(text: str) -> None:
        if text not in warned:
            warned.add(text)
            click.echo(text, err=True)

    first = True
    while True:
        with ExitStack() as stack:
            found = [
                each
                for each in _all(roots, homes, stack, warn)
                if (each.place, each.need.kind, each.need.id) not in shown
            ]
            for each in found:
                click.echo(json_text(each.need._asdict()) if as_json else "\n".join(_lines(each.need)))
                if asks and each.need.kind == "question":
                    _ask(each)
        if not watch:
            return Exit.DONE if found else Exit.NOTHING
        if found and not first and sys.stdout.isatty():
            click.echo("\a", nl=False)
        first = False
        shown |= {(each.place, each.need.kind, each.need.id) for each in found}
        sys.stdout.flush()
        time.sleep(_EVERY)


def _ask(waiting: _Waiting) -> None:
    """Ask for an answer until it is accepted; an empty one leaves the question open."""
    while text := click.prompt("    answer (nothing: later)", default="", show_default=False).strip():
        try:
            waiting.answer(text)
        except (InvalidInput, MessageUnknown) as exc:  # no such choice, or another person was first
            click.echo(clean(f"    {exc}"))
        else:
            click.echo("    answered")
            return


def _all(roots: Sequence[str], homes: Sequence[str], stack: ExitStack, warn: Callable[[str], None]) -> list[_Waiting]:
    from pabal.apps.needs import in_order

    found = [*_of_teams(roots, stack, warn), *_of_kingdoms(homes, stack)]
    if not found:
        raise StoreMissing("no team and no kingdom here: give --root or --home, or make one with `pabal ignite init`")
    every = [each for place in found for each in place]
    order = {id(need): place for place, need in enumerate(in_order(each.need for each in every))}
    return sorted(every, key=lambda each: order[id(each.need)])


def _of_teams(roots: Sequence[str], stack: ExitStack, warn: Callable[[str], None]) -> Iterator[list[_Waiting]]:
    from pabal.apps.ignite.conversation import reply
    from pabal.apps.ignite.people import count_more, needs_of
    from pabal.apps.ignite.workspace import Workspace, find_root, is_made

    given = os.environ.get("IGNITE_ROOT")
    here = Path(given) if given else find_root(Path.cwd())
    for root in roots or ([str(here)] if here is not None and is_made(here) else []):
        workspace = stack.enter_context(Workspace.open(Path(root), warn=lambda text: warn(f"warning: {text}")))
        needs = needs_of(workspace, options=f" --root {shlex.quote(root)}" if roots else "")
        if more := count_more(workspace, needs):
            warn(f"{more} more messages wait; `pabal ignite done ID` takes one out of the list")

        def answer(text: str, need: Need, workspace: Workspace = workspace) -> object:
            return reply(workspace, need.id, text)

        yield [_waiting(root, "", need, answer) for need in needs]


def _of_kingdoms(homes: Sequence[str], stack: ExitStack) -> Iterator[list[_Waiting]]:
    from pabal.apps.kingdom.envoy.questions import Questions
    from pabal.apps.kingdom.home import Home
    from pabal.apps.kingdom.needs import needs_of

    here = ["."] if Home.is_at(Path(".")) else []
    for home in homes or [each for each in [os.environ.get("KINGDOM_BASE_DIR")] if each] or here:
        kingdom = stack.enter_context(Home.open(Path(home), variables=variables_of(Path(home))))

        def answer(text: str, need: Need, kingdom: Home = kingdom) -> object:
            return Questions(kingdom).answer(need.id, text, responder=getpass.getuser(), via="terminal")

        yield [
            _waiting(home, f"--home {shlex.quote(home)}" if homes else "", need, answer) for need in needs_of(kingdom)
        ]


def _waiting(place: str, option: str, need: Need, answer: Callable[[str, Need], object]) -> _Waiting:
    named = need._replace(answer=f"{need.answer} {option}".strip())
    return _Waiting(place, named, lambda text: answer(text, named))


def _lines(need: Need) -> list[str]:
    urgent = "  urgent" if need.urgent else ""
    expires = f"  {'closes ' + ago(need.expires_at) if need.expires_at else ''}".rstrip()
    lines = [f"{_KINDS[need.kind]}  {clean(shown_name(need.sender))}  {ago(need.at)}{urgent}{expires}"]
    lines += [f"    {clean(line)}" for line in need.text.splitlines()]
    lines += [f"      {number}. {clean(option)}" for number, option in enumerate(need.options, 1)]
    return [*lines, f"    {clean(need.answer)}"]
