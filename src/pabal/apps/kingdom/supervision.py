"""The supervisor of a kingdom: keeps its roles running, and one general for each manifest.

A role that ends is started again. The chamberlain stops roles that hang; only the chamberlain is checked from here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.manifests import Routing
from pabal.runtime.heartbeat import read_pulse
from pabal.runtime.process import Command
from pabal.runtime.role_lock import RoleLock, holder
from pabal.runtime.service import Service
from pabal.runtime.supervisor import ChildState, Supervisor
from pabal.runtime.wake import FdWatch

LOCK = "state/kingdom.lock"
LOG = "logs/system.log"
CHAMBERLAIN = "chamberlain"
PATIENCE = 60.0  # seconds without a finished pass after which the chamberlain counts as hung
_POLL = 2.0  # seconds between checks of the manifests and of the chamberlain

# Makes the argument vector of a role's process.
Argv = Callable[[str], tuple[str, ...]]


class Kingdom:
    """A task of the supervisor's service."""

    def __init__(self, home: Home, argv: Argv, supervisor: Supervisor) -> None:
        self._home = home
        self._argv = argv
        self._supervisor = supervisor
        self._routing = Routing(home.root, home.config.engine)
        self._generals: set[str] = set()
        self._chamberlain: tuple[int | None, float] = (None, 0.0)  # its process, and since when that is known
        for role in home.config.roles:
            supervisor.keep(role, self._command(role))

    def step(self) -> None:
        if self._routing.refresh():
            self._update_generals()
        if CHAMBERLAIN in self._home.config.roles and self._chamberlain_hangs():
            self._home.journal.note("recovery.session_restarted", "supervisor", role=CHAMBERLAIN, reason="hung")
            self._supervisor.restart(CHAMBERLAIN, self._home.config.stop_seconds)
        self._supervisor.step()

    def next_due(self) -> float:
        due = self._supervisor.next_due()
        return _POLL if due is None else min(_POLL, due)

    def _update_generals(self) -> None:
        wanted = {each.name for each in self._routing.loaded.manifests if not each.external}
        for name in self._generals - wanted:
            self._supervisor.drop(name, self._home.config.stop_seconds)
        for name in sorted(wanted - self._generals):
            self._supervisor.keep(name, self._command(name))
        self._generals = wanted

    def _chamberlain_hangs(self) -> bool:
        """Return whether the chamberlain has not finished a pass, or its first pass, for too long."""
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


def run_kingdom(home: Home, argv: Argv, passed: Callable[[list[ChildState]], None] = lambda states: None) -> None:
    """Keep the kingdom running until SIGTERM or SIGINT, then let every role finish its current work.

    After each pass `passed` gets the states of the roles.
    """
    advice = "`pabal kingdom down` ends it"
    lock = RoleLock(home.root / LOCK, home.clock.now(), f"{home.root} is up already", advice=advice)
    with closing(lock), closing(FdWatch()) as watch:
        supervisor = Supervisor({}, clock=home.clock, watch=watch, output=lambda role: home.root / LOG)
        service = Service(watch, Kingdom(home, argv, supervisor), passed=lambda: passed(supervisor.states()))
        with service.on_signals({}):
            try:
                service.run()
            finally:
                supervisor.stop(home.config.stop_seconds)


def holder_of(root: Path) -> int | None:
    """Return the process that keeps a kingdom running, or None."""
    return holder(root / LOCK)
