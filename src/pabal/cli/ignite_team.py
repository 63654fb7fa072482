"""`pabal ignite up | down | wake-test`: start and stop a team, test a wake-up."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pabal.apps.ignite.errors import WakeFailed
from pabal.cli.exits import Exit, NotFound
from pabal.cli.ignite_session import agent_argument, command, current_root, opened
from pabal.cli.ignite_watch import watcher_processes
from pabal.cli.session import own_argv
from pabal.cli.text import redraw_line, short_path, span
from pabal.cli.values import duration, lasting
from pabal.errors import StoreFailed
from pabal.filesystem import private
from pabal.names import shown_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pabal.apps.ignite.monitor import Monitor
    from pabal.apps.ignite.wakes import Running, Turn
    from pabal.apps.ignite.workspace import Workspace
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
    """Serve the team: give out its mail until it is stopped.

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
    from pabal.apps.ignite.coordinator.role import COORDINATOR, sweep_of
    from pabal.apps.ignite.service import TeamService
    from pabal.apps.ignite.watchers.processes import chosen
    from pabal.runtime.logs import log_lines

    root = current_root()
    screen = sys.stdout.isatty()

    def more(workspace: Workspace, watch: FdWatch) -> Sequence[Task]:
        def names() -> list[str]:
            return [] if no_watcher else chosen(workspace.team, watchers)

        sweep = [sweep_of(workspace)] if COORDINATOR in workspace.team.agents else []
        return [*sweep, watcher_processes(workspace, watch, names=names, folder=_folder(root))]

    # Without a folder the service reports that there is no workspace.
    with log_lines("queue_monitor", root / "logs" / _LOG) if root.is_dir() else nullcontext():
        service = TeamService(
            root,
            folder=_folder(root),
            variables=os.environ,
            more=more,
            ready=lambda: click.echo(
                f"serving {short_path(root)}, pid {os.getpid()}; log {short_path(root / 'logs' / _LOG)}"
            ),
            passed=_Line() if screen else lambda _: None,
        )
        with closing(service):
            service.run()
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
    from pabal.apps.ignite.health import LOCK
    from pabal.runtime.role_lock import holder

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
    from pabal.apps.ignite.health import LOCK
    from pabal.apps.ignite.workspace import Workspace
    from pabal.runtime.role_lock import holder

    root = current_root()
    with Workspace.open(root) as workspace:
        lock = workspace.root / "state" / LOCK
        out = workspace.root / "logs" / "queue_monitor.out"
    with open(out, "ab", buffering=0, opener=private) as log:
        child = subprocess.Popen(
            own_argv("ignite", "--root", str(root), "up", *options),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    while holder(lock) != child.pid:
        if child.poll() is not None:
            last = out.read_text(errors="replace").strip().rpartition("\n")[2]
            raise StoreFailed(f"it ended at once: {last.removeprefix('pabal: ')}; see {short_path(out)}")
        time.sleep(0.02)
    child.returncode = Exit.DONE  # it goes on without us
    click.echo(f"serving {short_path(root)}, pid {child.pid}")


def _folder(root: Path) -> Path:
    """Return the working directory of commands: the project that the workspace belongs to."""
    return Path(os.path.abspath(root)).parent


class _Line:
    """Redraws the last line of the terminal, at most once a second."""

    def __init__(self) -> None:
        self._began = self._drawn = time.monotonic()

    def __call__(self, monitor: Monitor) -> None:
        now = time.monotonic()
        if now - self._drawn < 1.0:
            return
        self._drawn = now
        busy = [runner.name for runner in monitor.busy]
        summary = f"up {span(now - self._began)} | {len(monitor.runners)} agents | {len(busy)} busy"
        redraw_line(f"{summary}: {', '.join(busy)}" if busy else summary)


@command("wake-test")
@agent_argument
@click.option("--wait", "patience", type=lasting, default="60", metavar="TIME", help="How long a command may run; 60s.")
def wake_test(agent: str, patience: float) -> None:
    """Wake an agent with a test message.

    The message is of type system_init and lies in state/wake-test/, not in a queue. read, done and fail take it, and no
    answer to it is sent. A command is run to its end. The hooks of Claude Code and Codex are run by a stand-in if no
    session waits. Ends with 6 and the reason if the agent cannot be woken.

    \b
    Examples:
      pabal ignite wake-test leader
      pabal ignite wake-test ignitian_1 --wait 5m
    """
    from pabal.apps.ignite import wakes
    from pabal.apps.ignite.hook_settings import WAKES, try_hooks
    from pabal.apps.ignite.hooks import is_awaited
    from pabal.apps.ignite.workspace import TEST_TOKEN, TESTS
    from pabal.durable import make_dirs, replace_whole
    from pabal.message import Message
    from pabal.store import Receipt

    with opened() as workspace:
        name = workspace.team.name_of(agent)
        about = workspace.team.agents[name]
        id, at = workspace.fresh()
        message = Message(id=id, type="system_init", body={"test": True}, sender="system", created_at=at)
        path = workspace.root / TESTS / f"{name}.mime"
        make_dirs(path.parent)
        path.with_suffix(".failed").unlink(missing_ok=True)
        replace_whole(path, workspace.layout.codec.encode(message, queue=name))
        folder = workspace.root.parent
        wake = wakes.load(about.wake)(wakes.WakeContext(workspace.root, folder, os.environ))
        turn = wakes.Turn(name, about, str(path), Receipt(name, id, TEST_TOKEN), message, 1)
        began, seen = time.monotonic(), f"the message was {short_path(path)}"
        try:
            if about.wake in WAKES:
                seen = try_hooks(workspace, wake, turn, project=folder, variables=os.environ, patience=patience)
            else:
                wake.wake(turn)
            if isinstance(wake, wakes.Running):
                _run(wake, turn, patience)
        finally:
            wake.stop(turn)
            if about.wake in WAKES and not is_awaited(workspace.root, name):
                path.unlink(missing_ok=True)  # no session has it
    click.echo(f"{shown_name(name)} was woken by {about.wake} in {span(time.monotonic() - began)}; {seen}")


def _run(wake: Running, turn: Turn, patience: float) -> None:
    ready, _, _ = select.select([wake.descriptor(turn)], [], [], patience)
    ending = wake.ending(turn) if ready else None
    if ending is None:
        raise WakeFailed(f"its command still runs after {patience:g} seconds")
    if Path(turn.path).with_suffix(".failed").exists():
        raise WakeFailed(f"its command called `pabal ignite fail`; see logs/{turn.agent}.log")
    if ending.kind != "done" and Path(turn.path).exists():
        raise WakeFailed(f"its command ended with {ending.reason}; see logs/{turn.agent}.log")
