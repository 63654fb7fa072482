"""The commands of the manager: `pabal up`, `pabal config check` and `pabal install-service`."""

from __future__ import annotations

import os
import pwd
import resource
import shutil
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from pabal.cli.exits import Exit
from pabal.cli.gateway import HEARTBEAT_VARIABLE, TOKEN_VARIABLE
from pabal.cli.session import TOPICS_VARIABLE, help_if_alone, json_option, own_argv
from pabal.cli.text import clean, json_text, redraw_line, short_path, span
from pabal.cli.work import load
from pabal.clock import SystemClock
from pabal.connect import absolute_topics
from pabal.durable import make_dirs, replace_whole
from pabal.errors import InvalidConfig
from pabal.policy.policy import document_of
from pabal.store import State

# The manager is imported when a command needs it: the other commands start faster without it.
if TYPE_CHECKING:
    from pabal.manager.config import Config
    from pabal.manager.report import Report

_MAX_FILES = 65536
_TRY = """
Try in another terminal:
  {mq} publish --queue jobs --message '{{"hello": "world"}}'
  {mq} consume --queue jobs
  {mq} ack --message-key KEY --lease-id LEASE
  {mq} status --queue jobs
  {pabal} status{url}

Ctrl-C stops it; nothing is lost, and it goes on where it was when it is started again.
"""
_UNIT = """\
[Unit]
Description=Pabal manager of {root}

[Service]
{user}Type=notify
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
{hardening}
[Install]
WantedBy={target}
"""
_WORK_UNIT = """\
[Unit]
Description=Pabal work {name}

[Service]
{user}Type=exec
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
WorkingDirectory={folder}
Restart=always
RestartSec=1
# Only the parent gets SIGTERM: it lets its processes finish what they have in hand, for 30 seconds.
KillMode=mixed
TimeoutStopSec=45
UMask=0077
NoNewPrivileges=yes
LimitNOFILE=65536

[Install]
WantedBy={target}
"""
# For a service of the machine. One of a user has no right to most of these.
_HARDENING = """\
ProtectSystem=strict
ReadWritePaths={paths}
ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
PrivateNetwork=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
CapabilityBoundingSet=
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
"""
_NO_NETWORK = ("PrivateNetwork=yes\n", "RestrictAddressFamilies=AF_UNIX\n")
_SYSTEM_UNITS = Path("/etc/systemd/system")
_REDRAW_SECONDS = 1.0
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONPATH", "PYTHONWARNINGS")  # for the gateway

config_option = click.option(
    "--config",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A pabal.toml or main_mq_configuration.json. By default the one in this folder, if any.",
)
root_option = click.option(
    "--root",
    "--data-root",
    "root",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where everything lies. By default paths.dataRoot of the configuration, else .pabal.",
)


@click.group("config", invoke_without_command=True)
@click.pass_context
def config(ctx: click.Context) -> None:
    """Check what a manager would work by."""
    help_if_alone(ctx)


@click.command("check")
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@root_option
@json_option
def check(file: Path | None, root: Path | None, as_json: bool) -> None:
    """Read a configuration and name every mistake in it.

    It refuses what `pabal up` would refuse, also for reasons of this machine, and makes nothing.

    FILE is a pabal.toml or main_mq_configuration.json; without it the one in this folder is taken. If all is well,
    what the manager would work by is printed. Ends with 2 if there is a mistake.

    \b
    Examples:
      pabal config check
      pabal config check /etc/pabal/pabal.toml --json

    --json: source, nodeId, backend, root, mailbox, store, log, queues {name: policy}; with mistakes only those.
    """
    from pabal.manager.manager import find_obstacles

    found = _loaded(file, root, as_json=as_json)
    if obstacles := find_obstacles(found):
        _end_with_mistakes(InvalidConfig(found.source, obstacles), as_json=as_json)
    document = _document(found)
    if as_json:
        click.echo(json_text(document))
        return
    for name, value in document.items():
        if name != "queues":
            click.echo(f"{name:<9}{clean(str(value))}")
    click.echo(f"queues   {', '.join(found.policies) or 'any'}")


config.add_command(check)


def _loaded(path: Path | None, root: Path | None, *, as_json: bool = False, **changes: Any) -> Config:
    """Return the configuration of a command; if there are mistakes, print all of them and end."""
    try:
        return _read(path, root, **changes)
    except InvalidConfig as exc:
        _end_with_mistakes(exc, as_json=as_json)


