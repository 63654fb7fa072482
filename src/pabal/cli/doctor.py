"""`pabal doctor`: check a store, mend what can be mended, say what was done."""

from __future__ import annotations

import click

from pabal.cli.exits import Exit
from pabal.cli.session import command, json_option, opened
from pabal.cli.text import clean, fact_lines, json_text
from pabal.store import Checkable, Finding


@command("doctor")
@click.option("--repair", is_flag=True, help="Mend what is found. Never revives what is dead.")
@json_option
def doctor(repair: bool, as_json: bool) -> None:
    """Look for what crashes and strangers leave behind in a store.

    Ends with 1 if something is wrong and was not mended.

    \b
    Examples:
      pabal doctor
      pabal doctor --repair

    --json: where, problem, remedy, repaired.
    """
    with opened() as mq:
        found = mq.store.check(repair=repair) if isinstance(mq.store, Checkable) else []
        facts = mq.store.facts()
    for finding in found:
        click.echo(json_text(finding._asdict()) if as_json else _line(finding))
    left = sum(not finding.repaired for finding in found)
    if not as_json:
        click.echo(_summary(len(found), left, repair=repair))
        for line in ["", *fact_lines(facts)]:
            click.echo(line)
    if left:
        click.get_current_context().exit(Exit.NOTHING)


def _line(finding: Finding) -> str:
    done = "mended" if finding.repaired else "to do"
    return clean(f"{finding.where}: {finding.problem}") + f"\n    {done}: {clean(finding.remedy)}"


def _summary(found: int, left: int, *, repair: bool) -> str:
    if not found:
        return "all is well"
    hint = "" if repair or not left else "; pabal doctor --repair mends what can be mended"
    return f"{found} found, {found - left} mended, {left} left{hint}"
