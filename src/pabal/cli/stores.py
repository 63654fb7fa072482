"""`pabal doctor` and `pabal move`: check and repair a store, move queues to another store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from pabal.cli.exits import end_with_nothing
from pabal.cli.session import command, current_url, json_option, opened, require_known
from pabal.cli.text import Progress, clean, fact_lines, json_text
from pabal.cli.values import patience
from pabal.connect import Connection, connect
from pabal.connect import salvage as salvage_store
from pabal.errors import IndexMissing
from pabal.queues.move import Moved, move_all
from pabal.store import Adopting, Checkable, Compactable, Finding, State


@command("doctor")
@click.option("--repair", is_flag=True, help="Repair what is found. Dead messages stay dead.")
@click.option("--adopt", is_flag=True, help="Take in body files of a hybrid store that its index does not know.")
@click.option(
    "--salvage",
    metavar="TO",
    type=click.Path(path_type=Path),
    help="Copy a damaged store to TO, repair the copy, and leave the store as it is.",
)
@json_option
def doctor(repair: bool, adopt: bool, salvage: Path | None, as_json: bool) -> None:
    """Check a store for damage and for files left by crashes.

    Ends with 1 if something is wrong and was not mended. What a kill leaves behind and the store removes by itself is
    listed as ordinary.

    \b
    Examples:
      pabal doctor
      pabal doctor --repair
      pabal --url hybrid:spool doctor --adopt      its database is lost

    --json: where, problem, remedy, repaired, ordinary.
    """
    if repair + adopt + (salvage is not None) > 1:
        raise click.UsageError("--repair, --adopt and --salvage are different steps: give one of them")
    if salvage is not None:
        _salvage(salvage, as_json)
        return
    with _opened_to_adopt() if adopt else opened(damaged=True) as mq:
        if adopt:
            if not isinstance(mq.store, Adopting):
                raise click.UsageError("--adopt is for the files of a hybrid store: give its URL")
            found = mq.store.adopt()
        else:
            found = mq.store.check(repair=repair) if isinstance(mq.store, Checkable) else []
        facts = mq.store.facts()
    report(found, facts, repair=repair, as_json=as_json)


def _salvage(target: Path, as_json: bool) -> None:
    """Carry what can be read to a new store; list what was repaired and what could not be read."""
    mq, found = salvage_store(current_url(), target)
    with mq:
        counts = Counter[State]()
        for queue in mq.queues():
            counts.update(mq.store.counts(queue))
        facts = {**mq.store.facts(), "carried": ", ".join(f"{many} {state}" for state, many in counts.items() if many)}
    report([finding for finding in found if not finding.ordinary], facts, repair=True, as_json=as_json)


@contextmanager
def _opened_to_adopt() -> Iterator[Connection]:
    """Open a store that may have lost its index, but make none where there is nothing to take in."""
    try:
        mq = connect(current_url(), create=False)
    except IndexMissing:
        mq = connect(current_url())
    with mq:
        yield mq


def report(found: Sequence[Finding], facts: Mapping[str, str], *, repair: bool, as_json: bool) -> None:
    """Print what a check found; end with 1 if something is left."""
    for finding in found:
        click.echo(json_text(finding._asdict()) if as_json else _line(finding))
    left = sum(not (finding.repaired or finding.ordinary) for finding in found)
    ordinary = sum(finding.ordinary and not finding.repaired for finding in found)
    if not as_json:
        click.echo(_summary(len(found), left, ordinary, repair=repair))
        for line in ["", *fact_lines(facts)]:
            click.echo(line)
    if left:
        end_with_nothing()


def _line(finding: Finding) -> str:
    done = "mended" if finding.repaired else "ordinary" if finding.ordinary else "to do"
    return clean(f"{finding.where}: {finding.problem}") + f"\n    {done}: {clean(finding.remedy)}"


def _summary(found: int, left: int, ordinary: int, *, repair: bool) -> str:
    if not found:
        return "all is well"
    if found == ordinary:
        return f"all is well: {ordinary} ordinary leftovers, which pabal doctor --repair removes at once"
    hint = "" if repair or not left else "; pabal doctor --repair mends what can be mended"
    more = f", {ordinary} ordinary leftovers" if ordinary else ""
    return f"{found} found, {found - left - ordinary} mended, {left} left{more}{hint}"


@command("compact")
@json_option
def compact(as_json: bool) -> None:
    """Give the space of removed messages back to the file system.

    A SQLite file keeps the space of removed messages for new ones and does not shrink by itself. It may be in use:
    readers go on, writers wait. It needs as much free space as the messages take. Other stores need none of this.

    \b
    Example:
      pabal compact

    --json: before, after (bytes).
    """
    with opened() as mq:
        if not isinstance(mq.store, Compactable):
            click.echo("this store gives its space back by itself", err=True)
            return
        before, after = mq.store.compact()
    click.echo(json_text({"before": before, "after": after}) if as_json else f"{before} bytes before, {after} after")


@click.command("move")
@click.option("--from", "source", metavar="URL", required=True, help="The store that the messages are in.")
@click.option("--to", "target", metavar="URL", required=True, help="The store that they shall be in.")
@click.option("--wait", metavar="TIME", type=patience, default="0", help="Wait so long for what consumers still hold.")
@click.argument("queues", metavar="[QUEUE]...", nargs=-1)
@json_option
def move(source: str, target: str, wait: float, queues: tuple[str, ...], as_json: bool) -> None:
    """Carry queues, all if none is named, from one store to another.

    Ids, attempts, delays, dead letters and settings come along. The queues of the source are paused first and stay so.
    It may be killed at any point and started again: nothing is lost or doubled. Ends with 1 if consumers still hold
    something at the source.

    \b
    Examples:
      pabal move --from sqlite:pabal.db --to postgresql://me@host/mydb
      pabal move --from file:spool --to sqlite:pabal.db jobs --wait 60

    --json: queue, ready, delayed, dead, done, left.
    """
    left, show = 0, Progress()

    def progress(moved: Moved) -> None:
        show(f"{moved.queue}: {moved.ready + moved.delayed + moved.dead + moved.done} carried")

    with connect(source, create=False) as old, connect(target) as new:
        require_known(old, queues)
        for found in move_all(old.store, new.store, queues or old.queues(), wait=wait, progress=progress):
            click.echo(json_text(found._asdict()) if as_json else _moved_line(found))
            left += found.left
    if left:
        end_with_nothing()


def _moved_line(moved: Moved) -> str:
    carried = f"{moved.ready} ready, {moved.delayed} delayed, {moved.dead} dead, {moved.done} done"
    held = f"; {moved.left} left at the source: move again when they are settled" if moved.left else ""
    return f"{moved.queue}: {carried}{held}"
