"""The chamberlain as a process: each round he measures, looks after the roles, reads the journal, cleans and tells."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime

import msgspec

from pabal.kingdom.chamberlain.alerts import Alert, Alerts
from pabal.kingdom.chamberlain.health import Health, Measure
from pabal.kingdom.chamberlain.journal import Reading, rotate
from pabal.kingdom.chamberlain.retention import clean
from pabal.kingdom.chamberlain.roles import Roles, end_orphans
from pabal.kingdom.chamberlain.settings import Settings, read_settings
from pabal.kingdom.documents import instant
from pabal.kingdom.envoy.questions import Questions
from pabal.kingdom.home import Home
from pabal.kingdom.layout import EVENTS
from pabal.kingdom.records import Record
from pabal.kingdom.serving import role_lock, serve
from pabal.runtime.resources import load
from pabal.runtime.wake import FdWatch
from pabal.store import State

_DAY = 86400.0


class Done(msgspec.Struct, frozen=True):
    """The day on which old things were last removed."""

    cleaned: str = ""


class Chamberlain:
    """A task of his service."""

    def __init__(self, home: Home, settings: Settings, measure: Measure = load) -> None:
        self._home = home
        self._settings = settings
        self._health = Health(home, settings.health, measure)
        self._roles = Roles(home, settings.roles)
        self._reading = Reading(home, settings.alerts)
        self._alerts = Alerts(home)
        self._done = Record(home.root / "state/chamberlain/done.json", Done)
        self._last = float("-inf")

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
        self._alerts.tell(alerts)

    def _machine(self) -> Iterator[Alert]:
        reading = self._health.load
        if self._health.level == "red":
            text = f"the machine is at its limit: processor {reading.cpu:.0f} %, memory {reading.memory:.0f} %"
            yield Alert("health", "red", text, "urgent")
        if reading.disk > self._settings.health.disk:
            yield Alert("disk", "full", f"the disk is {reading.disk:.0f} % full")

    def _waiting(self) -> Iterator[Alert]:
        """Tell of what waits for too long: events that nobody dispatches, questions that nobody answers."""
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
        now = datetime.fromtimestamp(self._home.clock.now(), UTC)
        due = f"{now:%Y%m%d}" != self._done.value.cleaned and now.hour >= self._settings.retention.hour
        if due or early:
            clean(self._home, self._settings.retention)
            self._done.save(Done(f"{now:%Y%m%d}" if due else self._done.value.cleaned))


def run(home: Home) -> None:
    """Serve until told to stop."""
    settings = read_settings(home.root)
    with closing(role_lock(home, "chamberlain")):
        serve(home, "chamberlain", FdWatch(), Chamberlain(home, settings))
