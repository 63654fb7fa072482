"""`pabal ignite reserve | reservations | release`: which agent works on which files."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pabal.cli.exits import Exit
from pabal.cli.ignite_session import command, opened, own_name
from pabal.cli.session import json_option
from pabal.cli.text import clean, json_text, short_path, span, table
from pabal.cli.values import lasting
from pabal.errors import InvalidInput
from pabal.names import shown_name

if TYPE_CHECKING:
    from pabal.apps.ignite.reservations import Reservation
    from pabal.apps.ignite.workspace import Workspace

_agent_option = click.option("--agent", metavar="AGENT", help="Whose; IGNITE_AGENT by default, else user.")


@command("reserve")
@click.argument("patterns", metavar="PATTERN...", nargs=-1, required=True)
@_agent_option
@click.option("--ttl", type=lasting, default="1h", show_default=True, metavar="TIME", help="For how long.")
@click.option("--exclusive", is_flag=True, help="No other agent may have reserved one of these files.")
@click.option("--reason", default="", metavar="TEXT", help="What for, for the others.")
@json_option
def reserve(
    patterns: tuple[str, ...], agent: str | None, ttl: float, exclusive: bool, reason: str, as_json: bool
) -> int:
    """Reserve files, and tell the agents that have them too.

    Advisory: nothing is locked. A PATTERN is a path from here, with * and ** as in 'src/api/**'; a folder means all
    in it. Ends with 1, and reserves nothing, if another agent has one of the files and one of both is exclusive.
    Reserving again renews.

    \b
    Examples:
      pabal ignite reserve 'src/api/**'
      pabal ignite reserve src/db --exclusive --ttl 30m --reason migration
    """
    from pabal.apps.ignite.reservations import Reservations

    with opened() as workspace:
        name = _own(workspace, agent)
        wanted = [_from_top(workspace, pattern) for pattern in patterns]
        answer = Reservations(workspace).reserve(name, wanted, seconds=ttl, exclusive=exclusive, reason=reason)
    if as_json:
        lists = {"reserved": [_document(each) for each in answer.mine]}
        click.echo(json_text({**lists, "overlaps": [_document(each) for each in answer.overlaps]}))
    else:
        for each in answer.mine:
            kind = "exclusive" if each.exclusive else "shared"
            click.echo(f"reserved {clean(each.pattern)} for {span(ttl)}, {kind}")
        for each in answer.overlaps:
            click.echo(_line(each), err=True)
        if not answer.granted:
            click.echo("not reserved; the agents above were told that you wait", err=True)
    return Exit.DONE if answer.granted else Exit.NOTHING


@command("reservations")
@click.argument("paths", metavar="[PATTERN]...", nargs=-1)
@click.option("--agent", metavar="AGENT", help="Only those of this agent.")
@click.option("--staged", is_flag=True, help="Warn of files in the next commit that others have reserved.")
@click.option("--install-hook", is_flag=True, help="Let git do that before each commit.")
@click.option("--remove-hook", is_flag=True, help="Remove that hook.")
@json_option
def reservations(
    paths: tuple[str, ...], agent: str | None, staged: bool, install_hook: bool, remove_hook: bool, as_json: bool
) -> int:
    """List who has reserved which files.

    With PATTERN only those that share a file with it. Ends with 1 if there are none.

    \b
    Examples:
      pabal ignite reservations
      pabal ignite reservations src/api/users.py
      pabal ignite reservations --install-hook
    """
    from pabal.apps.ignite.reservations import Reservations

    with opened() as workspace:
        if install_hook or remove_hook:
            return _hook(workspace, remove=remove_hook)
        kept = Reservations(workspace)
        if staged:
            return _warn(kept.touched(_staged(), but=workspace.team.filter_of(own_name() or "user")))
        found = kept.overlapping([_from_top(workspace, path) for path in paths]) if paths else kept.all()
        found = [each for each in found if not agent or each.agent == workspace.team.recipient_of(agent)]
    if as_json:
        for each in found:
            click.echo(json_text(_document(each)))
    elif found:
        head = ("agent", "files", "kind", "since", "left", "reason")
        click.echo("\n".join(table(head, [_row(each) for each in found], right="   rr")))
    return Exit.DONE if found else Exit.NOTHING


@command("release")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@_agent_option
def release(patterns: tuple[str, ...], agent: str | None) -> int:
    """End reservations before they expire.

    All of the agent, or those of these patterns. Ends with 1 if there were none.

    \b
    Examples:
      pabal ignite release
      pabal ignite release 'src/api/**' --agent architect
    """
    from pabal.apps.ignite.reservations import Reservations

    with opened() as workspace:
        wanted = [_from_top(workspace, pattern) for pattern in patterns]
        ended = Reservations(workspace).release(_own(workspace, agent), wanted)
    for each in ended:
        click.echo(f"released {clean(each.pattern)}")
    return Exit.DONE if ended else Exit.NOTHING


def _own(workspace: Workspace, given: str | None) -> str:
    return workspace.team.recipient_of(given or own_name() or "user")


def _from_top(workspace: Workspace, pattern: str) -> str:
    """Return a pattern that was given from the current folder as one from the top of the project."""
    here = Path.cwd()
    top = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), workspace.root.parent)
    path = os.path.relpath(os.path.join(here, pattern), top)
    if path == ".." or path.startswith("../"):
        raise InvalidInput(f"{pattern!r:.60} is not in the project {short_path(top)}")
    return "**" if path == "." else path


def _line(each: Reservation) -> str:
    kind = "exclusively" if each.exclusive else "too"
    reason = f": {clean(each.reason)}" if each.reason else ""
    left = span(each.until - time.time())
    return f"{shown_name(each.agent)} has reserved {clean(each.pattern)} {kind}, for {left} more{reason}"


def _row(each: Reservation) -> tuple[str, ...]:
    kind, now = "exclusive" if each.exclusive else "shared", time.time()
    spans = (span(now - each.since), span(each.until - now))
    return (shown_name(each.agent), clean(each.pattern), kind, *spans, clean(each.reason))


def _document(each: Reservation) -> dict[str, object]:
    return {name: getattr(each, name) for name in ("agent", "pattern", "exclusive", "reason", "since", "until")}


def _staged() -> list[str]:
    """Return the files of the next commit, from the top of the project."""
    names = _git("diff", "--cached", "--name-only", "--no-renames", "-z").split("\0")
    return [name for name in names if name]


def _warn(found: list[Reservation]) -> int:
    for each in found:
        reason = f" ({clean(each.reason)})" if each.reason else ""
        click.echo(
            f"pabal: {shown_name(each.agent)} has reserved {clean(each.pattern)}{reason}, and this commit changes it",
            err=True,
        )
    return Exit.DONE


def _hook(workspace: Workspace, *, remove: bool) -> int:
    from pabal.apps.ignite.reservations import with_hook, without_hook
    from pabal.durable import make_dirs, replace_whole

    link = Path(_git("rev-parse", "--git-path", "hooks").rstrip("\n")).absolute() / "pre-commit"
    path = Path(os.path.realpath(link))  # a project may keep its hooks elsewhere, and link to them
    before = path.read_text("utf-8", "surrogateescape") if path.exists() else ""
    after = without_hook(before) if remove else with_hook(before, str(workspace.root))
    if after == before:
        click.echo(f"{short_path(path)} stays as it is")
    elif after:
        make_dirs(path.parent)
        mode = path.stat().st_mode & 0o777 | 0o111 if path.exists() else 0o755
        replace_whole(path, after.encode("utf-8", "surrogateescape"), mode=mode)
        shown = "".join(f"{clean(line)}\n" for line in after.splitlines())
        click.echo(f"{short_path(path)}:\n{shown}", nl=False)
    else:
        path.unlink()
        click.echo(f"removed {short_path(path)}")
    return Exit.DONE


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, check=False, timeout=60)
    except FileNotFoundError as exc:
        raise InvalidInput("git is not installed") from exc
    if done.returncode:
        raise InvalidInput(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()[:200]}")
    return done.stdout.decode("utf-8", "surrogateescape")
