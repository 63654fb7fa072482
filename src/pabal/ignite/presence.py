"""How each agent is: starting, idle, busy with what and since when, stale, gone; and its process kept running.

An agent whose team file names a `process` is started with the team and again when it ends, so many times in a row; then
it is gone, and the leader is told, once. A message done by it begins the count anew.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pabal.errors import StoreError, WakeFailed
from pabal.ignite.memory import Presence
from pabal.ignite.monitor import Monitor
from pabal.ignite.team import Agent
from pabal.ignite.turns import Post
from pabal.ignite.wakes import Surroundings
from pabal.ignite.wakes.exec import command_of
from pabal.runtime.process import Child, Command
from pabal.runtime.supervisor import ChildState, Supervisor
from pabal.runtime.wake import FdWatch

log = logging.getLogger("pabal.ignite")

SILENT = 1 / 3  # of what a turn may be silent for: then its agent counts as stale
_STARTING = 2.0  # seconds
_EVERY = 0.5


class Presences:
    """A task of the service: knows how the agents are, writes it down when it changes, keeps processes running."""

    def __init__(self, monitor: Monitor, *, watch: FdWatch, place: Surroundings) -> None:
        self._monitor = monitor
        self._workspace = monitor.workspace
        self._clock = self._workspace.clock
        self._place = place
        self._commands = self._wanted()
        most = self._workspace.team.limits.starts
        self._supervisor = Supervisor(self._commands, clock=self._clock, watch=watch, start=self._start, most=most)
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
            for name, post in self._monitor.posts.items()
            if (found := self._look(post, children.get(name))) != self._known.get(name)
        ]
        if changed:
            self._known |= {found.name: found for found in changed}
            try:
                self._workspace.memory.note(changed)
            except StoreError as exc:
                log.warning("presence not written: %s", exc)

    def next_due(self) -> float | None:
        due = [] if (restart := self._supervisor.next_due()) is None else [restart]
        if len(self._known) < len(self._monitor.posts) or any(
            found.presence != "idle" for found in self._known.values()
        ):
            due.append(max(0.0, self._due - self._clock.boot()))
        return min(due, default=None)

    def reload(self) -> None:
        """Go by the team file as it stands: end and begin processes, and begin those anew that changed."""
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
        """End the processes that were kept running, and say that nobody is there."""
        self._supervisor.stop(grace)
        gone = [
            found._replace(presence="gone", since=self._clock.now(), busy_with="", pid=None)
            for name, found in self._known.items()
            if name in self._commands
        ]
        try:
            self._workspace.memory.note(gone)
        except StoreError as exc:
            log.warning("presence not written: %s", exc)

    def _look(self, post: Post, child: ChildState | None) -> Presence:
        before = self._known.get(post.name)
        presence, busy_with = self._state(post, child), ""
        if post.turn is not None:
            busy_with = f"{post.turn.message.type} {post.turn.message.id}"
        same = before is not None and (before.presence, before.busy_with) == (presence, busy_with)
        since = before.since if same and before is not None else self._clock.now()
        self._recovered(post, child)
        return Presence(
            post.name,
            presence,
            since,
            busy_with,
            child.pid if child else None,
            child.restarts if child else 0,
            self._beat_at(post),
        )

    def _state(self, post: Post, child: ChildState | None) -> str:
        if child is not None and child.pid is None:
            if child.due is None:
                self._tell_gone(post.name, child)
            return "starting" if child.due is not None else "gone"
        if post.turn is not None:
            silent = self._clock.boot() - post.sign_at
            stale = not post.running and silent > self._workspace.team.limits.turn * SILENT
            return "stale" if stale else "busy"
        fresh = self._clock.boot() - self._started < _STARTING
        return "starting" if child is not None and fresh else "idle"

    def _beat_at(self, post: Post) -> float | None:
        if post.turn is None or post.running:
            return None
        return round(self._clock.now() - (self._clock.boot() - post.sign_at), 1)

    def _recovered(self, post: Post, child: ChildState | None) -> None:
        if post.successes > self._successes.get(post.name, 0):
            self._successes[post.name] = post.successes
            if child is not None:
                self._supervisor.forgive(post.name)
                self._forget_told(post.name)

    def _forget_told(self, name: str) -> None:
        try:
            self._workspace.memory.forget_seen(f"told/gone/{name}")
        except StoreError as exc:
            log.warning("memory not written: %s", exc)

    def _tell_gone(self, name: str, child: ChildState) -> None:
        known = self._known.get(name)
        if known is None or known.presence != "gone":
            reason = f"its process ended {child.restarts} times, the last time with status {child.status}"
            self._monitor.intake.tell(f"gone/{name}", f"agent {name} is gone", name, reason)

    def _command(self, name: str, about: Agent) -> Command | None:
        variables: Mapping[str, str] = {"IGNITE_ROOT": str(self._workspace.root), "IGNITE_AGENT": name}
        try:
            return command_of(self._place, about.process, about.variables, variables)
        except WakeFailed as exc:
            log.error("%s: %s", name, exc)
            self._monitor.intake.tell(f"gone/{name}", f"agent {name} cannot be started", name, str(exc))
            return None

    def _start(self, command: Command) -> Child:
        name = next(name for name, known in self._commands.items() if known == command)
        with open(self._workspace.root / "logs" / f"{name}.log", "ab", buffering=0) as log_file:
            return Child(command, stdout=log_file, stderr=log_file)