def _end_with_mistakes(exc: InvalidConfig, *, as_json: bool) -> NoReturn:
    if as_json:
        click.echo(json_text({"mistakes": list(exc.mistakes) or [str(exc)]}))
    elif exc.mistakes:
        count = len(exc.mistakes)
        click.echo(f"pabal: InvalidConfig: {count} mistake{'s' * (count > 1)} in {exc.place}", err=True)
        for mistake in exc.mistakes:
            click.echo(f"  {clean(mistake)}", err=True)
    else:
        raise exc
    raise click.exceptions.Exit(Exit.INVALID) from exc


def _read(path: Path | None, root: Path | None, **changes: Any) -> Config:
    """Read the configuration that was named, or the one in this folder, or none."""
    from pabal.manager.config import find_config, read_config

    folder = Path.cwd()
    return read_config(find_config(folder) if path is None else path, folder=folder, root=root, **changes)


def _document(found: Config) -> dict[str, Any]:
    """Return a configuration as `config check --json` prints it."""
    return {
        "source": found.source,
        "nodeId": found.node_id,
        "backend": found.backend,
        "root": str(found.root),
        "mailbox": str(found.ipc_root),
        "store": found.store_url,
        "log": str(found.log_root) if found.log_root else "stderr",
        "queues": {name: document_of(policy) for name, policy in found.policies.items()},
    }


@click.command("up")
@root_option
@config_option
@click.option("--backend", metavar="NAME", help="sqlite, filesystem or hybrid, instead of the one in the file.")
@click.option("--db-path", metavar="FILE", help="The SQLite file, likewise.")
@click.option("--log-root", metavar="DIR", help="Where the log is written, likewise.")
@click.option("--node-id", metavar="NAME", help="The name of this manager, likewise.")
@click.option("--visibility-timeout", type=float, metavar="SECONDS", help="How long leases last, likewise.")
@click.option("--gateway/--no-gateway", default=None, help="Serve clients of SQS too. By default, if it can.")
@click.option("--gateway-port", type=click.IntRange(0, 65535), metavar="N", help="Its port; 0 takes a free one.")
def up(root: Path | None, path: Path | None, **options: Any) -> None:
    """Run the manager: serve a mailbox, keep its queues moving.

    Owns one data root, which may be used with all other commands meanwhile. Serves until Ctrl-C or SIGTERM, then
    answers what it took and ends. SIGHUP makes it read its configuration again.

    If the extra `gateway` is installed, it also keeps a `pabal gateway` running: a dashboard, and HTTP for clients of
    Amazon SQS and other programs on this machine.

    \b
    Examples:
      pabal up
      pabal up --gateway-port 0
      pabal up --root /var/lib/pabal --config /etc/pabal/pabal.toml
    """
    from pabal.manager.gateway_child import LOG as GATEWAY_LOG
    from pabal.manager.gateway_child import TOKEN, gateway_token, plan_gateway, running_gateway
    from pabal.manager.manager import HEARTBEAT, LOG, Manager
    from pabal.runtime.logs import log_lines
    from pabal.runtime.notify import Notifier

    _raise_file_limit()
    changes = _changes(options)
    found = _loaded(path, root, **changes)
    file = found.file and found.file.absolute()
    screen = sys.stdout.isatty()
    # On a terminal, lines of JSON would disturb: then the log goes to a file in any case.
    log_root = found.log_root or (found.root if screen else None)
    log = log_root / LOG if log_root else None
    with log_lines(found.node_id, log):
        manager = Manager(
            found,
            clock=SystemClock(),
            # The file that was found at the start: if it is gone, falling back to defaults would be no reload.
            reread=lambda: _read(file or path, root, **changes),
            notifier=Notifier(os.environ.get("NOTIFY_SOCKET", "")),
            passed=StatusLine() if screen else lambda report: None,
        )
        with closing(manager), ExitStack() as beside:
            plan = plan_gateway(found)
            gateway = {"gateway": plan.address or f"none: {plan.reason}"}
            variables = {name: os.environ[name] for name in _KEPT if name in os.environ}
            variables[HEARTBEAT_VARIABLE] = str((found.root / HEARTBEAT).absolute())
            if plan.address and (topics := os.environ.get(TOPICS_VARIABLE)):
                variables[TOPICS_VARIABLE] = absolute_topics(topics)  # the gateway runs in the data root
            if plan.address and found.gateway_keys is None:
                variables[TOKEN_VARIABLE] = token = gateway_token(found.root)
                # What is printed elsewhere than on a terminal is kept, and others may read it.
                told = f"/?token={token}" if screen else f"/, with the token in {short_path(found.root / TOKEN)}"
                gateway["open"] = plan.address + told
            click.echo("\n".join(_start_lines(found, log, gateway)))
            if plan.address:
                own_log = log_root / GATEWAY_LOG if log_root else None
                argv = own_argv(*plan.arguments)
                beside.enter_context(running_gateway(argv, found.root, variables, SystemClock(), own_log))
            manager.run()
    if screen:
        click.echo("\nstopped; everything is on disk")


