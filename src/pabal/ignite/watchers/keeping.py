"""Keeps the team's watchers running, each in a process of its own, so that none can hold up the mail.

One that ends is started again, so many times in a row as the team allows; then the leader is told, once. A watcher that
works for a minute has recovered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from pabal.errors import InvalidConfig
from pabal.ignite.intake import Intake
from pabal.ignite.team import Team
from pabal.ignite.watchers.settings import read_settings
from pabal.ignite.workspace import LOGS, Workspace
from pabal.runtime.process import Child, Command
from pabal.runtime.supervisor import Supervisor
from pabal.runtime.wake import FdWatch

log = logging.getLogger("pabal.ignite")


def chosen(team: Team, names: Sequence[str] = ()) -> list[str]:
    """Return the watchers that run with the team: those named, `all`, or `auto`: those that start by themselves."""
    settings = {name: read_settings(team, name) for name in (*team.watchers, *names) if name not in ("auto", "all")}
    found = [
        name
        for name, about in settings.items()
        if name in names or "all" in names or (about.auto_start and ("auto" in names or not names))
    ]
    return [name for name in found if settings[name].enabled]


class Keeper:
    """A task of the team's service: starts the watchers' commands and starts them again."""

    def __init__(self, workspace: Workspace, commands: Callable[[], Mapping[str, Command]], *, watch: FdWatch) -> None:
        """`commands` says which watchers run, by the team file as it stands."""
        self._workspace = workspace
        self._wanted = commands
        self._intake = Intake(workspace)
        self._given_up: set[str] = set()
        self._commands = dict(commands())
        self._settings = dict(workspace.team.watchers)
        for name in self._commands:
            workspace.memory.forget_seen(f"told/watcher/{name}")  # of an earlier start of the team
        most = workspace.team.limits.starts
        self._supervisor = Supervisor(self._commands, clock=workspace.clock, watch=watch, start=self._start, most=most)

    def step(self) -> None:
        self._supervisor.step()
        for state in self._supervisor.states():
            if state.pid is None and state.due is None and state.name not in self._given_up:
                self._given_up.add(state.name)
                reason = f"it ended {state.restarts} times, the last time with status {state.status}"
                self._intake.tell(f"watcher/{state.name}", f"watcher {state.name} is gone", state.name, reason)

    def next_due(self) -> float | None:
        return self._supervisor.next_due()

    def reload(self) -> None:
        """Go by the team file as it stands: end and begin watchers, and begin those anew whose settings changed."""
        try:
            wanted = dict(self._wanted())
        except InvalidConfig as exc:
            log.error("watchers not reloaded: %s", exc)
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
        """End the watchers: each remembers what it has sent, so there is nothing to wait for."""
        self._supervisor.stop(1.0)

    def _start(self, command: Command) -> Child:
        name = next(name for name, known in self._commands.items() if known == command)
        with open(self._workspace.root / LOGS / f"{name}.log", "ab", buffering=0) as out:
            return Child(command, stdout=out, stderr=out)
