"""`pabal ignite status | top | logs | dlq | replay`: the state of a team, its logs and its dead messages."""

from __future__ import annotations

import os
import select
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from pabal.cli.exits import Exit, NotFound
from pabal.cli.ignite_session import command, opened, some_agent_argument
from pabal.cli.session import json_option
from pabal.cli.text import ago, clean, clip, json_text, short_path, span, table
from pabal.cli.values import lasting
from pabal.errors import MessageUnknown, PabalError
from pabal.filesystem import touch
from pabal.names import shown_name
from pabal.watch import CLOSE_WRITE, MOVED_TO, PathWatch

if TYPE_CHECKING:
    from pabal.apps.ignite.activity import Activity
    from pabal.apps.ignite.dead_letters import DeadLetter
    from pabal.apps.ignite.health import Report
    from pabal.apps.ignite.mail_store import Load
    from pabal.apps.ignite.team import Team
    from pabal.apps.ignite.workspace import Workspace
    from pabal.apps.needs import Need


_HEAD = ("agent", "is", "since", "waiting", "oldest", "retry", "in hand", "done", "dead", "unread", "with")
_TOP = ("agent", "is", "since", "waiting", "oldest", "with", "title", "last line")
_WIDE = 32  # columns of a subject or a title
_MODIFY = 0x2
_REST = 10  # lines of the screen that are not agents


@command("status")
@json_option
def status(as_json: bool) -> None:
    """Show the monitor of the team, each agent and its mail.

    \b
    Examples:
      pabal ignite status
      pabal ignite status --json | jq .agents
    """
    from pabal.apps.ignite.health import report_of
    from pabal.apps.ignite.people import count_more, needs_of

    with opened() as workspace:
        report, problems = report_of(workspace), _unwakeable(workspace.team)
        if as_json:
            click.echo(json_text({**report.document(), "problems": problems}))
            return
        needs = needs_of(workspace)
        about = _needs_line(needs, count_more(workspace, needs))
        for line in (*_lines(report), *about, *(f"! {clean(problem)}" for problem in problems)):
            click.echo(line)


def _unwakeable(team: Team) -> list[str]:
    """Return the wake methods that `up` would refuse, each with one of its agents."""
    from pabal.apps.ignite.wakes import load

    found = []
    for kind, name in {agent.wake: name for name, agent in team.agents.items()}.items():
        try:
            load(kind)
        except PabalError as exc:
            found.append(f"agents.{name}: {exc}")
    return found


@command("top")
@click.option("--every", type=lasting, default="1", show_default=True, metavar="TIME", help="How often to refresh.")
@click.option("--once", is_flag=True, help="Print it once, for scripts.")
def top(every: float, once: bool) -> None:
    """Show the team as it works, until Ctrl-C or q.

    Of each agent: what it does, the title and the last line of its output, what waits and since when. Printed once if
    the output is no terminal.

    \b
    Examples:
      pabal ignite top
      pabal ignite top --every 5s
      pabal ignite top --once
    """
    from pabal.apps.ignite.activity import Activities
    from pabal.apps.ignite.people import count_more, needs_of

    with opened() as workspace:
        activities = Activities(workspace, os.environ)

        def lines(room: int | None = None) -> list[str]:
            needs = needs_of(workspace)
            return _top_lines(*activities.look(), _needs_line(needs, count_more(workspace, needs)), room)

        if once or not sys.stdout.isatty():
            click.echo("\n".join(lines()))
            return
        with _whole_screen():
            while True:
                _draw(lines(shutil.get_terminal_size().lines - _REST))
                if _asked_to_end(every):
                    return


