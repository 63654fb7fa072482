"""`pabal ignite status | top | logs`: how a team is."""

from __future__ import annotations

import os
import select
import shutil
import sys
import time
from collections import deque
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from pabal.cli.exits import Exit, NotFound
from pabal.cli.ignite_session import command, opened, some_agent_argument
from pabal.cli.screen import short
from pabal.cli.session import json_option
from pabal.cli.text import clean, clip, json_text, span, table
from pabal.cli.values import lasting
from pabal.errors import PabalError
from pabal.watch import CLOSE_WRITE, MOVED_TO, PathWatch

if TYPE_CHECKING:
    from pabal.ignite.health import Load, Report
    from pabal.ignite.team import Team

_HEAD = ("agent", "is", "since", "waiting", "oldest", "retry", "in hand", "done", "dead", "unread", "with")
_MODIFY = 0x2
_REST = 10  # lines of the screen that are not agents


@command("status")
@json_option
def status(as_json: bool) -> None:
    """Show who serves the team, each agent and its mail.

    \b
    Examples:
      pabal ignite status
      pabal ignite status --json | jq .agents
    """
    from pabal.ignite.health import report_of

    with opened() as workspace:
        report, problems = report_of(workspace), _unwakeable(workspace.team)
        if as_json:
            click.echo(json_text({**_document(report), "problems": problems}))
            return
        for line in (*_lines(report), *(f"! {clean(problem)}" for problem in problems)):
            click.echo(line)


def _unwakeable(team: Team) -> list[str]:
    """Name the ways to wake that `up` would refuse, each with one of its agents."""
    from pabal.ignite.wakes import load

    found = []
    for kind, name in {agent.wake: name for name, agent in team.agents.items()}.items():
        try:
            load(kind)
        except PabalError as exc:
            found.append(f"agents.{name}: {exc}")
    return found


@command("top")
@click.option("--every", type=lasting, default="1", show_default=True, metavar="TIME", help="How often to look.")
def top(every: float) -> None:
    """Show the team as it works, until Ctrl-C or q.

    \b
    Examples:
      pabal ignite top
      pabal ignite top --every 5s
    """
    from pabal.ignite.health import report_of

    with opened() as workspace:
        if not sys.stdout.isatty():
            click.echo("\n".join(_lines(report_of(workspace))))
            return
        with _whole_screen():
            while True:
                _draw(_lines(report_of(workspace), shutil.get_terminal_size().lines - _REST))
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
            raise NotFound(f"{short(path)} is not there: nothing was printed so far")
        path.touch(0o600)
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
    """Lay out the whole report; where only `room` lines are left for agents, those with nothing to do are left out."""
    loads = report.loads
    if room is not None and len(loads) > room:
        loads = [load for load in loads if _is_busy(report, load)][: max(1, room - 1)]
    lines = [*_summary(report), ""]
    lines += table(_HEAD, [_row(report, load) for load in loads], right="   rrrrrrr") if loads else []
    if len(loads) < len(report.loads):
        lines.append(f"and {len(report.loads) - len(loads)} more")
    if report.dead_letters:
        letters = f"{report.dead_letters} dead letter{'s' * (report.dead_letters > 1)}"
        lines += ["", f"{letters}: `pabal ignite dlq` lists them, `pabal ignite replay ID` tries again"]
    return lines


def _is_busy(report: Report, load: Load) -> bool:
    known = report.presences.get(load.name)
    waits = load.ready + load.delayed + load.inflight + load.dead + load.corrupt
    return waits > 0 or (known is not None and known.presence != "idle")


def _summary(report: Report) -> list[str]:
    beat = report.pulse.beat
    if report.monitor is None:
        waiting = sum(load.ready + load.delayed for load in report.loads)
        told = f"nobody serves it: {waiting} messages wait; start `pabal ignite up`"
    elif beat is None or report.pulse.state == "gone":
        told = f"starting, pid {report.monitor}"
    else:
        told = f"{report.pulse.state}, pid {report.monitor}, up {span(beat.last - beat.started + report.pulse.silent)}"
    busy = sum(load.inflight > 0 for load in report.loads)
    return [
        f"workspace  {short(report.root)}",
        f"monitor    {told}",
        f"agents     {len(report.loads)}, {busy} with a message in hand",
    ]


def _row(report: Report, load: Load) -> tuple[str, ...]:
    known = report.presences.get(load.name) if report.monitor is not None else None
    counts = (load.delayed, load.inflight, load.done, load.dead, load.corrupt)
    return (
        load.name,
        known.presence if known else "-",
        span(time.time() - known.since) if known else "",
        str(load.ready or ""),
        "" if load.oldest is None else span(load.oldest),
        *(str(count or "") for count in counts),
        clean(known.busy_with.partition(" ")[0]) if known else "",
    )


def _document(report: Report) -> dict[str, Any]:
    return {
        "root": str(report.root),
        "monitor": {"pid": report.monitor, "state": report.pulse.state if report.monitor else "gone"},
        "deadLetters": report.dead_letters,
        "agents": [
            {**load._asdict(), "presence": known._asdict() if (known := report.presences.get(load.name)) else None}
            for load in report.loads
        ],
    }


class _whole_screen:
    """Draws on a screen of its own and gives the old one back."""

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
    sys.stdout.write(f"\x1b[H{text}\x1b[J")
    sys.stdout.flush()


def _asked_to_end(seconds: float) -> bool:
    if not sys.stdin.isatty():
        time.sleep(seconds)
        return False
    ready, _, _ = select.select([0], [], [], seconds)
    return bool(ready) and os.read(0, 100) in (b"q", b"Q", b"\x1b", b"")
