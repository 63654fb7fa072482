"""`pabal up`: run the manager in this terminal or under a supervisor."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pabal.cli.config import config_option, loaded, read, root_option
from pabal.cli.screen import StatusLine, short
from pabal.clock import SystemClock

if TYPE_CHECKING:
    from pabal.manager.config import Config

_MOST_FILES = 65536
_TRY = """
Try in another terminal:
  {mq} publish --queue jobs --message '{{"hello": "world"}}'
  {mq} consume --queue jobs
  {mq} ack --message-key KEY --lease-id LEASE
  {mq} status --queue jobs
  {pabal} status{url}

Ctrl-C stops it; nothing is lost, and it goes on where it was when it is started again.
"""


@click.command("up")
@root_option
@config_option
@click.option("--backend", metavar="NAME", help="sqlite, filesystem or hybrid, in place of what the file says.")
@click.option("--db-path", metavar="FILE", help="The SQLite file, likewise.")
@click.option("--log-root", metavar="DIR", help="Where the log is written, likewise.")
@click.option("--node-id", metavar="NAME", help="The name of this manager, likewise.")
@click.option("--visibility-timeout", type=float, metavar="SECONDS", help="How long leases last, likewise.")
def up(root: Path | None, path: Path | None, **options: Any) -> None:
    """Run the manager: serve a mailbox, keep its queues moving.

    Owns one data root, which may be used with all other commands meanwhile. Serves until Ctrl-C or SIGTERM, then
    answers what it took and ends. SIGHUP makes it read its configuration again.

    \b
    Examples:
      pabal up
      pabal up --root /var/lib/pabal --config /etc/pabal/pabal.toml
    """
    from pabal.manager.logs import FILE, end_log, start_log
    from pabal.manager.manager import Manager
    from pabal.runtime.notify import Notifier

    _raise_file_limit()
    changes = _changes(options)
    found = loaded(path, root, **changes)
    file = found.file and found.file.absolute()
    screen = sys.stdout.isatty()
    # Where people look, lines of JSON would be in their way: then the log goes to a file in any case.
    log_root = found.log_root or (found.root if screen else None)
    handler = start_log(found.node_id, log_root)
    try:
        manager = Manager(
            found,
            clock=SystemClock(),
            # The file that was found at the start: were it gone, the defaults would be no reload but a loss.
            reread=lambda: read(file or path, root, **changes),
            notifier=Notifier(os.environ.get("NOTIFY_SOCKET", "")),
            passed=StatusLine() if screen else lambda report: None,
        )
        with closing(manager):
            click.echo("\n".join(_lines(found, log_root and log_root / FILE)))
            manager.run()
    finally:
        end_log(handler)
    if screen:
        click.echo("\nstopped; everything is on disk")


def _changes(options: dict[str, Any]) -> dict[str, Any]:
    places: dict[str, tuple[str, ...]] = {
        "backend": ("backend",),
        "db_path": ("sqlite", "dbPath"),
        "log_root": ("paths", "logRoot"),
        "node_id": ("nodeId",),
        "visibility_timeout": ("lease", "visibilityTimeoutSec"),
    }
    changes: dict[str, Any] = {}
    for name, value in options.items():
        if value is not None:
            # A path on the command line is meant from here, not from where the file lies.
            given = str(Path(value).absolute()) if name in ("db_path", "log_root") else value
            *outer, last = places[name]
            table = changes.setdefault(outer[0], {}) if outer else changes
            table[last] = given
    return changes


def _lines(found: Config, log: Path | None) -> list[str]:
    facts = {
        "manager": f"{found.node_id}, pid {os.getpid()}, {time.strftime('%H:%M:%S')}",
        "config": "none: all defaults" if found.file is None else str(found.file),
        "mailbox": short(found.ipc_root),
        "store": found.store_url,
        "log": short(log) if log else "stderr",
    }
    here = found.ipc_root in (Path.cwd() / "ipc", Path.cwd() / ".pabal/ipc")
    pabal = _command()
    mq = f"{pabal} mq" if here else f"{pabal} mq --ipc-root {short(found.ipc_root)}"
    usual = found.store_url == f"sqlite://{Path.cwd()}/.pabal/pabal.db"
    trials = _TRY.format(mq=mq, pabal=pabal, url="" if usual else f" --url '{found.store_url}'")
    return [*(f"{name:<9}{value}" for name, value in facts.items()), trials]


def _command() -> str:
    """Return what to type for this command in another terminal, where our PATH may not be."""
    ours = Path(sys.argv[0])
    found = shutil.which("pabal")
    if not ours.is_file() or (found is not None and os.path.samefile(found, ours)):
        return "pabal"
    return short(ours.absolute())


def _raise_file_limit() -> None:
    """Let the manager have as many files open as it may: a queue that is in use needs some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
