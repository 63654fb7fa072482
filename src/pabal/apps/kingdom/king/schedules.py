"""Schedules: each occurrence makes one task, also across restarts. Missed or held occurrences run once, later.

`state/king/schedule-sent.json` has the last occurrence of each schedule. It is written after the task, whose dedup key
names the occurrence. A crash in between repeats the publish and makes no second task.
"""

from __future__ import annotations

from pabal.apps.kingdom.documents import Task, instant, stamp
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.king.dispatch import health_of, start_notice
from pabal.apps.kingdom.manifests import Manifest, Routing, Schedule, Table
from pabal.errors import MessageUnknown
from pabal.queues import cron
from pabal.runtime.state_file import DAMAGED, read_state, write_state

FILE = "state/king/schedule-sent.json"
_AHEAD = 60.0  # seconds: the clock may be set back by less without consequence


class Schedules:
    """A task of the King's service."""

    def __init__(self, home: Home, routing: Routing) -> None:
        self._home = home
        self._routing = routing

    def step(self) -> None:
        sent = read_sent(self._home)
        before = dict(sent)
        for manifest in self._routing.table.generals.values():
            for schedule in manifest.schedules:
                self._check(manifest, schedule, sent)
        if sent != before:
            write_state(self._home.root / FILE, sent)

    def next_due(self) -> float:
        """Return the time to the next occurrence, or the slow poll if that is sooner: manifests and the gate change."""
        now = self._home.clock.now()
        coming = [
            at - now
            for manifest in self._routing.table.generals.values()
            for schedule in manifest.schedules
            if (at := cron.following(schedule.cron, schedule.timezone, now)) is not None
        ]
        return max(0.0, min([self._home.king.intervals.schedule_check_seconds, *coming]))

    def _check(self, manifest: Manifest, schedule: Schedule, sent: dict[str, str]) -> None:
        key = key_of(manifest, schedule)
        now = self._home.clock.now()
        if key not in sent or instant(sent[key]) > now + _AHEAD:
            sent[key] = stamp(now)  # a new schedule begins now; so does one whose record is of a clock that was ahead
            return
        due = cron.last(schedule.cron, schedule.timezone, now)
        if due is None or due <= instant(sent[key]):
            return
        if schedule.catch_up == "skip" and now - due > 2 * self._home.king.intervals.schedule_check_seconds:
            sent[key] = stamp(due)
            self._home.journal.note("event.discarded", "king", event=key, reason="missed, and catch_up is skip")
            return
        if health_of(self._home).held("normal"):
            return  # it stays due; `pabal kingdom status` shows it
        send(self._home, manifest, schedule, f"{key}@{stamp(due)}")
        sent[key] = stamp(due)


def send(home: Home, manifest: Manifest, schedule: Schedule, key: str) -> str:
    """Publish the task of one occurrence, with its start notice; return its id."""
    [id] = home.task_ids.take()
    task = Task(
        id=id,
        event_id=f"schedule-{schedule.name}",
        target_general=manifest.name,
        type=schedule.task_type,
        repo=schedule.repo,
        payload=schedule.payload,
        priority="low",
        created_at=stamp(home.clock.now()),
    )
    notice = start_notice(home, task, f"schedule.{schedule.task_type}")
    published = home.store.publish([home.draft(task, key=key), home.draft(notice, key=key)])
    if not published[0].duplicate:
        home.journal.note("task.created", "king", task=id, general=manifest.name, type=schedule.task_type)
    return published[0].id


def key_of(manifest: Manifest, schedule: Schedule) -> str:
    return f"{manifest.name}:{schedule.name}"


def read_sent(home: Home) -> dict[str, str]:
    """Read the last occurrence of each schedule; a damaged file counts as empty, and is noted in the journal."""
    try:
        found = read_state(home.root / FILE, dict[str, str])
        return {key: text for key, text in found.items() if instant(text)}
    except FileNotFoundError:
        return {}
    except DAMAGED as exc:
        home.journal.note("system.warning", "king", problem=f"{FILE} cannot be read and is begun again: {exc}"[:300])
        return {}


def deferred(home: Home, table: Table) -> list[str]:
    """Name the schedules that are due and held."""
    held = health_of(home).held("normal")
    if not held:
        return []
    sent, now = read_sent(home), home.clock.now()
    return [
        f"{key}: {held}"
        for manifest in table.generals.values()
        for schedule in manifest.schedules
        if (key := key_of(manifest, schedule)) in sent
        and (due := cron.last(schedule.cron, schedule.timezone, now)) is not None
        and due > instant(sent[key])
    ]


def find(table: Table, name: str) -> tuple[Manifest, Schedule]:
    """Return the schedule of this name, `daily` or `gen-test:daily`; raise MessageUnknown if there is none."""
    every = [(manifest, schedule) for manifest in table.generals.values() for schedule in manifest.schedules]
    for manifest, schedule in every:
        if name in (schedule.name, key_of(manifest, schedule)):
            return manifest, schedule
    known = ", ".join(key_of(*each) for each in every) or "none"
    raise MessageUnknown(f"no schedule {name!r:.80}; there are {known}")
