"""The chamberlain as a process: measures the machine, checks the roles, reads the journal, cleans up, sends alerts."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from pabal.apps.kingdom.chamberlain.alerts import Alert, Alerts
from pabal.apps.kingdom.chamberlain.hung_roles import RoleCheck, end_orphans
from pabal.apps.kingdom.chamberlain.journal_reader import JournalReader, rotate
from pabal.apps.kingdom.chamberlain.settings import FILE, Retention, Settings
from pabal.apps.kingdom.config import read_config
from pabal.apps.kingdom.documents import document_of, instant
from pabal.apps.kingdom.envoy.questions import Questions
from pabal.apps.kingdom.health import HealthMeter, Measure
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.king.archive import COMPLETED_QUEUE
from pabal.apps.kingdom.layout import COMPLETED, COMPLETED_TASKS, EVENTS, OPEN_STATES, RESULTS_ARCHIVE, TASKS
from pabal.apps.kingdom.outside_tasks import outside_tasks
from pabal.apps.kingdom.roles import role_lock, serve
from pabal.policy.retention import RetentionClock
from pabal.runtime.resources import MachineLoad
from pabal.runtime.state_file import DAMAGED, StateFile, read_state
from pabal.runtime.wake import FdWatch
from pabal.store import State

_DAY = 86400.0
_TASK = re.compile(r"(task-\d{8}-\d{3,})[-.]", re.ASCII)
# The files that are removed, and the setting with their age. Never a result itself: its folder is a queue.
_REMOVED = {
    "logs/events-*.log": "logs",
    "logs/system-*.log": "logs",
    "logs/sessions/*": "logs",
    "state/results/task-*-*-*": "results",
    f"{COMPLETED}/*.json": "completed",
    f"{COMPLETED_TASKS}/*.json": "completed",
    f"{RESULTS_ARCHIVE}/*.json": "results",
    "state/prompts/*": "prompts",
    "state/sentinel/seen/*": "seen",
    "state/questions/*.json": "questions",
}


class Done(msgspec.Struct, frozen=True):
    """The day on which old files were last removed."""

    cleaned: str = ""


class Chamberlain:
    """A task of the chamberlain's service."""

    def __init__(self, home: Home, settings: Settings, measure: Measure | None = None) -> None:
        self._home = home
        self._settings = settings
        self._health = HealthMeter(home, settings.health, measure or MachineLoad())
        self._roles = RoleCheck(home, settings.roles)
        self._reading = JournalReader(home, settings.alerts)
        self._alerts = Alerts(home)
        self._done = StateFile(home.root / "state/chamberlain/done.json", Done)
        self._last = float("-inf")
        self._retention = RetentionClock(home.clock)
        self._early = False  # the machine is at its limit: clean without waiting for the hour

    def step(self) -> None:
        if self.next_due() <= 0:
            self._last = self._home.clock.boot()
            self._round()

    def next_due(self) -> float:
        pause = self._settings.interval_seconds
        if self._roles.busy:
            pause = min(pause, self._settings.roles.grace_seconds)
        return max(0.0, self._last + pause - self._home.clock.boot())

    def _round(self) -> None:
        changed = self._health.read()
        alerts = [*self._roles.check(), *self._reading.read(), *self._machine(), *self._waiting()]
        end_orphans(self._home)
        rotate(self._home, self._settings.retention.log_bytes)
        self._clean(early=changed and self._health.level == "red")
        self._alerts.send(alerts)

    def _machine(self) -> Iterator[Alert]:
        reading = self._health.load
        standing = any(alert.key == "health" for alert in self._alerts.standing)
        # Once sent, it is over when the machine has room for new work again.
        if self._health.level == "red" or (standing and self._health.level == "orange"):
            text = f"the machine is at its limit: processor {reading.cpu:.0f} %, memory {reading.memory:.0f} %"
            yield Alert("health", "red", text, "urgent")
        if reading.disk > self._settings.health.disk:
            yield Alert("disk", "full", f"the disk is {reading.disk:.0f} % full")

    def _waiting(self) -> Iterator[Alert]:
        """Return alerts about events and questions that wait for too long."""
        now, limits = self._home.clock.now(), self._settings.alerts
        entries = self._home.queue(EVENTS).browse(State.READY)
        times = [entry.message.created_at for entry in entries if entry.message]
        if times and now - min(times) > limits.waiting_seconds:
            minutes = limits.waiting_seconds / 60
            yield Alert("waiting", "long", f"events have waited for more than {minutes:.0f} minutes")
        for question in Questions(self._home).open():
            if now - instant(question.asked_at) > limits.question_days * _DAY:
                days = limits.question_days
                yield Alert(f"question-{question.task_id}", "old", f"{question.task_id} has asked for {days:g} days")

    def _clean(self, *, early: bool) -> None:
        self._early |= early
        at = self._retention.now()
        if at is None:
            return
        now = datetime.fromtimestamp(self._home.clock.now(), UTC)
        due = f"{now:%Y%m%d}" != self._done.value.cleaned and now.hour >= self._settings.retention.hour
        if due or self._early:
            clean(self._home, self._settings.retention, at)
            self._done.save(Done(f"{now:%Y%m%d}" if due else self._done.value.cleaned))
            self._early = False


