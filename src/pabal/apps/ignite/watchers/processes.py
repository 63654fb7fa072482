"""The processes of the team's watchers: each watcher has one of its own, so that none can hold up the mail.

A process that ends is started again, `limits.starts` times in a row; then the leader gets one escalation. A watcher
that runs for a minute counts as recovered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from pabal.apps.ignite.intake import Intake
from pabal.apps.ignite.team import Team
from pabal.apps.ignite.watchers.settings import read_settings
from pabal.apps.ignite.workspace import Workspace
from pabal.errors import InvalidConfig
from pabal.runtime.process import Command
from pabal.runtime.supervisor import Supervisor
from pabal.runtime.wake import FdWatch

log = logging.getLogger("pabal.ignite")


def chosen(team: Team, names: Sequence[str] = ()) -> list[str]:
    """Return the enabled watchers that run with the team: those named, `all`, or `auto` for those with auto_start."""
    settings = {name: read_settings(team, name) for name in (*team.watchers, *names) if name not in ("auto", "all")}
    found = [
        name
        for name, about in settings.items()
        if name in names or "all" in names or (about.auto_start and ("auto" in names or not names))
    ]
    return [name for name in found if settings[name].enabled]


class WatcherProcesses:
    """A task of the team's service: keeps the watchers' commands running."""

    def __init__(self, workspace: Workspace, commands: Callable[[], Mapping[str, Command]], *, watch: FdWatch) -> None:
        """`commands` returns the commands of the watchers that should run by the current team file."""
        self._workspace = workspace
        self._wanted = commands
        self._intake = Intake(workspace)
        self._given_up: set[str] = set()
        self._commands = dict(commands())
        self._settings = dict(workspace.team.watchers)
        for name in self._commands:
            self._intake.forget_escalation(f"watcher/{name}")  # from an earlier start of the team
        most = workspace.team.limits.starts
        self._supervisor = Supervisor(
            self._commands, clock=workspace.clock, watch=watch, output=workspace.log_file, most=most
        )

    def step(self) -> None:
        self._supervisor.step()
        for state in self._supervisor.states():
            if state.pid is None and state.due is None and state.name not in self._given_up:
                self._given_up.add(state.name)
                reason = f"it ended {state.restarts} times, the last time with status {state.status}"
                self._intake.escalate(f"watcher/{state.name}", f"watcher {state.name} is gone", state.name, reason)

    def next_due(self) -> float | None:
        return self._supervisor.next_due()

    def reload(self) -> None:
        """Apply the team file: start and stop watchers, and restart those whose settings changed."""
        try:
            wanted = dict(self._wanted())
        except InvalidConfig as exc:
            log.error("watchers not reloaded: %(error)s", {"error": str(exc)})
            return
        before, self._commands = self._commands, wanted
        for name in before:
            if name not in wanted or self._settings.get(name) != self._workspace.team.watchers.get(name):
                self._supervisor.drop(name)
        for name, command in wanted.items():
            self._supervisor.keep(name, command)
        self._settings = dict(self._workspace.team.watchers)
        self._given_up &= {state.name for state in self._supervisor.states() if state.pid is None and state.due is None}

    def close(self) -> None:
        """Stop the watchers. Each one remembers what it has sent, so there is nothing to wait for."""
        self._supervisor.stop(1.0)
