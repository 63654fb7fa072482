"""The kingdom as a whole: keeps its roles running and as many generals as there are manifests.

A role that ends is started again. Whether one hangs is the chamberlain's to see; only he is watched from here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from pabal.kingdom.home import Home
from pabal.kingdom.manifests import FOLDER, load, signature
from pabal.runtime.heartbeat import read_pulse
from pabal.runtime.lock import PlaceLock, holder
from pabal.runtime.process import Child, Command
from pabal.runtime.service import Service
from pabal.runtime.supervisor import ChildState, Supervisor
from pabal.runtime.wake import FdWatch

LOCK = "state/kingdom.lock"
LOG = "logs/system.log"
CHAMBERLAIN = "chamberlain"
PATIENCE = 60.0  # seconds without a finished pass after which he is taken to hang
_POLL = 2.0  # seconds between looks at manifests and at him

# Makes the argument vector of a role's process.
Argv = Callable[[str], tuple[str, ...]]


class Kingdom:
    """A task of the service that holds it all."""

    def __init__(self, home: Home, argv: Argv, supervisor: Supervisor) -> None:
        self._home = home
        self._argv = argv
        self._supervisor = supervisor
        self._signature: object = None
        self._generals: set[str] = set()
        self._chamberlain: tuple[int | None, float] = (None, 0.0)  # his process, and since when we know of it
        for role in home.config.roles:
            supervisor.keep(role, self._command(role))

    def step(self) -> None:
        found = signature(self._home.root / FOLDER)
        if found != self._signature:
            self._signature = found
            self._muster()
        if CHAMBERLAIN in self._home.config.roles and self._hangs():
            self._home.journal.note("recovery.session_restarted", "supervisor", role=CHAMBERLAIN, reason="hung")
            self._supervisor.restart(CHAMBERLAIN, self._home.config.stop_seconds)
        self._supervisor.step()

    def next_due(self) -> float:
        due = self._supervisor.next_due()
        return _POLL if due is None else min(_POLL, due)

    def _muster(self) -> None:
        wanted = {manifest.name for manifest in load(self._home.root / FOLDER).manifests}
        for name in self._generals - wanted:
            self._supervisor.drop(name)
        for name in sorted(wanted - self._generals):
            self._supervisor.keep(name, self._command(name))
        self._generals = wanted

    def _hangs(self) -> bool:
        """Say whether the chamberlain has not finished a pass for too long, be it his first."""
        pid = next(state.pid for state in self._supervisor.states() if state.name == CHAMBERLAIN)
        now = self._home.clock.boot()
        if pid != self._chamberlain[0]:
            self._chamberlain = (pid, now)
        pulse = read_pulse(self._home.root / "state" / CHAMBERLAIN / "heartbeat", self._home.clock, PATIENCE)
        if pulse.beat is not None and pulse.beat.pid == pid:
            return pulse.state == "hung"
        return pid is not None and now - self._chamberlain[1] > PATIENCE

    def _command(self, role: str) -> Command:
        return Command(argv=self._argv(role), cwd=self._home.root, env=self._home.variables)


def reign(home: Home, argv: Argv, passed: Callable[[list[ChildState]], None] = lambda states: None) -> None:
    """Hold the kingdom up until SIGTERM or SIGINT, then let every role finish what it has in hand.

    After each pass `passed` is told how the roles are.
    """
    advice = "`pabal kingdom down` ends it"
    lock = PlaceLock(home.root / LOCK, home.clock.now(), f"{home.root} is up already", advice=advice)
    with closing(lock), closing(FdWatch()) as watch, (home.root / LOG).open("ab") as log:
        supervisor = Supervisor(
            {}, clock=home.clock, watch=watch, start=lambda command: Child(command, stdout=log, stderr=log)
        )
        service = Service(watch, Kingdom(home, argv, supervisor), passed=lambda: passed(supervisor.states()))
        with service.on_signals({}):
            try:
                service.run()
            finally:
                supervisor.stop(home.config.stop_seconds)


def holder_of(root: Path) -> int | None:
    """Return the process that holds a kingdom up, or None."""
    return holder(root / LOCK)