@command("logs")
@some_agent_argument
@click.option(
    "-n", "--lines", type=click.IntRange(0), default=20, show_default=True, help="How many of the last lines."
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written from now on.")
@click.pass_context
def logs(ctx: click.Context, agent: str | None, lines: int, follow: bool) -> None:
    """Show what an agent's commands printed, or the monitor's log.

    \b
    Examples:
      pabal ignite logs
      pabal ignite logs ignitian_1 -n 100 -f
    """
    with opened() as workspace:
        name = f"{workspace.team.name_of(agent)}.log" if agent else "queue_monitor.jsonl"
        path = workspace.root / "logs" / name
    if not path.exists():
        if not follow:
            raise NotFound(f"{short_path(path)} is not there: nothing was printed so far")
        touch(path)
    with open(path, "rb") as file:
        last = deque(file, maxlen=lines)
        for line in last:
            _print(line)
        if not follow:
            ctx.exit(Exit.DONE if last else Exit.NOTHING)
        with closing(PathWatch({str(path): _MODIFY | CLOSE_WRITE, str(path.parent): MOVED_TO})) as watch:
            while True:
                watch.wait(1.0)
                for line in file:
                    _print(line)


def _print(line: bytes) -> None:
    click.echo(clean(line.decode(errors="replace").rstrip("\n")))


def _lines(report: Report, room: int | None = None) -> list[str]:
    """Lay out the whole report. If `room` lines are not enough for all agents, idle ones are left out."""
    loads = report.loads
    if room is not None and len(loads) > room:
        loads = [load for load in loads if _is_busy(report, load)][: max(1, room - 1)]
    lines = [*_summary(report), ""]
    lines += table(_HEAD, [_row(report, load) for load in loads], right="   rrrrrrr") if loads else []
    lines += [text for load in report.loads if (text := _away(report, load))]
    if len(loads) < len(report.loads):
        lines.append(f"and {len(report.loads) - len(loads)} more")
    if report.dead_letters:
        found = f"{report.dead_letters} dead letter{'s' * (report.dead_letters > 1)}"
        lines += ["", f"{found}: `pabal ignite dlq` lists them, `pabal ignite replay ID` tries again"]
    return lines


def _top_lines(report: Report, activities: Mapping[str, Activity], needs: Sequence[str], room: int | None) -> list[str]:
    """Lay out what the agents do, in at most `room` lines of agents: then idle ones are left out."""
    loads = report.loads
    if room is not None and len(loads) > room:
        loads = [load for load in loads if _is_busy(report, load)][: max(1, room - 1)]
    lines = [*_summary(report), ""]
    lines += table(_TOP, [_top_row(report, load, activities[load.name]) for load in loads], right="  rrr")
    if len(loads) < len(report.loads):
        lines.append(f"and {len(report.loads) - len(loads)} more")
    lines += needs
    if report.dead_letters:
        lines += ["", f"{report.dead_letters} dead: `pabal ignite dlq`"]
    return lines


def _needs_line(needs: Sequence[Need], more: int) -> list[str]:
    if not needs:
        return []
    return ["", f"{len(needs) + more} for you, the oldest {ago(min(need.at for need in needs))}: `pabal needs-you`"]


def _top_row(report: Report, load: Load, activity: Activity) -> tuple[str, ...]:
    known = report.presences.get(load.name) if report.monitor is not None else None
    waiting = load.ready + load.delayed
    title = activity.title if activity.title not in ("", shown_name(load.name), os.uname().nodename) else ""
    return (
        shown_name(load.name),
        known.presence if known else "-",
        span(time.time() - known.since) if known else "",
        f"{waiting or ''}{'!' * min(activity.urgent, 3)}",
        "" if load.oldest is None else span(load.oldest),
        clip(clean(activity.subject), _WIDE),
        clip(clean(title), _WIDE),
        clean(activity.line),
    )


def _away(report: Report, load: Load) -> str:
    """Return a line about an agent that is away while mail waits for it."""
    known = report.presences.get(load.name)
    waiting = load.ready + load.delayed + load.inflight
    if report.monitor is None or known is None or known.presence != "away" or not waiting:
        return ""
    return (
        f"{shown_name(load.name)}: away, {waiting} waiting since {time.strftime('%H:%M', time.localtime(known.since))}"
    )


def _is_busy(report: Report, load: Load) -> bool:
    known = report.presences.get(load.name)
    waits = load.ready + load.delayed + load.inflight + load.dead + load.corrupt
    return waits > 0 or (known is not None and known.presence != "idle")


def _summary(report: Report) -> list[str]:
    beat = report.pulse.beat
    if report.monitor is None:
        waiting = sum(load.ready + load.delayed for load in report.loads)
        monitor = f"nobody serves it: {waiting} messages wait; start `pabal ignite up`"
    elif beat is None or report.pulse.state == "gone":
        monitor = f"starting, pid {report.monitor}"
    else:
        monitor = (
            f"{report.pulse.state}, pid {report.monitor}, up {span(beat.last - beat.started + report.pulse.silent)}"
        )
    busy = sum(load.inflight > 0 for load in report.loads)
    return [
        f"workspace  {short_path(report.root)}",
        f"monitor    {monitor}",
        f"agents     {len(report.loads)}, {busy} with a message in hand",
    ]


def _row(report: Report, load: Load) -> tuple[str, ...]:
    known = report.presences.get(load.name) if report.monitor is not None else None
    counts = (load.delayed, load.inflight, load.done, load.dead, load.corrupt)
    return (
        shown_name(load.name),
        known.presence if known else "-",
        span(time.time() - known.since) if known else "",
        str(load.ready or ""),
        "" if load.oldest is None else span(load.oldest),
        *(str(count or "") for count in counts),
        clean(known.busy_with.partition(" ")[0]) if known else "",
    )


class _whole_screen:
    """Draws on the alternate screen of the terminal and restores the old one at the end."""

    def __enter__(self) -> None:
        sys.stdout.write("\x1b[?1049h\x1b[?25l")
        self._before: list[Any] | None = None
        if sys.stdin.isatty():
            import termios
            import tty

            self._before = termios.tcgetattr(0)
            tty.setcbreak(0)

    def __exit__(self, *exc: object) -> None:
        if self._before is not None:
            import termios

            termios.tcsetattr(0, termios.TCSADRAIN, self._before)
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()


def _draw(lines: list[str]) -> None:
    size = shutil.get_terminal_size()
    shown = [*lines[: size.lines - 2], "", f"{time.strftime('%H:%M:%S')}  q ends"]
    text = "\r\n".join(f"{clip(line, size.columns - 1)}\x1b[K" for line in shown)
    # In place, and in one step where the terminal can: nothing flickers.
    sys.stdout.write(f"\x1b[?2026h\x1b[H{text}\x1b[J\x1b[?2026l")
    sys.stdout.flush()


def _asked_to_end(seconds: float) -> bool:
    if not sys.stdin.isatty():
        time.sleep(seconds)
        return False
    ready, _, _ = select.select([0], [], [], seconds)
    return bool(ready) and os.read(0, 100) in (b"q", b"Q", b"\x1b", b"")


@command("dlq")
@some_agent_argument
@json_option
@click.pass_context
def dlq(ctx: click.Context, agent: str | None, as_json: bool) -> None:
    """List the messages that were given up or could not be read.

    \b
    Examples:
      pabal ignite dlq
      pabal ignite dlq ignitian_1 --json
    """
    with opened() as workspace:
        found = list(_dead_letters(workspace, agent))
    if as_json:
        for letter in found:
            click.echo(json_text(letter._asdict()))
    elif found:
        head = ("agent", "type", "id", "state", "tries", "when", "reason")
        rows = [
            (
                shown_name(g.queue),
                clean(g.type),
                clean(g.id),
                g.state,
                str(g.attempt or ""),
                ago(g.at),
                clean(f"{g.code}: {g.reason}"),
            )
            for g in found
        ]
        click.echo("\n".join(table(head, rows, right="    r")))
    ctx.exit(Exit.DONE if found else Exit.NOTHING)


@command("replay")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--agent", metavar="AGENT", help="Of this agent only.")
@click.option("--all", "every", is_flag=True, help="Everything that died.")
def replay(ids: tuple[str, ...], agent: str | None, every: bool) -> None:
    """Try dead messages again, with no tries counted.

    \b
    Examples:
      pabal ignite replay 1770263544.12345.abcdef
      pabal ignite replay --all --agent ignitian_1
    """
    if bool(ids) == every:
        raise click.UsageError("give the ids of messages, or --all")
    with opened() as workspace:
        wanted: dict[str, list[str]] = {}
        for letter in _dead_letters(workspace, agent):
            if letter.state == "dead" and (every or letter.id in ids):
                wanted.setdefault(letter.queue, []).append(letter.id)
        revived = [id for queue, some in wanted.items() for id in workspace.queue(queue).revive(some)]
        _remove_dead_letters(workspace, set(revived))
    for id in revived:
        click.echo(id)
    missing = [id for id in ids if id not in revived]
    if missing:
        raise MessageUnknown(f"not among the dead: {', '.join(missing[:5])}; `pabal ignite dlq` lists them")


def _dead_letters(workspace: Workspace, agent: str | None) -> Iterator[DeadLetter]:
    from pabal.apps.ignite.dead_letters import dead_letters_of

    names = [workspace.team.name_of(agent)] if agent else workspace.layout.queues(workspace.root)
    for name in sorted(names):
        yield from dead_letters_of(workspace, name)


def _remove_dead_letters(workspace: Workspace, ids: set[str]) -> None:
    """Remove the dead letters of messages that were revived."""
    from pabal.apps.ignite.layout import DEAD_LETTERS
    from pabal.store import State

    bodies = {
        entry.id: entry.message.body
        for entry in workspace.queue(DEAD_LETTERS).entries(State.READY)
        if entry.message is not None
    }
    dead = [id for id, body in bodies.items() if isinstance(body, dict) and body.get("original_id") in ids]
    workspace.store.purge(DEAD_LETTERS, State.READY, ids=dead, limit=len(dead))
