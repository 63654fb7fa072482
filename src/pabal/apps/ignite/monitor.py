"""The monitor: gives each agent its next message, one at a time, all agents at once.

The number of commands that run at once is limited. An agent that was only notified does not count for that limit,
however long its mail stays unread.

Files that arrive and commands that end wake it; in between it sleeps, in one thread. What it has given out is in the
folders, so a monitor that was killed is followed by one that continues from there.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pabal.apps.ignite import wakes
from pabal.apps.ignite.intake import Intake
from pabal.apps.ignite.layout import DEAD_LETTERS
from pabal.apps.ignite.memory import FactWriter
from pabal.apps.ignite.team import USER
from pabal.apps.ignite.turns import AgentRunner, WakeThreads, give_back
from pabal.apps.ignite.wakes import Wake, WakeContext
from pabal.apps.ignite.workspace import BEATS, Held, Workspace
from pabal.errors import PabalError, StoreError
from pabal.policy.retention import RetentionClock
from pabal.runtime.wake import FdWatch, PollableWatch
from pabal.store import State
from pabal.watch import ARRIVALS, ATTRIB, CLOSE_WRITE, DELETE, MOVED_FROM, MOVED_TO, OVERFLOW, Inotify

log = logging.getLogger("pabal.ignite")

_SWEEP_EVERY = 30.0  # seconds
_PAUSE_AFTER_ERROR = 1.0  # seconds before an agent whose files caused an error is served again
_FACTS_KEPT = 30 * 86400.0

# Where something happened: in a folder of an agent, in the database, or anywhere.
QUEUE, PROCESSED, CORRUPT, OWN, BEAT = "queue", "processed", "corrupt", "own", "beat"
STORE, ALL = "store", "all"


class Monitor:
    """A task of the service: gives messages to agents and handles the ends of their turns."""

    def __init__(
        self, workspace: Workspace, *, watch: FdWatch, folder: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        self.workspace = workspace
        self._watch = watch
        self._clock = workspace.clock
        self._context = WakeContext(workspace.root, folder, variables or {})
        self._wakes: dict[str, Wake] = {}
        self._facts = FactWriter(lambda: workspace.memory, self._clock.boot)
        self._threads = WakeThreads(watch)
        self._wakeups = Wakeups(workspace, watch)
        self.intake = Intake(workspace)
        self.runners: dict[str, AgentRunner] = {}
        self._sweep_at = float("-inf")
        self._retention = RetentionClock(self._clock)
        workspace.mail.claim(f"{socket.gethostname()}:{workspace.root}", self._clock.now())
        self._update_runners()
        workspace.keep_served()
        self._adopt()

    # Agents that come and go

    def reload(self) -> None:
        """Apply the changed team file. A command that runs ends first, and an agent that has left finishes its turn."""
        before = self.workspace.team
        try:
            self.workspace.reload()
            self._update_runners()
            self.workspace.keep_served()
        except StoreError:
            raise
        except PabalError as exc:
            self.workspace.team = before
            log.error("team not reloaded: %(error)s", {"error": str(exc)})
        else:
            log.info("team reloaded", extra={"pabal": {"agents": list(self.workspace.team.agents)}})

    def _update_runners(self) -> None:
        team = self.workspace.team
        made = {kind: wakes.load(kind) for kind in {about.wake for about in team.agents.values()}}
        self.workspace.prepare()
        for name, about in team.agents.items():
            runner = self.runners.get(name)
            if about.wake not in self._wakes:
                self._wakes[about.wake] = made[about.wake](self._context)
            if runner is not None:
                if runner.about != about:
                    runner.change(about, self._wakes[about.wake])
                continue
            self.runners[name] = AgentRunner(
                self.workspace,
                name,
                about,
                self._wakes[about.wake],
                facts=self._facts,
                watch=self._watch,
                threads=self._threads,
                escalate=self.intake.escalate,
            )
            self._wakeups.watch(name)
        self._wakeups.watch(USER)
        self._drop_gone()

    def _drop_gone(self) -> None:
        """Drop agents that have left the team and have no turn."""
        team = self.workspace.team
        gone = [name for name, runner in self.runners.items() if name not in team.agents and runner.turn is None]
        for name in gone:
            del self.runners[name]

    def _adopt(self) -> None:
        """Continue the turns that were open when the monitor before this one ended."""
        for name, runner in self.runners.items():
            new = self.workspace.mail.recover(name)
            for held in self.workspace.held(name):
                if runner.turn is None:
                    woken_at, signed_at = self._signs(held) if held.receipt.token not in new else (None, None)
                    runner.adopt(held, woken_at=woken_at, signed_at=signed_at)
                else:
                    give_back(self.workspace, self.workspace.delivery(held), held.path, "its agent has another")

    def _signs(self, held: Held) -> tuple[float | None, float | None]:
        """Return when the agent was woken for a message, and when it gave its last sign of life after that."""
        try:
            facts = self.workspace.memory.facts_of(held.message.id)
        except StoreError:
            return None, None  # waking an agent twice is better than never
        here = (held.receipt.queue, held.attempt)
        fact = next((fact for fact in facts if (fact.queue, fact.attempt) == here and fact.woken_at is not None), None)
        if fact is None or fact.woken_at is None:
            return None, None
        signs = [fact.read_at or 0.0, beat_time(self.workspace.root, held.receipt.queue)]
        later = [sign for sign in signs if sign >= fact.woken_at]
        return fact.woken_at, max(later, default=None)

    # One pass

    def step(self) -> None:
        """Handle wake-ups, end turns that are over, and give out waiting messages."""
        now = self._clock.boot()
        self._handle_wakeups()
        for runner in self.runners.values():
            with self._isolated(runner):
                runner.check()
                runner.probe()
        self.intake.check_again(now)
        self._serve(now)
        if now >= self._sweep_at:
            self._sweep(now)
        self._facts.flush()

    def next_due(self) -> float | None:
        now = self._clock.boot()
        due = [seconds for runner in self.runners.values() if (seconds := runner.next_due()) is not None]
        free, agents = self._free(), self.workspace.team.agents
        due += [
            max(0.0, runner.due_at - now)
            for runner in self.runners.values()
            if runner.turn is None and runner.name in agents and (free > 0 or not runner.runs_commands)
        ]
        due += [seconds for seconds in (self._facts.next_due(), self.intake.next_due(now)) if seconds is not None]
        return min([*due, max(0.0, self._sweep_at - now)])

    @property
    def busy(self) -> list[AgentRunner]:
        """The agents that have a turn."""
        return [runner for runner in self.runners.values() if runner.turn is not None]

    def stop(self) -> None:
        """Wait for running commands as long as the team allows, then give back the messages that are not finished."""
        end = self._clock.boot() + self.workspace.team.limits.grace
        while any(runner.running for runner in self.busy) and (left := end - self._clock.boot()) > 0:
            self._watch.wait(min(left, 1.0))
            self._wakeups.take()
            for runner in self.busy:
                with self._isolated(runner):
                    runner.check()
        for runner in self.busy:
            runner.withdraw()
        self._facts.flush(all=True)

    def close(self) -> None:
        self._wakeups.close()
        self._threads.close()

    def _free(self) -> int:
        """Return how many more commands may run."""
        return self.workspace.team.limits.parallel - sum(runner.running for runner in self.runners.values())

    def _handle_wakeups(self) -> None:
        for agent, where, name in self._wakeups.take():
            if where in (ALL, STORE):
                self._sweep_at = float("-inf") if where == ALL else self._sweep_at
                for each in self.runners.values():
                    each.look_at = float("-inf")
            runner = self.runners.get(agent)
            if runner is None:
                if agent == USER and where != BEAT:
                    self._take_foreign(agent)
                continue
            if where == BEAT:
                runner.sign()
            elif where == CORRUPT:
                self.intake.escalate_corrupt(agent)
            elif where == PROCESSED:
                self.intake.arrived(agent, name)
            else:
                runner.look_at = float("-inf")
                if where == QUEUE and self.intake.is_legacy(name):
                    self.intake.take_legacy(agent)
                elif where == QUEUE:
                    self.intake.take_dropped(agent)

    def _serve(self, now: float) -> None:
        free = self._free()
        for runner in sorted(self._due(now), key=lambda runner: runner.served_at):
            if runner.runs_commands and free <= 0:
                continue
            with self._isolated(runner):
                free -= runner.look() and runner.runs_commands

    @contextmanager
    def _isolated(self, runner: AgentRunner) -> Iterator[None]:
        """Log an error that the files of one agent cause, so that it holds up no other agent."""
        try:
            yield
        except StoreError:
            raise
        except PabalError as exc:
            runner.look_at = self._clock.boot() + _PAUSE_AFTER_ERROR
            fields = {"agent": runner.name, "code": exc.code, "error": str(exc)}
            log.error("the files of %(agent)s: %(code)s: %(error)s", fields)

    def _due(self, now: float) -> Iterator[AgentRunner]:
        agents = self.workspace.team.agents
        free = (runner for runner in self.runners.values() if runner.turn is None and runner.name in agents)
        return (runner for runner in free if runner.due_at <= now)

    def _sweep(self, now: float) -> None:
        """Do what no wake-up asks for: remove what is old, and find mail that nobody would fetch."""
        self._sweep_at = now + _SWEEP_EVERY
        self._drop_gone()
        for runner in self.runners.values():
            runner.queue.sweep()
        for name in dict.fromkeys((*self.runners, USER)):
            self._take_foreign(name)
        self.intake.bury_unknown(self.runners)
        keep = self.workspace.team.keep
        if keep.dead:
            self.workspace.store.trim(DEAD_LETTERS, State.READY, age=keep.dead * 86400)
        at = self._retention.now()
        if at is None:
            return
        try:
            self.workspace.memory.forget(at - _FACTS_KEPT)
            if keep.archive:
                self.workspace.archive.forget(at - keep.archive * 86400)
        except PabalError as exc:
            log.warning("history not tidied: %(error)s", {"error": str(exc)})

    def _take_foreign(self, name: str) -> None:
        """Take the files that programs put into the folders of an agent or the person."""
        self.intake.take_processed(name)
        self.intake.take_legacy(name)
        self.intake.take_dropped(name)
        self.intake.escalate_corrupt(name)


def beat_time(root: Path, agent: str) -> float:
    """Return the time of an agent's last beat, in seconds since the epoch; 0 if there was none."""
    try:
        return os.stat(root / BEATS / agent).st_mtime
    except OSError:
        return 0.0


