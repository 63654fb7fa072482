"""How every role runs: one process of its name, a loop that is woken, a heartbeat that counts finished passes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from pabal.kingdom.home import Home
from pabal.runtime.heartbeat import Heartbeat
from pabal.runtime.lock import PlaceLock
from pabal.runtime.service import Service, Task
from pabal.store import Watch


def role_lock(home: Home, name: str) -> PlaceLock:
    """Hold the place of a role; raise ManagerRunning if another process has it."""
    place = home.root / "state" / name / "lock"
    return PlaceLock(place, home.clock.now(), f"{name} of {home.root} runs already", advice="stop it first")


def serve(home: Home, name: str, watch: Watch, *tasks: Task, passed: Callable[[], None] = lambda: None) -> None:
    """Run the tasks of a role until SIGTERM or SIGINT; the pass in hand is finished. The caller holds its lock."""
    heartbeat = Heartbeat(home.root / "state" / name / "heartbeat", name, home.clock)
    with closing(watch):
        service = Service(watch, *tasks, heartbeat=heartbeat, passed=passed)
        with service.on_signals({}):
            home.journal.note("system.startup", name)
            service.run()
        home.journal.note("system.shutdown", name)