def _changes(options: dict[str, Any]) -> dict[str, Any]:
    places: dict[str, tuple[str, ...]] = {
        "backend": ("backend",),
        "db_path": ("sqlite", "dbPath"),
        "log_root": ("paths", "logRoot"),
        "node_id": ("nodeId",),
        "visibility_timeout": ("lease", "visibilityTimeoutSec"),
        "gateway": ("gateway", "enabled"),
        "gateway_port": ("gateway", "port"),
    }
    changes: dict[str, Any] = {}
    for name, value in options.items():
        if value is not None:
            # A path on the command line is relative to this folder, not to the folder of the file.
            given = str(Path(value).absolute()) if name in ("db_path", "log_root") else value
            *outer, last = places[name]
            table = changes.setdefault(outer[0], {}) if outer else changes
            table[last] = given
    return changes


def _start_lines(found: Config, log: Path | None, gateway: dict[str, str]) -> list[str]:
    facts = {
        "manager": f"{found.node_id}, pid {os.getpid()}, {time.strftime('%H:%M:%S')}",
        "config": "none: all defaults" if found.file is None else str(found.file),
        "mailbox": short_path(found.ipc_root),
        "store": found.store_url,
        **gateway,
        "log": short_path(log) if log else "stderr",
    }
    here = found.ipc_root in (Path.cwd() / "ipc", Path.cwd() / ".pabal/ipc")
    pabal = _command()
    mq = f"{pabal} mq" if here else f"{pabal} mq --ipc-root {short_path(found.ipc_root)}"
    usual = found.store_url == f"sqlite://{Path.cwd()}/.pabal/pabal.db"
    trials = _TRY.format(mq=mq, pabal=pabal, url="" if usual else f" --url '{found.store_url}'")
    return [*(f"{name:<9}{value}" for name, value in facts.items()), trials]


def _command() -> str:
    """Return how to call this command in another terminal, which may have another PATH."""
    ours = Path(sys.argv[0])
    found = shutil.which("pabal")
    if not ours.is_file() or (found is not None and os.path.samefile(found, ours)):
        return "pabal"
    return short_path(ours.absolute())


