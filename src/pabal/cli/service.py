"""`pabal install-service`: a systemd unit that keeps a manager running."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from pabal.cli.config import config_option, loaded, root_option

_UNIT = """\
[Unit]
Description=Pabal manager of {root}
Documentation=https://pypi.org/project/pabal/

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
WorkingDirectory={folder}
Restart=always
RestartSec=1
# A loop that finishes no pass for so long hangs: it is ended and started again.
WatchdogSec=60
TimeoutStopSec=30
UMask=0077
NoNewPrivileges=yes
LimitNOFILE=65536

[Install]
WantedBy=default.target
"""


@click.command("install-service")
@click.option("--user", is_flag=True, help="For your own user, no root needed.")
@click.option("--name", default="pabal", show_default=True, metavar="NAME", help="What the service is called.")
@click.option("--show", is_flag=True, help="Only print the unit.")
@root_option
@config_option
def install_service(user: bool, name: str, show: bool, root: Path | None, path: Path | None) -> None:
    """Write a systemd unit that runs `pabal up` and keeps it running.

    The configuration is checked first. The unit goes to ~/.config/systemd/user; a manager that hangs or dies is started
    again. For a service of the whole machine print it with --show and see docs/operations.md.

    \b
    Examples:
      pabal install-service --user --root ~/pabal
      pabal install-service --show --config /etc/pabal/pabal.toml
    """
    found = loaded(path, root)
    arguments = [str(Path(sys.executable).parent / "pabal"), "up", "--root", str(found.root)]
    if found.file is not None:
        arguments += ["--config", os.path.abspath(found.file)]
    unit = _UNIT.format(
        root=_escaped(str(found.root)),
        command=" ".join(map(_quoted, arguments)),
        folder=_escaped(str(Path.cwd())),
    )
    if show:
        click.echo(unit, nl=False)
        return
    if not user:
        raise click.UsageError("say --user for a service of your own, or --show to print the unit")
    place = _folder() / f"{name}.service"
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_suffix(".tmp")
    draft.write_text(unit)
    draft.chmod(0o644)
    draft.rename(place)
    click.echo(f"wrote {place}")
    click.echo("\nNext:")
    click.echo(f"  systemctl --user daemon-reload\n  systemctl --user enable --now {name}")
    click.echo(f"  journalctl --user -u {name} -f")
    click.echo("  loginctl enable-linger    # so that it runs while you are not logged in")


def _folder() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(home) / "systemd" / "user"


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    escaped = _escaped(text).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{escaped}"' if any(char in escaped for char in " \t\"'\\$;") else escaped
