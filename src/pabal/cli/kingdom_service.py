"""`pabal kingdom top | install-service`: a live view, and a systemd unit."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pabal.cli.kingdom_session import command, opened
from pabal.cli.manager import escaped, quoted, unit_folder
from pabal.cli.text import clean, fitted, table
from pabal.durable import replace_whole
from pabal.errors import InvalidConfig

if TYPE_CHECKING:
    from pabal.apps.kingdom.home import Home

_SYSTEM_UNITS = Path("/etc/systemd/system")
_UNIT = """\
[Unit]
Description=Kingdom of {home}
After=network-online.target
Wants=network-online.target

[Service]
{user}ExecStart={command}
# Where soldiers find claude, codex, git and their own programs: the PATH of the shell that wrote this file.
Environment={path}
# Tokens, one NAME=value on each line. Keep the file private: chmod 600.
EnvironmentFile=-{home}/config/environment
# The kingdom stops its roles and soldiers itself.
KillMode=mixed
TimeoutStopSec={stop}
Restart=on-failure
RestartSec=2

[Install]
WantedBy={target}
"""


@command("install-service")
@click.option("--system", is_flag=True, help="For the whole machine; needs root and --user NAME.")
@click.option(
    "--user", is_flag=False, flag_value="", metavar="[NAME]", help="For your own user; with --system, who runs it."
)
@click.option("--name", default="kingdom", show_default=True, metavar="NAME", help="What the service is called.")
@click.option("--show", is_flag=True, help="Only print the unit.")
def install_service(system: bool, user: str | None, name: str, show: bool) -> None:
    """Write a systemd unit that keeps the kingdom up.

    The tokens of Slack, GitHub and Jira go into config/environment of the kingdom, one NAME=value on each line.

    \b
    Examples:
      pabal kingdom install-service --user --home ~/kingdom
      pabal kingdom install-service --system --user kingdom --home /srv/kingdom
    """
    if user and not system:
        raise click.UsageError("--user takes a name with --system only: a unit of your own user runs as yourself")
    if system and not user:
        raise click.UsageError("give --user NAME, the user that runs the service")
    if user is None and not show:
        raise click.UsageError("give --user for a service of your own, or --system --user NAME for the machine")
    with opened() as home:
        home.prepare()
        unit = _unit(home, user or "")
    if show:
        click.echo(unit, nl=False)
        return
    folder, systemctl = (_SYSTEM_UNITS, "systemctl") if system else (unit_folder(), "systemctl --user")
    place = folder / f"{name}.service"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(place, unit.encode(), mode=0o644)
    except OSError as exc:
        raise InvalidConfig(f"cannot write {exc.filename}: {exc.strerror}; print the unit with --show") from exc
    click.echo(f"wrote {place}\n\nNext:")
    click.echo(f"  {systemctl} daemon-reload\n  {systemctl} enable --now {name}")
    click.echo(f"  journalctl{'' if system else ' --user'} -u {name} -f")
    if not system:
        click.echo("  loginctl enable-linger    # so that it runs while you are not logged in")


def _unit(home: Home, user: str) -> str:
    arguments = [str(Path(sys.executable).parent / "pabal"), "kingdom", "up", "--home", str(home.root)]
    return _UNIT.format(
        home=escaped(str(home.root)),
        user=f"User={escaped(user)}\n" if user else "",
        command=" ".join(map(quoted, arguments)),
        path=quoted(f"PATH={os.environ.get('PATH', os.defpath)}"),
        stop=int(home.config.stop_seconds) + 15,
        target="multi-user.target" if user else "default.target",
    )


@command("top")
@click.option(
    "--interval", type=click.FloatRange(0.2), default=2.0, metavar="SECONDS", help="Seconds between two looks."
)
@click.option("--once", is_flag=True, help="Look once, and end.")
def top(interval: float, once: bool) -> None:
    """Watch the kingdom at work, until Ctrl-C.

    Questions that wait for you, roles, soldiers with their last line, and events that are held, with the reason.

    \b
    Examples:
      pabal kingdom top
      pabal kingdom top --once
    """
    with opened() as home:
        while True:
            lines = top_lines(home)
            if not once:
                click.echo("\x1b[2J\x1b[H", nl=False)
                lines = lines[: os.get_terminal_size().lines - 1] if sys.stdout.isatty() else lines
            for line in lines:
                click.echo(fitted(clean(line)))
            if once:
                return
            time.sleep(interval)


def top_lines(home: Home) -> list[str]:
    """Return the lines of the live view."""
    from pabal.apps.kingdom.journal import tail
    from pabal.apps.kingdom.sessions import Sessions
    from pabal.apps.kingdom.status import report, waiting_events

    found = report(home)
    lines = [f"? {question}" for question in found.questions]
    state = f"up, pid {found.up}" if found.up else "down"
    lines += [f"kingdom {state}  health {found.health}  soldiers {found.soldiers} of {found.most_soldiers}", ""]
    lines += table(["ROLE", "STATE", "LAST PASS"], [[role.name, role.state, role.since] for role in found.roles])
    rows = []
    for session in Sessions(home.root).all():
        last = [
            text
            for end in ("json", "err")
            for text in tail(home.root / "logs/sessions" / f"{session.id}.{end}", 1)
            if text.strip()
        ]
        rows.append([session.task_id, session.general, session.started_at[:19], last[-1] if last else ""])
    lines += ["", *(table(["SOLDIER OF", "GENERAL", "SINCE", "LAST LINE"], rows) or ["no soldier works"])]
    held = [[str(event["id"]), str(event["type"]), str(event["why"])] for event in waiting_events(home, 20)]
    lines += ["", *(table(["EVENT", "TYPE", "WHY IT WAITS"], held) or ["no event waits"])]
    return [*lines, *(f"! {' '.join(problem.split())}" for problem in found.problems)]
