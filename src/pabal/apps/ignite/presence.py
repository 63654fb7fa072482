"""The presence of agents: starting, idle, busy, stale, away or gone; and their processes, which are kept running.

An agent with a `process` in the team file is started with the team, and again when it ends, `limits.starts` times in a
row. Then it is gone and the leader gets one escalation. A finished message resets the count.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pabal.apps.ignite.errors import WakeFailed
from pabal.apps.ignite.memory import Presence
from pabal.apps.ignite.monitor import Monitor
from pabal.apps.ignite.team import Agent
from pabal.apps.ignite.turns import AgentRunner
from pabal.apps.ignite.wakes import WakeContext
from pabal.apps.ignite.wakes.exec import command_of
from pabal.errors import StoreError
from pabal.runtime.process import Command
from pabal.runtime.supervisor import ChildState, Supervisor
from pabal.runtime.wake import FdWatch

log = logging.getLogger("pabal.ignite")

STALE_AFTER = 1 / 3  # of the silence that a turn may have: then its agent counts as stale
_STARTING = 2.0  # seconds
_EVERY = 0.5


class Presences:
    """A task of the service: records the state of agents when it changes, and keeps their processes running."""

    def __init__(self, monitor: Monitor, *, watch: FdWatch, context: WakeContext) -> None:
        self._monitor = monitor
        self._workspace = monitor.workspace
        self._clock = self._workspace.clock
        self._context = context
        self._commands = self._wanted()
        most = self._workspace.team.limits.starts
        self._supervisor = Supervisor(
            self._commands, clock=self._clock, watch=watch, output=self._workspace.log_file, most=most
        )
        self._successes: dict[str, int] = {}
        self._known: dict[str, Presence] = {}
        self._started = self._clock.boot()
        self._due = float("-inf")

    def step(self) -> None:
        self._supervisor.step()
        now = self._clock.boot()
        if now < self._due:
            return
        self._due = now + _EVERY
        children = {state.name: state for state in self._supervisor.states()}
        changed = [
            found
            for name, runner in self._monitor.runners.items()
            if (found := self._observed(runner, children.get(name))) != self._known.get(name)
        ]
        if changed:
            self._known |= {found.name: found for found in changed}
            try:
                self._workspace.memory.note(changed)
            except StoreError as exc:
                log.warning("presence not written: %(error)s", {"error": str(exc)})

    def next_due(self) -> float | None:
        due = [] if (restart := self._supervisor.next_due()) is None else [restart]
        if len(self._known) < len(self._monitor.runners) or any(
            found.presence != "idle" for found in self._known.values()
        ):
            due.append(max(0.0, self._due - self._clock.boot()))
        return min(due, default=None)

    def reload(self) -> None:
        """Apply the team file: start and stop processes, and restart those whose command changed."""
        before, self._commands = self._commands, self._wanted()
        for name in before.keys() - self._commands.keys():
            self._supervisor.drop(name)
        for name, command in self._commands.items():
            self._supervisor.keep(name, command)
        self._known = {name: found for name, found in self._known.items() if name in self._workspace.team.agents}

    def _wanted(self) -> dict[str, Command]:
        agents = {name: about for name, about in self._workspace.team.agents.items() if about.process}
        return {name: command for name, about in agents.items() if (command := self._command(name, about))}

    def stop(self, grace: float) -> None:
        """Stop the processes and record their agents as gone."""
        self._supervisor.stop(grace)
        gone = [
            found._replace(presence="gone", since=self._clock.now(), busy_with="", pid=None)
            for name, found in self._known.items()
            if name in self._commands
        ]
        try:
            self._workspace.memory.note(gone)
        except StoreError as exc:
            log.warning("presence not written: %(error)s", {"error": str(exc)})

    def _observed(self, runner: AgentRunner, child: ChildState | None) -> Presence:
        before = self._known.get(runner.name)
        presence, busy_with = self._state(runner, child), ""
        if runner.turn is not None and presence != "away":
            busy_with = f"{runner.turn.message.type} {runner.turn.message.id}"
        same = before is not None and (before.presence, before.busy_with) == (presence, busy_with)
        since = before.since if same and before is not None else self._clock.now()
        self._recovered(runner, child)
        return Presence(
            runner.name,
            presence,
            since,
            busy_with,
            child.pid if child else None,
            child.restarts if child else 0,
            self._beat_at(runner),
        )

    def _state(self, runner: AgentRunner, child: ChildState | None) -> str:
        if child is not None and child.pid is None:
            if child.due is None:
                self._escalate_gone(runner.name, child)
            return "starting" if child.due is not None else "gone"
        if runner.away_reason:
            return "away"  # also while it is tried again
        if runner.turn is not None:
            silent = self._clock.boot() - runner.sign_at
            stale = not runner.running and silent > self._workspace.team.limits.turn * STALE_AFTER
            return "busy" if not stale else "stale" if runner.looked else "away"
        fresh = self._clock.boot() - self._started < _STARTING
        return "starting" if child is not None and fresh else "idle"

    def _beat_at(self, runner: AgentRunner) -> float | None:
        if runner.turn is None or runner.running:
            return None
        return round(self._clock.now() - (self._clock.boot() - runner.sign_at), 1)

    def _recovered(self, runner: AgentRunner, child: ChildState | None) -> None:
        if runner.successes > self._successes.get(runner.name, 0):
            self._successes[runner.name] = runner.successes
            if child is not None:
                self._supervisor.forgive(runner.name)
                self._monitor.intake.forget_escalation(f"gone/{runner.name}")

    def _escalate_gone(self, name: str, child: ChildState) -> None:
        known = self._known.get(name)
        if known is None or known.presence != "gone":
            reason = f"its process ended {child.restarts} times, the last time with status {child.status}"
            self._monitor.intake.escalate(f"gone/{name}", f"agent {name} is gone", name, reason)

    def _command(self, name: str, about: Agent) -> Command | None:
        variables: Mapping[str, str] = {"IGNITE_ROOT": str(self._workspace.root), "IGNITE_AGENT": name}
        try:
            return command_of(self._context, about.process, about.variables, variables)
        except WakeFailed as exc:
            log.error("%(agent)s cannot be started: %(error)s", {"agent": name, "error": str(exc)})
            self._monitor.intake.escalate(f"gone/{name}", f"agent {name} cannot be started", name, str(exc))
            return None
