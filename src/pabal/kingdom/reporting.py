"""How a kingdom stands: its roles, its queues, what is held and why, what is wrong. Reads, and changes nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pabal import jsontext
from pabal.durable import read_plain
from pabal.errors import InvalidInput
from pabal.kingdom.diagnosis import journal
from pabal.kingdom.documents import PRIORITIES
from pabal.kingdom.home import Home
from pabal.kingdom.journal import FAILED, FILE
from pabal.kingdom.king.archive import COMPLETED_QUEUE
from pabal.kingdom.king.dispatch import health_of, room_for_tasks
from pabal.kingdom.king.schedules import deferred
from pabal.kingdom.layout import COMPLETED, EVENTS, QUEUES, TASKS
from pabal.kingdom.manifests import FOLDER, load
from pabal.kingdom.records import Record
from pabal.kingdom.routing import Table
from pabal.kingdom.sentinel.problems import FILE as WATCHERS
from pabal.kingdom.sentinel.problems import Problems
from pabal.kingdom.staleness import config_problems
from pabal.kingdom.strays import stray_problems
from pabal.kingdom.supervision import holder_of
from pabal.runtime.heartbeat import read_pulse
from pabal.store import Entry, State

_LATELY = 20  # problems of the journal that are shown
_WAITING = (State.READY, State.DELAYED, State.INFLIGHT)


@dataclass(frozen=True)
class Role:
    """A role: `ok`, `hung` or `gone`, and how long ago it finished a pass."""

    name: str
    state: str
    pid: int | None
    since: str


@dataclass(frozen=True)
class Report:
    """What `pabal kingdom status` shows."""

    home: str
    up: int | None
    roles: list[Role]
    health: str
    soldiers: int
    most_soldiers: int
    queues: dict[str, dict[str, int]]
    problems: list[str]

    def document(self) -> dict[str, Any]:
        return asdict(self)


def report(home: Home) -> Report:
    """Look at everything."""
    routing = Table(load(home.root / FOLDER), home.config.engine)
    queues = {
        name: {str(state): count for state, count in home.queue(name).counts().items()}
        for name in (*QUEUES, *(() if home.on_files else (COMPLETED_QUEUE,)))
    }
    most = home.king.concurrency.max_soldiers
    up = holder_of(home.root)
    roles = [_role(home, name) for name in (*home.config.roles, *routing.generals)]
    absent = [role.name for role in roles if role.state == "gone"] if up else []
    return Report(
        home=str(home.root),
        up=up,
        roles=roles,
        health=_health(home, absent),
        soldiers=sum(queues[TASKS][state] for state in _WAITING),
        most_soldiers=most,
        queues=queues,
        problems=[
            *_absent(home, absent),
            *config_problems(home),
            *routing.problems,
            *_set_aside(home),
            *stray_problems(home),
            *_orphaned(home, routing),
            *_late(home, routing),
            *_watchers(home),
        ],
    )


def _role(home: Home, name: str) -> Role:
    pulse = read_pulse(home.root / "state" / name / "heartbeat", home.clock)
    since = f"{pulse.silent:.0f} s ago" if pulse.state != "gone" else ""
    return Role(name, pulse.state, pulse.beat.pid if pulse.beat and pulse.state != "gone" else None, since)


def _health(home: Home, absent: list[str]) -> str:
    """Say how the machine is; a kingdom that is up and lacks a role is not well, however the machine is."""
    health = health_of(home)
    machine = f"{health.level}{f': {health.warning}' if health.warning else ''}"
    return f"incomplete: {', '.join(absent)} gone; the machine is {machine}" if absent else machine


def _absent(home: Home, names: list[str]) -> list[str]:
    """Say why roles are gone that should run, as far as they told it, and where to look."""
    last = {line["actor"]: line for line in journal(home.root / FILE) if line["type"].startswith("system.")}
    found = []
    for name in names:
        told = last.get(name)
        why = f": {told['data'].get('problem')}" if told and told["type"] == FAILED else ""
        found.append(f"{name} is gone{why}; `pabal kingdom logs --system` shows what it printed")
    return found


def _set_aside(home: Home) -> list[str]:
    """Name what is malformed, or dead, with its reason."""
    found = []
    for name in QUEUES:
        for state, word in ((State.CORRUPT, "malformed"), (State.DEAD, "given up")):
            found += [f"{name}: {entry.id} {word}: {_reason(entry)}" for entry in home.queue(name).browse(state)]
    return found


def _orphaned(home: Home, table: Table) -> list[str]:
    entries = home.queue(TASKS).browse(State.READY)
    lost = [entry for entry in entries if entry.message and entry.message.target not in table.generals]
    return [f"tasks: {entry.id} is for {_target(entry) or 'nobody'}: there is no such general" for entry in lost]


def _late(home: Home, table: Table) -> list[str]:
    told = [line for line in journal(home.root / FILE) if line["type"] in ("event.discarded", "system.warning")]
    discarded = [
        f"{line['data'].get('event', 'warning')}: {line['data'].get('reason') or line['data'].get('problem')}"
        for line in told[-_LATELY:]
        if line["type"] == "event.discarded"
    ]
    return [*(f"schedule {text}" for text in deferred(home, table)), *discarded]


def waiting_events(home: Home, limit: int) -> list[dict[str, Any]]:
    """List events that are not dispatched, with the reason for each."""
    health, room = health_of(home), room_for_tasks(home)
    cap = home.king.concurrency.max_soldiers
    found = []
    for entry in home.queue(EVENTS).browse(State.READY, limit=limit):
        priority = _target(entry)
        why = health.held(priority) if priority in PRIORITIES else ""
        full = f"held: {cap} of {cap} soldiers busy" if room == 0 and priority in PRIORITIES else "next"
        found.append(_event(entry, why or full))
    found += [_event(entry, "being dispatched") for entry in home.queue(EVENTS).browse(State.INFLIGHT, limit=limit)]
    for state in (State.CORRUPT, State.DEAD):
        found += [_event(entry, f"malformed: {_reason(entry)}") for entry in home.queue(EVENTS).browse(state)]
    return found[:limit]


def completed_events(home: Home, limit: int) -> list[dict[str, Any]]:
    """List archived events, those archived last first."""
    if not home.on_files:
        entries = home.queue(COMPLETED_QUEUE).browse(State.READY, limit=limit)
        return [_event(entry, str(_body(entry).get("reason", ""))) for entry in entries]
    paths = sorted((home.root / COMPLETED).glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    return [_archived(path) for path in paths[:limit]]


def _archived(path: Path) -> dict[str, Any]:
    try:
        body = jsontext.read(read_plain(path))
        return {**{name: body.get(name) for name in _EVENT}, "why": body.get("reason", "")}
    except (OSError, InvalidInput, AttributeError) as exc:
        return {"id": path.stem, "why": f"malformed: {exc}"}


_EVENT = ("id", "type", "priority", "created_at")


def _event(entry: Entry, why: str) -> dict[str, Any]:
    body = _body(entry)
    return {"id": entry.id, **{name: body.get(name, "") for name in _EVENT[1:]}, "why": why}


def listed_tasks(home: Home, limit: int, *, completed: bool) -> list[dict[str, Any]]:
    """List tasks with how each stands."""
    states = (State.DONE,) if completed else (*_WAITING, State.DEAD, State.CORRUPT)
    entries = [entry for state in states for entry in home.queue(TASKS).browse(state, limit=limit)]
    return [_task(home, entry) for entry in entries[:limit]]


def _task(home: Home, entry: Entry) -> dict[str, Any]:
    body = _body(entry)
    failed = f", last: {_reason(entry)}" if entry.failure else ""
    why = {
        State.READY: f"waits for {body.get('target_general')}{failed}",
        State.DELAYED: f"again in {max(0.0, entry.due_at - home.clock.now()):.0f} s{failed}",
        State.INFLIGHT: f"runs, attempt {entry.attempt}",
        State.DONE: "done",
    }.get(entry.state, f"given up: {_reason(entry)}")
    facts = {name: body.get(name, "") for name in ("type", "priority", "created_at")}
    return {"id": entry.id, "general": body.get("target_general", ""), **facts, "why": why}


def _body(entry: Entry) -> dict[str, Any]:
    body = entry.message.body if entry.message else None
    return body if isinstance(body, dict) else {}


def _watchers(home: Home) -> list[str]:
    """Name the watchers that cannot look."""
    found = Record(home.root / WATCHERS, Problems).value
    return [f"watcher {name}: {problem}" for name, problem in found.watchers.items()]


def _target(entry: Entry) -> str:
    return entry.message.target if entry.message else ""


def _reason(entry: Entry) -> str:
    if entry.failure is None:
        return "unknown"
    return f"{entry.failure.code}: {entry.failure.reason}"[:300]
