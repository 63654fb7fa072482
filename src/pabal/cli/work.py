"""`pabal work`: run an application in supervised processes."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from typing import IO

import click

from pabal.app import App
from pabal.cli.session import command
from pabal.cli.text import redraw_line
from pabal.cli.values import lasting
from pabal.clock import Clock, SystemClock
from pabal.connect import Connection, connect
from pabal.errors import InvalidInput, PabalError
from pabal.runtime.logs import log_lines
from pabal.runtime.process import Child, Command
from pabal.runtime.service import Service, Task
from pabal.runtime.supervisor import Supervisor
from pabal.runtime.wake import FdWatch
from pabal.store import State

log = logging.getLogger("pabal")

_MARGIN = 5.0  # seconds more than its grace that a process gets to end
_REDRAW = 1.0  # seconds
_REPORT = 60.0  # seconds between two lines of the log about the queues
_LOADING = 60.0  # seconds that the application may take to load before the processes are replaced
_MOST = 65536  # bytes of its errors that are read
_LOOK = 0.5  # seconds between two looks at the sources
_NODE = "PABAL_WORK_NODE"  # the name of a process, from its parent
_NOT_SOURCES = frozenset({"__pycache__", "node_modules", "venv", "site-packages"})


@command("work")
@click.argument("name", metavar="MODULE:NAME")
@click.option("--processes", type=click.IntRange(0), default=1, show_default=True, metavar="N", help="How many.")
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="M",
    help="Messages at a time, of each function that does not say it.",
)
@click.option("--grace", type=lasting, default="30", show_default=True, metavar="TIME", help="To finish after a stop.")
@click.option("--reload", is_flag=True, help="Replace the processes when a source file changes.")
def work(name: str, processes: int, concurrency: int, grace: float, reload: bool) -> None:
    """Run the application NAME of a Python MODULE.

    NAME is a pabal.App. Its processes are restarted if they die. SIGTERM and SIGINT finish what is in hand and give
    back the rest; SIGHUP replaces the processes one by one. With --processes 0 it works in this process.

    \b
    Examples:
      pabal work shop.jobs:app --processes 4 --concurrency 8
      pabal work jobs:app --reload
    """
    app = load(name)
    if processes == 0:
        if reload:
            raise click.UsageError("--reload needs --processes 1 or more")
        with _log_lines(os.environ.get(_NODE, f"work-{os.getpid()}")):
            app.work(concurrency=concurrency, grace=grace)
        return
    arguments = ["work", name, "--processes", "0", "--concurrency", str(concurrency), "--grace", str(grace)]
    commands = {
        f"worker-{number}": Command(
            argv=(sys.executable, "-c", "from pabal.cli.main import main; main()", *arguments),
            cwd=Path.cwd(),
            env={**os.environ, _NODE: f"worker-{number}"},
        )
        for number in range(1, processes + 1)
    }
    with _log_lines("work"):
        _supervise(app, name, commands, grace, reload)


def load(name: str) -> App:
    """Import the application that `MODULE:NAME` names."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise click.UsageError(f"give MODULE:NAME, as in shop.jobs:app; found {name!r:.80}")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name is None or not (module == exc.name or module.startswith(f"{exc.name}.")):
            raise  # of something that the module imports
        raise InvalidInput(f"no module {module!r:.80} in {here} or the Python path") from exc
    app = getattr(found, attribute, None)
    if not isinstance(app, App):
        kind = "nothing" if app is None else f"a {type(app).__name__}"
        apps = ", ".join(key for key, value in vars(found).items() if isinstance(value, App)) or "none"
        raise InvalidInput(f"{name} is {kind}, not a pabal.App; {module} has {apps}")
    if not app.queues:
        raise InvalidInput(f"{name} serves no queue: give it functions with @{attribute}.on")
    return app


def _log_lines(node: str) -> AbstractContextManager[None]:
    """Log for people on a terminal, and as JSON lines elsewhere."""
    if not sys.stderr.isatty():
        return log_lines(node)
    return log_lines(node, form=logging.Formatter(f"\r\x1b[2K%(asctime)s {node} %(message)s", "%H:%M:%S"))


def _supervise(app: App, name: str, commands: dict[str, Command], grace: float, reload: bool) -> None:
    with closing(FdWatch()) as watch, connect(app.url) as mq:
        supervisor = Supervisor(commands, clock=SystemClock(), watch=watch)
        replacement = Replacement(supervisor, name, list(commands), grace + _MARGIN, clock=SystemClock(), watch=watch)
        tasks: list[Task] = [supervisor, replacement, _Report(mq, app, supervisor)]
        if reload:
            tasks.append(_Sources(Path.cwd(), replacement))
        service = Service(watch, *tasks)
        with service.on_signals({signal.SIGHUP: replacement.begin}):
            try:
                service.run()
            finally:
                if sys.stdout.isatty():
                    click.echo()
                replacement.end()
                supervisor.stop(grace + _MARGIN)