def clean(home: Home, days: Retention, at: float) -> int:
    """Remove files that were old at an instant, except those of open tasks and open questions; return how many.

    The queues themselves forget finished events, tasks, results and notices.
    """
    entries = [entry for state in OPEN_STATES for entry in home.queue(TASKS).entries(state)]
    bodies = {entry.id: entry.message.body if entry.message else None for entry in entries}
    bodies |= {id: document_of(task) for id, task in outside_tasks(home).items()}
    kept = {used for id, body in bodies.items() for used in _used_by(id, body)}
    kept |= {question.task_id for question in Questions(home).open()}
    removed = 0
    for pattern, age in _REMOVED.items():
        for path in _older(home, pattern, at - getattr(days, age) * _DAY):
            task = _TASK.match(path.name)
            if task is None or task[1] not in kept:
                with suppress(OSError):
                    path.unlink()
                    removed += 1
    removed += _clean_worktrees(home, kept, at - days.results * _DAY)
    if not home.on_files:
        removed += home.queue(COMPLETED_QUEUE).purge(State.READY, age=home.clock.now() - at + days.completed * _DAY)
    if removed:
        home.journal.note("recovery.files_cleaned", "chamberlain", files=removed)
    return removed


def _used_by(id: str, body: Any) -> set[str]:
    """Return the tasks whose files an open task uses: its own, and those of the task whose work it resumes."""
    payload = body.get("payload") if isinstance(body, dict) else None
    if not isinstance(payload, dict):
        return {id}
    return {id, str(payload.get("original_task_id")), str(payload.get("workspace")).rpartition("@")[2]}


def _clean_worktrees(home: Home, kept: set[str], since: float) -> int:
    """Remove old worktrees, except those that an open task or the answer to an open question will use."""
    needed = set(kept)
    for id in kept:
        with suppress(*DAMAGED, AttributeError):
            checkpoint = read_state(home.root / "state/results" / f"{id}-checkpoint.json", dict[str, Any])
            needed.add(str(checkpoint.get("workspace")).rpartition("@")[2])
    removed = 0
    folders = home.root / "workspace"
    for path in (*folders.glob("*/**/*@task-*"), *folders.glob("*/trial-task-*")):
        with suppress(OSError):
            if path.is_dir() and path.name.rpartition("@")[2] not in needed and path.stat().st_mtime < since:
                shutil.rmtree(path)
                removed += 1
    return removed


def _older(home: Home, pattern: str, since: float) -> Iterator[Path]:
    for path in home.root.glob(pattern):
        with suppress(OSError):
            if path.is_file() and not path.is_symlink() and path.stat().st_mtime < since:
                yield path


def run(home: Home) -> None:
    """Run until stopped."""
    settings = read_config(home.root / FILE, Settings)
    with closing(role_lock(home, "chamberlain")):
        serve(home, "chamberlain", FdWatch(), Chamberlain(home, settings))
