"""The health of a team: its report for `status` and `top`, and the file `state/task_health.json`."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pabal.apps.ignite.archive import item_of
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


class Hand(NamedTuple):
    """A message that an agent has in hand, and since when; None if nobody noted it."""

    id: str
    type: str
    sender: str
    subject: str
    attempt: int
    since: float | None


class Report(NamedTuple):
    """The state of a team at one moment."""

    root: Path
    monitor: int | None  # the process that serves it
    pulse: Pulse
    loads: list[Load]
    presences: dict[str, Presence]
    dead_letters: int
    hands: dict[str, list[Hand]]  # only of agents that have something in hand

    def document(self) -> dict[str, Any]:
        """Return the report as `pabal ignite status --json` and the dashboard show it."""
        return {
            "root": str(self.root),
            "monitor": {"pid": self.monitor, "state": self.pulse.state if self.monitor else "gone"},
            "deadLetters": self.dead_letters,
            "agents": [
                {
                    **load._asdict(),
                    "presence": known._asdict() if (known := self.presences.get(load.name)) else None,
                    "hand": [hand._asdict() for hand in self.hands.get(load.name, ())],
                }
                for load in self.loads
            ],
        }


def report_of(workspace: Workspace) -> Report:
    """Make the report of a team."""
    presences: dict[str, Presence] = {}
    with suppress(StoreError):
        presences = workspace.memory.presences()
    state = workspace.root / STATE
    loads = [workspace.mail.load(name) for name in workspace.team.agents]
    return Report(
        workspace.root,
        holder(state / LOCK),
        read_pulse(state / HEARTBEAT, workspace.clock),
        loads,
        presences,
        workspace.mail.load(DEAD_LETTERS).ready,
        {load.name: _hands(workspace, load.name) for load in loads if load.inflight},
    )


def _hands(workspace: Workspace, agent: str) -> list[Hand]:
    found = []
    for held in workspace.held(agent):
        since = None
        with suppress(StoreError):
            facts = workspace.memory.facts_of(held.receipt.id)
            times = [fact.delivered_at for fact in facts if (fact.queue, fact.attempt) == (agent, held.attempt)]
            since = next((at for at in times if at is not None), None)
        item = item_of(agent, held.message)
        found.append(Hand(held.receipt.id, item.type, item.sender, item.subject, held.attempt, since))
    return found


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
