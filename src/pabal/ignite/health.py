"""How a team is, read from the folders and from memory: for `status`, `top` and `state/task_health.json`.

Of files, names alone are read, never the documents: ten thousand waiting messages are counted in a few milliseconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from pabal.errors import StoreError
from pabal.ignite.layout import DEAD_LETTERS, PROCESSED
from pabal.ignite.memory import Presence
from pabal.ignite.workspace import STATE, Workspace
from pabal.runtime.heartbeat import Pulse, read_pulse
from pabal.runtime.lock import holder
from pabal.store import State

HEARTBEAT, LOCK, HEALTH = "heartbeat.json", "queue_monitor.lock", "task_health.json"
_DIGITS = 16
_LOOKED_AT = 100  # messages at the head of a queue in a database among which the oldest is sought


class Load(NamedTuple):
    """What lies in the folders of one agent; `oldest` is how long the message at the end of its queue has waited."""

    name: str
    ready: int = 0
    delayed: int = 0
    inflight: int = 0
    done: int = 0
    dead: int = 0
    corrupt: int = 0
    oldest: float | None = None


class Report(NamedTuple):
    """A team at one moment."""

    root: Path
    monitor: int | None  # the process that serves it
    pulse: Pulse
    loads: list[Load]
    presences: dict[str, Presence]
    dead_letters: int


def report_of(workspace: Workspace) -> Report:
    """Look at the whole team."""
    presences: dict[str, Presence] = {}
    with suppress(StoreError):
        presences = workspace.memory.presences()
    state = workspace.root / STATE
    return Report(
        workspace.root,
        holder(state / LOCK),
        read_pulse(state / HEARTBEAT, workspace.clock),
        [load_of(workspace, name) for name in workspace.team.agents],
        presences,
        load_of(workspace, DEAD_LETTERS).ready,
    )


def load_of(workspace: Workspace, agent: str) -> Load:
    """Count what an agent has and had."""
    if workspace.papered is not None:
        return _load_in_store(workspace, agent)
    now = workspace.clock.now()
    ready = delayed = 0
    oldest = ""
    for name in _names(workspace, agent, State.READY):
        # By hand, not by the grammar: the monitor does this too, and must not be long about it.
        stem, _, marks = name.removesuffix(".mime").partition("~")
        if "~d" in marks and _due(marks) > now * 1000:
            delayed += 1
            continue
        ready += 1
        stamp = stem[-_DIGITS:]
        if stamp.isdecimal() and len(stamp) == _DIGITS and (not oldest or stamp < oldest):
            oldest = stamp
    done, dead, corrupt = (
        sum(1 for _ in _names(workspace, agent, state)) for state in (State.DONE, State.DEAD, State.CORRUPT)
    )
    inflight = sum(1 for _ in workspace.held_names(agent))
    waited = max(0.0, now - int(oldest) / 1_000_000) if oldest else None
    return Load(agent, ready, delayed, inflight, done, dead, corrupt, waited)


def _load_in_store(workspace: Workspace, agent: str) -> Load:
    found = workspace.store.counts(agent)
    head = workspace.store.browse(agent, State.READY, limit=_LOOKED_AT)
    oldest = min((entry.due_at for entry in head), default=None)
    spoilt = sum(1 for _ in _names(workspace, agent, State.CORRUPT))  # what never came into the store
    return Load(
        agent,
        ready=found.get(State.READY, 0),
        delayed=found.get(State.DELAYED, 0),
        inflight=found.get(State.INFLIGHT, 0),
        done=found.get(State.DONE, 0),
        dead=found.get(State.DEAD, 0),
        corrupt=found.get(State.CORRUPT, 0) + spoilt,
        oldest=None if oldest is None else max(0.0, workspace.clock.now() - oldest),
    )


def _due(marks: str) -> int:
    try:
        return int(marks.partition("~d")[2].partition("~")[0], 16)
    except ValueError:  # a stranger's name
        return 0


def _names(workspace: Workspace, agent: str, state: State) -> Iterator[str]:
    admits = workspace.layout.admits
    try:
        names = os.listdir(workspace.root / workspace.layout.directory(agent, state))
    except FileNotFoundError:
        return
    for name in names:
        if name != PROCESSED and admits(name):
            yield name


def write_health(workspace: Workspace) -> None:
    """Write `state/task_health.json`, for whoever watches a team from outside."""
    report = report_of(workspace)
    document = {
        "generated_at": datetime.fromtimestamp(workspace.clock.now(), UTC).isoformat(timespec="seconds"),
        "session": f"pid {os.getpid()}",
        "workspace_dir": str(workspace.root),
        "agents": [
            {"pane": about.pane, "name": name, "status": _presence(report, name)}
            for name, about in workspace.team.agents.items()
        ],
        "queues": [
            {
                "name": load.name,
                "pending": load.ready,
                "processing": load.inflight,
                "retrying": load.delayed,
                "delivered": load.done,
                "dead": load.dead,
                "corrupt": load.corrupt,
            }
            for load in report.loads
        ],
    }
    path = workspace.root / STATE / HEALTH
    draft = path.with_name(f".{HEALTH}.tmp")
    with suppress(OSError):  # a full disk must not stop the monitor
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(document)))
        draft.rename(path)


def _presence(report: Report, name: str) -> str:
    found = report.presences.get(name)
    return found.presence if found is not None else "unknown"


class Health:
    """A task of the service: keeps `task_health.json` fresh."""

    EVERY = 10.0  # seconds

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._due = float("-inf")

    def step(self) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self.EVERY
            write_health(self._workspace)

    def next_due(self) -> float | None:
        return max(0.0, self._due - time.monotonic())
