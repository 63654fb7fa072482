"""`pabal ignite up | down`: a workspace is served, and let go."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pabal.cli.exits import Exit, NotFound
from pabal.cli.ignite_session import command, current_root
from pabal.cli.ignite_watch import keeper
from pabal.cli.screen import short
from pabal.cli.text import clip, span
from pabal.cli.values import duration
from pabal.errors import StoreFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pabal.ignite.monitor import Monitor
    from pabal.ignite.workspace import Workspace
    from pabal.runtime.service import Task
    from pabal.runtime.wake import FdWatch

_LOG = "queue_monitor.jsonl"


@command("up")
@click.option("--detach", is_flag=True, help="Go on in the background; down stops it.")
@click.option(
    "--with-watcher",
    "watchers",
    multiple=True,
    metavar="NAME",
    help="Run this watcher too; all, or auto (the default) for those with auto_start.",
)
@click.option("--no-watcher", is_flag=True, help="Run no watchers.")
def up(detach: bool, watchers: tuple[str, ...], no_watcher: bool) -> None:
    """Serve the team: give out its mail until told to stop.

    One process serves a workspace. Ctrl-C or SIGTERM stops it: running commands may end, the rest is given back. SIGHUP
    makes it read the team file again. Its log is logs/queue_monitor.jsonl.

    \b
    Examples:
      pabal ignite up
      pabal ignite --root workspace up --detach
    """
    if detach:
        _detach([*(f"--with-watcher={name}" for name in watchers), *(["--no-watcher"] if no_watcher else [])])
        return
    from pabal.ignite.serving import Serving
    from pabal.ignite.watchers.keeping import chosen

    root = current_root()
    screen = sys.stdout.isatty()

    def more(workspace: Workspace, watch: FdWatch) -> Sequence[Task]:
        def names() -> list[str]:
            return [] if no_watcher else chosen(workspace.team, watchers)

        return [*_rounds(workspace), keeper(workspace, watch, names=names, folder=_folder(root))]

    handler = _start_log(root)
    try:
        serving = Serving(
            root,
            folder=_folder(root),
            variables=os.environ,
            more=more,
            ready=lambda: click.echo(f"serving {short(root)}, pid {os.getpid()}; log {short(root / 'logs' / _LOG)}"),
            passed=_Line() if screen else lambda _: None,
        )
        with closing(serving):
            serving.run()
    finally:
        logging.getLogger("pabal").removeHandler(handler)
        handler.close()
    click.echo("\nstopped; all mail is on disk" if screen else "stopped")


@command("down")
@click.option("--wait", "patience", type=duration, default="60", metavar="TIME", help="Give up after this; 60s.")
def down(patience: float) -> None:
    """Stop serving the team; mail stays where it is.

    \b
    Examples:
      pabal ignite down
      pabal ignite down --wait 5m
    """
    from pabal.ignite.health import LOCK
    from pabal.runtime.lock import holder

    lock = current_root() / "state" / LOCK
    pid = holder(lock)
    if pid is None:
        raise NotFound(f"nobody serves {current_root()}")
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + patience
    while holder(lock) == pid:
        if time.monotonic() > end:
            raise StoreFailed(f"process {pid} still serves {current_root()}: it waits for commands to end")
        time.sleep(0.05)
    click.echo(f"stopped {pid}")


def _detach(options: list[str]) -> None:
    from pabal.ignite.health import LOCK
    from pabal.ignite.workspace import Workspace
    from pabal.runtime.lock import holder

    root = current_root()
    with Workspace.open(root) as workspace:
        lock = workspace.root / "state" / LOCK
        out = workspace.root / "logs" / "queue_monitor.out"
    with open(out, "ab", buffering=0) as log:
        child = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from pabal.cli.main import main; main()",
                "ignite",
                "--root",
                str(root),
                "up",
                *options,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    while holder(lock) != child.pid:
        if child.poll() is not None:
            told = out.read_text(errors="replace").strip().rpartition("\n")[2]
            raise StoreFailed(f"it ended at once: {told.removeprefix('pabal: ')}; see {short(out)}")
        time.sleep(0.02)
    child.returncode = Exit.DONE  # it goes on without us
    click.echo(f"serving {short(root)}, pid {child.pid}")


def _folder(root: Path) -> Path:
    """Return where commands run: the project that the workspace belongs to."""
    return Path(os.path.abspath(root)).parent


def _rounds(workspace: Workspace) -> Sequence[Task]:
    from pabal.ignite.clerk.coordinating import COORDINATOR, rounds_of

    return [rounds_of(workspace)] if COORDINATOR in workspace.team.agents else []


def _start_log(root: Path) -> logging.Handler:
    from logging.handlers import WatchedFileHandler

    from pabal.manager.logs import JsonLines

    logs = root / "logs"
    if root.is_dir():
        logs.mkdir(exist_ok=True)
    handler: logging.Handler = logging.NullHandler()
    if logs.is_dir():
        handler = WatchedFileHandler(logs / _LOG, encoding="utf-8", errors="backslashreplace")
        handler.setFormatter(JsonLines("queue_monitor"))
    logger = logging.getLogger("pabal")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return handler


class _Line:
    """Redraws the last line of the terminal, at most once a second."""

    def __init__(self) -> None:
        self._began = self._drawn = time.monotonic()

    def __call__(self, monitor: Monitor) -> None:
        now = time.monotonic()
        if now - self._drawn < 1.0:
            return
        self._drawn = now
        busy = [post.name for post in monitor.turns]
        told = f"up {span(now - self._began)} | {len(monitor.posts)} agents | {len(busy)} busy"
        line = f"{told}: {', '.join(busy)}" if busy else told
        sys.stdout.write(f"\r\x1b[2K{clip(line, os.get_terminal_size().columns - 1)}")
        sys.stdout.flush()
