"""Serves a workspace: one process holds its lock, gives out its mail and keeps its agents, until told to stop.

After an error of the store all is opened anew: what was in hand is found in the folders.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from pabal.clock import Clock, SystemClock
from pabal.errors import StoreError
from pabal.ignite.health import HEARTBEAT, LOCK, Health, write_health
from pabal.ignite.monitor import Monitor
from pabal.ignite.presence import Presences
from pabal.ignite.wakes import Surroundings
from pabal.ignite.workspace import STATE, Workspace
from pabal.runtime.heartbeat import Heartbeat
from pabal.runtime.lock import PlaceLock
from pabal.runtime.service import Service, Task
from pabal.runtime.wake import FdWatch

log = logging.getLogger("pabal.ignite")

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds before a store that failed is opened again
# Makes further tasks for a workspace: the coordinator's rounds, the watchers.
More: TypeAlias = Callable[[Workspace, FdWatch], Sequence[Task]]


@runtime_checkable
class Closable(Protocol):
    """A task that has something to give up when the service ends."""

    def close(self) -> None: ...


@runtime_checkable
class Reloadable(Protocol):
    """A task that goes by the team file."""

    def reload(self) -> None: ...


class Serving:
    """One workspace, served from the moment this is made until it is closed."""

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
        self._service: Service | None = None
        self._stopping = False
        self._failures = 0
        with Workspace.open(root, clock=self._clock) as workspace:  # what is wrong with it is said before it is locked
            place = workspace.root
        advice = "`pabal ignite down` stops it"
        self._lock = PlaceLock(place / STATE / LOCK, self._clock.now(), f"{root} is served already", advice=advice)

    def close(self) -> None:
        self._lock.close()

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT or `stop`."""
        while not self._stopping:
            try:
                self._serve()
            except StoreError as exc:
                if self._service is None:
                    raise  # it never worked: the operator should know at once
                self._wait_out(exc)
        log.info("stopped")

    def stop(self) -> None:
        self._stopping = True
        if self._service is not None:
            self._service.stop()

    def _serve(self) -> None:
        with ExitStack() as stack:
            workspace = stack.enter_context(Workspace.open(self._root, clock=self._clock))
            watch = stack.enter_context(closing(FdWatch()))
            monitor = Monitor(workspace, watch=watch, folder=self._folder, variables=self._variables)
            stack.callback(monitor.close)
            place = Surroundings(workspace.root, self._folder, self._variables)
            presences = Presences(monitor, watch=watch, place=place)
            stack.callback(presences.stop, workspace.team.limits.grace)  # also when the store fails: others will follow
            more = self._more(workspace, watch)
            for task in more:
                if isinstance(task, Closable):
                    stack.callback(task.close)
            tasks: tuple[Task, ...] = (monitor, presences, Health(workspace), *more)
            heartbeat = Heartbeat(workspace.root / STATE / HEARTBEAT, "queue_monitor", self._clock)
            service = Service(watch, *tasks, heartbeat=heartbeat, passed=lambda: self._pass(monitor))
            self._service = service
            if self._stopping:
                return
            log.info("serving", extra={"pabal": {"root": str(workspace.root), "agents": len(workspace.team.agents)}})
            with service.on_signals({signal.SIGHUP: lambda: _reload(tasks)}):
                self._ready()
                service.run()
                self._stopping = True
                # A second signal while commands are awaited must not cut this short.
                monitor.stop()
                presences.stop(workspace.team.limits.grace)
            write_health(workspace)

    def _pass(self, monitor: Monitor) -> None:
        self._failures = 0
        self._passed(monitor)

    def _wait_out(self, exc: StoreError) -> None:
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._failures, 10))
        self._failures += 1
        log.error("the store failed: %s", exc, extra={"pabal": {"code": exc.code, "again_in": pause}})
        with closing(FdWatch()) as watch:
            service = self._service = Service(watch)
            # Nothing to reload: the team is read anew when the workspace is opened again.
            with service.on_signals({signal.SIGHUP: lambda: None}):
                watch.wait(pause)
                self._stopping = self._stopping or service.stopping


def _reload(tasks: Sequence[Task]) -> None:
    """Go by the team file as it stands; the monitor comes first, for it reads it."""
    for task in tasks:
        if isinstance(task, Reloadable):
            task.reload()