class Replacement:
    """Replaces the processes one by one; a task of the service.

    The application is loaded in a process of its own before: with a mistake in it, the running processes go on.
    """

    def __init__(
        self, supervisor: Supervisor, application: str, names: list[str], grace: float, *, clock: Clock, watch: FdWatch
    ) -> None:
        program = "import sys; from pabal.cli.work import load; load(sys.argv[1])"
        argv = (sys.executable, "-c", program, application)
        self._command = Command(argv=argv, cwd=Path.cwd(), env=dict(os.environ))
        self._supervisor = supervisor
        self._names = names
        self._grace = grace
        self._clock = clock
        self._watch = watch
        self._asked = False
        self._loading: Child | None = None
        self._until = 0.0  # when loading takes too long
        self._errors: IO[bytes] | None = None  # what it has written to stderr
        self._left: list[str] = []

    def begin(self) -> None:
        """Replace all processes. Those that were replaced already since the last call come after the others."""
        self._asked = True

    def step(self) -> None:
        if self._loading is not None:
            status = self._loading.status()
            if status is None and self._clock.boot() < self._until:
                return
            self._loaded(status)
        elif self._asked:  # not after each load at once, so that one is replaced although it is asked again and again
            self._asked = False
            self._load()
            return
        if self._left:
            name = self._left.pop(0)
            self._supervisor.restart(name, self._grace)
            self._supervisor.step()

    def next_due(self) -> float | None:
        if self._loading is not None:  # the watch wakes the loop when it ends
            return max(0.0, self._until - self._clock.boot())
        return 0.0 if self._left or self._asked else None

    def end(self) -> None:
        """Kill the process that loads the application, if there is one."""
        if self._loading is not None:
            self._watch.remove(self._loading.fd)
            self._loading.kill()
            self._loading.close()
            self._loading = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _load(self) -> None:
        try:
            self._errors = tempfile.TemporaryFile()
            self._loading = Child(self._command, stdout=subprocess.DEVNULL, stderr=self._errors)
        except OSError as exc:
            self.end()
            self._give_up(str(exc))
            return
        self._watch.add(self._loading.fd)
        self._until = self._clock.boot() + _LOADING

    def _loaded(self, status: int | None) -> None:
        """Begin with the replacement if the process that loaded the application has ended well."""
        assert self._errors is not None
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _MOST))
        said = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        self.end()
        if status is None:
            self._give_up(f"it took longer than {_LOADING:g} s")
        elif status:
            self._give_up(said or f"it ended with {status}")
        else:
            log.info("replacing %(processes)s processes", {"processes": len(self._names)})
            self._left += [name for name in self._names if name not in self._left]

    def _give_up(self, reason: str) -> None:
        self._left.clear()
        facts = {"error": reason}
        log.error("the application could not be loaded, and the running processes go on: %(error)s", facts)


class _Sources:
    """Looks for changed source files; a task of the service."""

    def __init__(self, folder: Path, replacement: Replacement) -> None:
        self._folder = folder
        self._replacement = replacement
        self._seen = dict(self._times())

    def step(self) -> None:
        found = dict(self._times())
        if found != self._seen:
            changed = sorted(
                str(path) for path in found.keys() | self._seen.keys() if found.get(path) != self._seen.get(path)
            )
            self._seen = found
            log.info("%(file)s changed", {"file": changed[0]})
            self._replacement.begin()

    def next_due(self) -> float:
        return _LOOK

    def _times(self) -> Iterator[tuple[str, int]]:
        for folder, folders, files in os.walk(self._folder):
            folders[:] = [name for name in folders if not name.startswith(".") and name not in _NOT_SOURCES]
            for name in files:
                if name.endswith(".py"):
                    with suppress(FileNotFoundError):
                        yield f"{folder}/{name}", os.stat(f"{folder}/{name}").st_mtime_ns


class _Report:
    """Says how far the work is: on a terminal one line that is drawn again, else a line of the log now and then."""

    def __init__(self, mq: Connection, app: App, supervisor: Supervisor) -> None:
        self._mq = mq
        self._app = app
        self._supervisor = supervisor
        self._at = time.monotonic()
        self._shown = sys.stdout.isatty()
        self._before, self._begun = (counted[0] if (counted := self._counted()) else 0), time.monotonic()
        self._first = self._before

    def step(self) -> None:
        now = time.monotonic()
        since = now - self._at
        if since < self._pause:
            return
        self._at = now
        counted = self._counted()
        if counted is None:
            return
        acked, failed, dead, ready = counted
        rate = (acked - self._before) / since
        self._before = acked
        running = sum(state.pid is not None for state in self._supervisor.states())
        facts = {"processes": running, "handled": acked - self._first, "per_second": round(rate, 1), "ready": ready}
        facts |= {"failed": failed, "dead": dead}
        if self._shown:
            texts = [f"{running} process{'es' * (running != 1)}", f"{facts['handled']:,} handled, {rate:,.0f}/s"]
            redraw_line(" | ".join([*texts, f"{ready:,} ready", f"{failed:,} failed, {dead:,} dead"]))
        else:
            log.info("%(processes)s processes, %(handled)s handled, %(ready)s ready", facts)

    def next_due(self) -> float:
        return max(0.0, self._at + self._pause - time.monotonic())

    @property
    def _pause(self) -> float:
        return _REDRAW if self._shown else _REPORT

    def _counted(self) -> tuple[int, int, int, int] | None:
        try:
            counters = [self._mq.store.counters(queue) for queue in self._app.queues]
            ready = sum(self._mq.store.counts(queue)[State.READY] for queue in self._app.queues)
        except PabalError:
            return None
        dead = sum(sum(each.dead.values()) for each in counters)
        return sum(each.acked for each in counters), sum(each.retried for each in counters), dead, ready
