"""Keeps the team's watchers running, each in a process of its own, so that none can hold up the mail.

One that ends is started again, so many times in a row as the team allows; then the leader is told, once. A watcher that
works for a minute has recovered.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

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

    def __init__(self, workspace: Workspace, commands: Mapping[str, Command], *, watch: FdWatch) -> None:
        self._workspace = workspace
        self._names = {id(command): name for name, command in commands.items()}
        self._intake = Intake(workspace)
        self._given_up: set[str] = set()
        for name in commands:
            workspace.memory.forget_seen(f"told/watcher/{name}")  # of an earlier start of the team
        most = workspace.team.limits.starts
        self._supervisor = Supervisor(commands, clock=workspace.clock, watch=watch, start=self._start, most=most)

    def step(self) -> None:
        self._supervisor.step()
        for state in self._supervisor.states():
            if state.pid is None and state.due is None and state.name not in self._given_up:
                self._given_up.add(state.name)
                reason = f"it ended {state.restarts} times, the last time with status {state.status}"
                self._intake.tell(f"watcher/{state.name}", f"watcher {state.name} is gone", state.name, reason)

    def next_due(self) -> float | None:
        return self._supervisor.next_due()

    def close(self) -> None:
        """End the watchers: each remembers what it has sent, so there is nothing to wait for."""
        self._supervisor.stop(1.0)

    def _start(self, command: Command) -> Child:
        path = self._workspace.root / LOGS / f"{self._names[id(command)]}.log"
        with open(path, "ab", buffering=0) as out:
            return Child(command, stdout=out, stderr=out)
