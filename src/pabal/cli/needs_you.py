"""`pabal needs-you`: what waits for a person, of all applications, and the answers to it."""

from __future__ import annotations

import getpass
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from pabal.cli.exits import Exit
from pabal.cli.places import places_here
from pabal.cli.session import json_option
from pabal.cli.text import ago, clean, json_text
from pabal.errors import InvalidInput, MessageUnknown, StoreMissing
from pabal.names import shown_name

if TYPE_CHECKING:
    from pabal.apps.needs import Need, Place

_EVERY = 1.0  # seconds
_KINDS = {"question": "QUESTION", "mail": "MAIL", "problem": "PROBLEM"}


class _Waiting(NamedTuple):
    """Something that waits for a person, and where it is."""

    place: Place
    need: Need

    @property
    def key(self) -> tuple[str, str, str]:
        return self.place.path, self.need.kind, self.need.id


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
        found = [each for each in _all(roots, homes, warn) if each.key not in shown]
        for each in found:
            click.echo(json_text(each.need._asdict()) if as_json else "\n".join(_lines(each.need)))
            if asks and each.need.kind == "question":
                _ask(each)
        if not watch:
            return Exit.DONE if found else Exit.NOTHING
        if found and not first and sys.stdout.isatty():
            click.echo("\a", nl=False)
        first = False
        shown |= {each.key for each in found}
        sys.stdout.flush()
        time.sleep(_EVERY)


def _ask(waiting: _Waiting) -> None:
    """Ask for an answer until it is accepted; an empty one leaves the question open."""
    while text := click.prompt("    answer (nothing: later)", default="", show_default=False).strip():
        try:
            waiting.place.answer(waiting.need.id, text, person=getpass.getuser(), via="terminal")
        except (InvalidInput, MessageUnknown) as exc:  # no such choice, or another person was first
            click.echo(clean(f"    {exc}"))
        else:
            click.echo("    answered")
            return


def _all(roots: Sequence[str], homes: Sequence[str], warn: Callable[[str], None]) -> list[_Waiting]:
    from pabal.apps.needs import in_order

    found = places_here(roots, homes, lambda text: warn(f"warning: {text}"))
    if not found:
        raise StoreMissing("no team and no kingdom here: give --root or --home, or make one with `pabal ignite init`")
    every = []
    for place in found:
        needs, more = place.needs()
        if more:
            warn(f"{more} more messages wait; `pabal ignite done ID` takes one out of the list")
        every += [_Waiting(place, need) for need in needs]
    order = {id(need): at for at, need in enumerate(in_order(each.need for each in every))}
    return sorted(every, key=lambda each: order[id(each.need)])


def _lines(need: Need) -> list[str]:
    urgent = "  urgent" if need.urgent else ""
    expires = f"  {'closes ' + ago(need.expires_at) if need.expires_at else ''}".rstrip()
    lines = [f"{_KINDS[need.kind]}  {clean(shown_name(need.sender))}  {ago(need.at)}{urgent}{expires}"]
    lines += [f"    {clean(line)}" for line in need.text.splitlines()]
    lines += [f"      {number}. {clean(option)}" for number, option in enumerate(need.options, 1)]
    return [*lines, f"    {clean(need.answer)}"]