def _raise_file_limit() -> None:
    """Allow as many open files as possible: each queue in use needs some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class StatusLine:
    """Redraws the last line of the terminal, at most once a second."""

    def __init__(self) -> None:
        self._drawn = float("-inf")
        self._requests = 0

    def __call__(self, report: Report) -> None:
        now = time.monotonic()
        since = now - self._drawn
        if since < _REDRAW_SECONDS:
            return
        self._drawn = now
        redraw_line(self._text(report, since))

    def _text(self, report: Report, since: float) -> str:
        queues = report.queues()
        total = {
            state: sum(found.get(state, 0) for found in queues.values())
            for state in (State.READY, State.DELAYED, State.INFLIGHT, State.DEAD)
        }
        requests = report.requests
        rate = (requests - self._requests) / since if since < 10 else 0.0
        self._requests = requests
        parts = [
            f"up {span(report.uptime)}",
            f"{len(queues)} queue{'s' * (len(queues) != 1)}: "
            + ", ".join(f"{count} {state}" for state, count in total.items()),
            f"{requests} request{'s' * (requests != 1)}" + (f", {rate:.0f}/s" if rate >= 0.5 else ""),
        ]
        return " | ".join(parts)


@click.command("install-service")
@click.option(
    "--system", is_flag=True, help="For the whole machine, into /etc/systemd/system; needs root and --user NAME."
)
@click.option(
    "--user", is_flag=False, flag_value="", metavar="[NAME]", help="For your own user; with --system, who runs it."
)
@click.option("--name", default="pabal", show_default=True, metavar="NAME", help="What the service is called.")
@click.option("--show", is_flag=True, help="Only print the unit.")
@click.option("--work", metavar="MODULE:NAME", help="Run this application instead, from the current folder.")
@click.option("--processes", type=click.IntRange(1), default=1, metavar="N", help="With --work: how many processes.")
@root_option
@config_option
def install_service(
    system: bool,
    user: str | None,
    name: str,
    show: bool,
    work: str | None,
    processes: int,
    root: Path | None,
    path: Path | None,
) -> None:
    """Write a systemd unit that runs `pabal up` and keeps it running.

    With --work it runs `pabal work` instead.

    The configuration is checked first. A manager that hangs or dies is started again. A unit of your own user goes to
    ~/.config/systemd/user. With --system it goes to /etc/systemd/system: the manager then runs as another user and may
    write nothing but its own folders.

    \b
    Examples:
      pabal install-service --user --root ~/pabal
      pabal install-service --system --user pabal --config /etc/pabal/pabal.toml
      pabal install-service --user --name jobs --work shop.jobs:app
    """
    if user and not system:
        raise click.UsageError("--user takes a name with --system only: a unit of your own user runs as yourself")
    if system and not user:
        raise click.UsageError("give --user NAME, the user that runs the service")
    if user is None and not show:
        raise click.UsageError("give --user for a service of your own, or --system --user NAME for the machine")
    if work is not None:
        if root is not None or path is not None:
            raise click.UsageError("--root and --config are of the manager, not of --work")
        load(work)
        found, unit = None, _work_unit(work, processes, user or "")
    else:
        found = _loaded(path, root)
        unit = _unit(found, user or "")
    if show:
        click.echo(unit, nl=False)
        return
    folder, systemctl = (_SYSTEM_UNITS, "systemctl") if system else (unit_folder(), "systemctl --user")
    place = folder / f"{name}.service"
    try:
        if found is not None:
            _make_folders(found, user or "")
        place.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(place, unit.encode(), mode=0o644)
    except KeyError as exc:
        raise InvalidConfig(f"no user {user}: make one with `useradd --system {user}`") from exc
    except OSError as exc:
        raise InvalidConfig(f"cannot write {exc.filename}: {exc.strerror}; print the unit with --show") from exc
    click.echo(f"wrote {place}")
    click.echo("\nNext:")
    click.echo(f"  {systemctl} daemon-reload\n  {systemctl} enable --now {name}")
    click.echo(f"  journalctl{'' if system else ' --user'} -u {name} -f")
    if not system:
        click.echo("  loginctl enable-linger    # so that it runs while you are not logged in")


def _work_unit(work: str, processes: int, user: str) -> str:
    """Return the unit of an application, which runs in this folder."""
    here = os.getcwd()
    arguments = [str(Path(sys.executable).parent / "pabal"), "work", work, "--processes", str(processes)]
    return _WORK_UNIT.format(
        name=escaped(work),
        user=f"User={escaped(user)}\n" if user else "",
        command=" ".join(map(quoted, arguments)),
        folder=escaped(here),
        target="multi-user.target" if user else "default.target",
    )


def _unit(found: Config, user: str) -> str:
    """Return the unit; with a user, the one for the machine."""
    arguments = [str(Path(sys.executable).parent / "pabal"), "up", "--root", str(found.root)]
    if found.file is not None:
        arguments += ["--config", os.path.abspath(found.file)]
    hardening = _HARDENING
    if found.gateway.enabled:
        for line in _NO_NETWORK:
            hardening = hardening.replace(line, "")
    else:
        arguments.append("--no-gateway")  # a service without a network has none, unless it is asked for
    return _UNIT.format(
        root=escaped(str(found.root)),
        user=f"User={escaped(user)}\n" if user else "",
        command=" ".join(map(quoted, arguments)),
        folder=escaped(str(found.root)),
        hardening=hardening.format(paths=" ".join(map(quoted, _folders(found)))) if user else "",
        target="multi-user.target" if user else "default.target",
    )


def _folders(found: Config) -> list[str]:
    """Return the folders that a manager writes, without those that lie in others of them."""
    # Body files that no message names are moved to a folder beside that of the others.
    wanted = [each.parent if key == "hybrid.payloadRoot" else each for key, each in found.folders.items()]
    return sorted({str(each) for each in wanted if not any(each != of and each.is_relative_to(of) for of in wanted)})


def _make_folders(found: Config, user: str) -> None:
    """Make the folders of a manager, which a service cannot make itself: they belong to its user."""
    owner = pwd.getpwnam(user) if user else None
    for folder in map(Path, _folders(found)):
        if not folder.exists():
            make_dirs(folder)
            if owner is not None:
                os.chown(folder, owner.pw_uid, owner.pw_gid)


def unit_folder() -> Path:
    """Return the folder of the units of this user."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(home) / "systemd" / "user"


def escaped(text: str) -> str:
    """Return a text as it stands in a unit."""
    return text.replace("%", "%%")


def quoted(text: str) -> str:
    """Return an argument as it stands in the command line of a unit."""
    found = escaped(text).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{found}"' if any(char in found for char in " \t\"'\\$;") else found
