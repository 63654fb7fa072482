"""The health of a team: its report for `status` and `top`, and the file `state/task_health.json`."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from pabal.apps.ignite.layout import DEAD_LETTERS, iso_time
from pabal.apps.ignite.mail_store import Load
from pabal.apps.ignite.memory import Presence
from pabal.apps.ignite.workspace import STATE, Workspace
from pabal.codecs.mime.fields import STATUS, read_head
from pabal.errors import InvalidInput, StoreError
from pabal.filesystem import UNREADABLE, read_whole
from pabal.runtime.heartbeat import Pulse, read_pulse
from pabal.runtime.role_lock import holder
from pabal.runtime.state_file import write_reading

HEARTBEAT, LOCK, HEALTH = "heartbeat.json", "queue_monitor.lock", "task_health.json"


class Report(NamedTuple):
    """The state of a team at one moment."""

    root: Path
    monitor: int | None  # the process that serves it
    pulse: Pulse
    loads: list[Load]
    presences: dict[str, Presence]
    dead_letters: int


def report_of(workspace: Workspace) -> Report:
    """Make the report of a team."""
    presences: dict[str, Presence] = {}
    with suppress(StoreError):
        presences = workspace.memory.presences()
    state = workspace.root / STATE
    return Report(
        workspace.root,
        holder(state / LOCK),
        read_pulse(state / HEARTBEAT, workspace.clock),
        [workspace.mail.load(name) for name in workspace.team.agents],
        presences,
        workspace.mail.load(DEAD_LETTERS).ready,
    )


def write_health(workspace: Workspace) -> None:
    """Write `state/task_health.json`, for programs that monitor a team; it counts by X-IGNITE-Status."""
    report = report_of(workspace)
    document = {
        "generated_at": iso_time(workspace.clock.now()),
        "session": f"pid {os.getpid()}",
        "workspace_dir": str(workspace.root),
        "agents": [
            {"pane": about.pane, "name": name, "status": _presence(report, name)}
            for name, about in workspace.team.agents.items()
        ],
        "queues": [
            {
                "name": load.name,
                "pending": load.ready + load.delayed - load.retrying,
                "processing": load.inflight - delivered,
                "retrying": load.retrying,
                "delivered": delivered,
                "completed": load.done,
                "dead": load.dead,
                "corrupt": load.corrupt,
            }
            for load in report.loads
            for delivered in [_delivered(workspace, load)]
        ],
    }
    write_reading(workspace.root / STATE / HEALTH, msgspec.json.format(msgspec.json.encode(document)))


def _delivered(workspace: Workspace, load: Load) -> int:
    """Count the messages in hand whose agent was woken."""
    if not load.inflight:
        return 0
    folder, found = workspace.folders.processed(load.name), 0
    for name, _ in workspace.folders.held_names(load.name):
        with suppress(OSError, InvalidInput, *UNREADABLE):
            found += read_head(read_whole(f"{folder}/{name}")[0]).get(STATUS) == "delivered"
    return min(found, load.inflight)


def _presence(report: Report, name: str) -> str:
    found = report.presences.get(name)
    return found.presence if found is not None else "unknown"


class Health:
    """A task of the service: writes `task_health.json` at intervals."""

    EVERY = 10.0  # seconds

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._due = float("-inf")

    def step(self) -> None:
        if self._workspace.clock.boot() >= self._due:
            self._due = self._workspace.clock.boot() + self.EVERY
            write_health(self._workspace)

    def next_due(self) -> float | None:
        return max(0.0, self._due - self._workspace.clock.boot())