class Wakeup(NamedTuple):
    """Something happened: in which folder of which agent, to a file of which name."""

    agent: str
    where: str
    name: str


class Wakeups:
    """Wakes the loop when mail moves: one inotify instance watches the folders of all agents.

    A database wakes it too, without the name of the agent. Where inotify is missing, or lost events, the monitor polls
    everywhere.
    """

    def __init__(self, workspace: Workspace, watch: FdWatch) -> None:
        self._workspace = workspace
        self._watch = watch
        self._watched: dict[int, tuple[str, str]] = {}
        self._inotify: Inotify | None = None
        self._agents: set[str] = set()
        self._store: tuple[frozenset[str], PollableWatch | None] | None = None
        with suppress(OSError):
            self._inotify = Inotify()
            watch.add(self._inotify.fd)
            self._watched[self._inotify.add(workspace.root / BEATS, CLOSE_WRITE | ATTRIB | MOVED_TO)] = ("", BEAT)

    def watch(self, agent: str) -> None:
        """Watch the folders of an agent, which must exist."""
        self._agents.add(agent)
        if self._inotify is None:
            return
        folders = self._workspace.folders
        places = {
            QUEUE: (folders.queue(agent), ARRIVALS),
            PROCESSED: (folders.processed(agent), ARRIVALS | MOVED_FROM | DELETE),
            CORRUPT: (folders.directory(agent, State.CORRUPT), MOVED_TO),
            OWN: (f"{folders.root}/{folders.layout.private(agent)}", ATTRIB | MOVED_TO),
        }
        try:
            for where, (path, mask) in places.items():
                self._watched[self._inotify.add(path, mask)] = (agent, where)
        except OSError:
            self.stop_watching()  # no watches left: from now on the monitor polls

    def take(self) -> list[Wakeup]:
        """Return what happened since the last call."""
        found = [Wakeup("", STORE, "")] if self._store_changed() else []
        for watch, mask, name in self._inotify.events() if self._inotify is not None else ():
            if mask & OVERFLOW:
                found.append(Wakeup("", ALL, ""))
            elif watch in self._watched:
                agent, where = self._watched[watch]
                found.append(Wakeup(name if where == BEAT else agent, where, name))
        return list(dict.fromkeys(found))

    def stop_watching(self) -> None:
        """Stop watching the folders."""
        inotify, self._inotify = self._inotify, None
        if inotify is not None:
            self._watch.remove(inotify.fd)
            inotify.close()

    def close(self) -> None:
        self.stop_watching()
        self._close_store()

    def _store_changed(self) -> bool:
        """Return whether mail may have arrived in a database."""
        if self._store is None or self._store[0] != self._agents:
            self._close_store()
            made = self._workspace.mail.watch(sorted(self._agents))
            self._store = (frozenset(self._agents), made)
            if made is not None:
                self._watch.add(made.fileno())
            return made is not None  # something may have arrived before the watch
        return self._store[1] is not None and self._store[1].wait(0.0)

    def _close_store(self) -> None:
        if self._store is not None and self._store[1] is not None:
            self._watch.remove(self._store[1].fileno())
            self._store[1].close()
        self._store = None
