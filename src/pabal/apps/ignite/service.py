"""The team's service: one process holds the lock of a workspace, gives out its mail and keeps its agents running.

After an error of the store everything is opened again; the messages that agents hold are found again.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from pabal.apps.ignite.health import HEARTBEAT, LOCK, Health, write_health
from pabal.apps.ignite.monitor import Monitor
from pabal.apps.ignite.people import Desk, Notices
from pabal.apps.ignite.presence import Presences
from pabal.apps.ignite.wakes import WakeContext
from pabal.apps.ignite.workspace import STATE, Workspace
from pabal.clock import Clock, SystemClock
from pabal.errors import PabalError, StoreError
from pabal.runtime.heartbeat import Heartbeat
from pabal.runtime.reopening import Reopening
from pabal.runtime.role_lock import RoleLock
from pabal.runtime.service import Service, Task
from pabal.runtime.wake import FdWatch

log = logging.getLogger("pabal.ignite")

_PAUSE_AFTER_ERROR = 1.0  # seconds
_SAME_ERROR = 600.0  # seconds for which the same error of a task is logged once

# Makes further tasks for a workspace: the coordinator's sweep, the watchers.
More: TypeAlias = Callable[[Workspace, FdWatch], Sequence[Task]]


@runtime_checkable
class Closable(Protocol):
    """A task that must be closed when the service ends."""

    def close(self) -> None: ...


@runtime_checkable
class Reloadable(Protocol):
    """A task that follows the team file."""

    def reload(self) -> None: ...


class Isolated:
    """A task whose errors are logged, so that one message or file that it cannot handle does not end the service.

    Errors of the store are raised on: then everything is opened again.
    """

    def __init__(self, task: Task, clock: Clock) -> None:
        self._task, self._clock = task, clock
        self._logged: tuple[str, float] = ("", float("-inf"))
        self._failed = False

    def step(self) -> None:
        try:
            self._task.step()
            self._failed = False
        except StoreError:
            raise
        except PabalError as exc:
            self._failed = True
            text, at = f"{exc.code}: {exc}", self._clock.boot()
            if text != self._logged[0] or at - self._logged[1] > _SAME_ERROR:
                log.error("%(task)s: %(error)s", {"task": type(self._task).__name__, "error": text})
                self._logged = (text, at)

    def next_due(self) -> float | None:
        due = self._task.next_due()
        return max(due, _PAUSE_AFTER_ERROR) if self._failed and due is not None else due


class TeamService:
    """Holds the lock of a workspace until it is closed, and serves it."""

    def __init__(
        self,
        root: Path,
        *,
        folder: Path,
        variables: Mapping[str, str],
        clock: Clock | None = None,
        more: More = lambda workspace, watch: (),
        ready: Callable[[], None] = lambda: None,
        passed: Callable[[Monitor], None] = lambda monitor: None,
    ) -> None:
        self._root, self._folder, self._variables = root, folder, variables
        self._clock = clock or SystemClock()
        self._more, self._ready, self._passed = more, ready, passed
        self._reopening = Reopening((StoreError,), failed=_log_failure, hangup=lambda: None)
        with Workspace.open(root, clock=self._clock) as workspace:  # its mistakes are reported before the lock is taken
            place = workspace.root
        advice = "`pabal ignite down` stops it"
        self._lock = RoleLock(place / STATE / LOCK, self._clock.now(), f"{root} is served already", advice=advice)

    def close(self) -> None:
        self._lock.close()

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT or `stop`."""
        self._reopening.run(self._serve)
        log.info("stopped")

    def stop(self) -> None:
        self._reopening.stop()

    def _serve(self) -> None:
        with ExitStack() as stack:
            # Opened again after an error of the store: a mistake in the team file since then does not end the service.
            workspace = stack.enter_context(Workspace.open(self._root, clock=self._clock, warn=_log_mistake))
            watch = stack.enter_context(closing(FdWatch()))
            monitor = Monitor(workspace, watch=watch, folder=self._folder, variables=self._variables)
            stack.callback(monitor.close)
            context = WakeContext(workspace.root, self._folder, self._variables)
            presences = Presences(monitor, watch=watch, context=context)
            stack.callback(presences.stop, workspace.team.limits.grace)  # also after an error: they are started again
            more = self._more(workspace, watch)
            for task in more:
                if isinstance(task, Closable):
                    stack.callback(task.close)
            tell = Notices(workspace, self._variables, terminal=sys.stdout.isatty()).tell
            desk = Desk(workspace, watch=watch, tell=tell, escalate=monitor.intake.escalate)
            stack.callback(desk.close)
            tasks: tuple[Task, ...] = (monitor, presences, Health(workspace), desk, *more)
            heartbeat = Heartbeat(workspace.root / STATE / HEARTBEAT, "queue_monitor", self._clock)
            isolated = [Isolated(task, self._clock) for task in tasks]
            service = Service(watch, *isolated, heartbeat=heartbeat, passed=lambda: self._pass(monitor))
            self._reopening.began(service)
            if self._reopening.stopping:
                return
            log.info("serving", extra={"pabal": {"root": str(workspace.root), "agents": len(workspace.team.agents)}})
            with service.on_signals({signal.SIGHUP: lambda: _reload(tasks)}):
                self._ready()
                service.run()
                self._reopening.stopping = True
                # Inside `on_signals`, so that a second signal does not cut the wait for commands short.
                monitor.stop()
                presences.stop(workspace.team.limits.grace)
            write_health(workspace)

    def _pass(self, monitor: Monitor) -> None:
        self._reopening.passed()
        self._passed(monitor)


def _log_failure(exc: Exception, pause: float) -> None:
    code = exc.code if isinstance(exc, StoreError) else ""
    log.error("the store failed: %(error)s", {"error": str(exc), "code": code, "again_in": pause})


def _log_mistake(text: str) -> None:
    log.error("team file: %(error)s", {"error": text})


def _reload(tasks: Sequence[Task]) -> None:
    """Apply the team file in every task; the monitor is first, because it reads the file."""
    for task in tasks:
        if isinstance(task, Reloadable):
            task.reload()
