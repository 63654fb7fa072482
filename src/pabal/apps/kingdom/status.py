"""The status of a kingdom: its roles, its queues, held events, problems, and the history of a task.

Everything here only reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pabal import jsontext
from pabal.apps.kingdom.config import read_config
from pabal.apps.kingdom.documents import ANSWERS, PRIORITIES, Task, instant, kind_of, plain_reason
from pabal.apps.kingdom.envoy.questions import FOLDER as QUESTIONS
from pabal.apps.kingdom.envoy.questions import Question, Questions
from pabal.apps.kingdom.general.results import failures_of
from pabal.apps.kingdom.home import SYSTEM, Home
from pabal.apps.kingdom.journal import FAILED, FILE, read_journal, tail
from pabal.apps.kingdom.king.archive import COMPLETED_QUEUE
from pabal.apps.kingdom.king.dispatch import Admission, health_of
from pabal.apps.kingdom.king.schedules import deferred
from pabal.apps.kingdom.layout import COMPLETED, EVENTS, OPEN_STATES, QUEUES, RESULTS, TASKS
from pabal.apps.kingdom.lookup import counts, finished_of, results_of, unsent
from pabal.apps.kingdom.manifests import FOLDER, Table, external_problems, load
from pabal.apps.kingdom.operate import dismissed_until, path_of, set_aside
from pabal.apps.kingdom.outside_tasks import outside_tasks
from pabal.apps.kingdom.queue_place import place_problem
from pabal.apps.kingdom.sentinel.settings import PROBLEMS, Problems
from pabal.apps.kingdom.supervision import holder_of
from pabal.apps.kingdom.unclaimed_files import unclaimed_file_problems
from pabal.errors import InvalidConfig, InvalidInput, MessageUnknown
from pabal.filesystem import read_plain
from pabal.names import check_id
from pabal.runtime.heartbeat import read_pulse
from pabal.runtime.state_file import StateFile
from pabal.store import Entry, State

_SHOWN_LINES = 20  # of the journal's problems
_ERROR_LINES = 20  # at the end of a soldier's standard error
_WITH_SETTINGS = ("sentinel", "envoy", "chamberlain")


@dataclass(frozen=True)
class Role:
    """A role: `ok`, `hung`, `gone` or `external`, and how long ago its last pass finished."""

    name: str
    state: str
    pid: int | None
    since: str


@dataclass(frozen=True)
class Report:
    """The output of `pabal kingdom status`."""

    home: str
    up: int | None
    roles: list[Role]
    health: str
    soldiers: int
    most_soldiers: int
    questions: list[str]
    queues: dict[str, dict[str, int]]
    problems: list[str]


def report(home: Home) -> Report:
    """Make the report of a kingdom."""
    routing = Table(load(home.root / FOLDER), home.config.engine)
    queues = {name: counts(home, name) for name in QUEUES}
    if not home.on_files:
        queues[EVENTS]["completed"] = home.queue(COMPLETED_QUEUE).counts()[State.READY]
    most = home.king.concurrency.max_soldiers
    up = holder_of(home.root)
    roles = _roles(home, routing)
    absent = absent_roles(home, routing)
    return Report(
        home=str(home.root),
        up=up,
        roles=roles,
        health=_health(home, list(absent)),
        soldiers=Admission(home, routing).soldiers,
        most_soldiers=most,
        questions=[_asked(home, each) for each in Questions(home).open()],
        queues=queues,
        problems=[
            *(
                f"{name} is gone{why}; `pabal kingdom logs --system` shows what it printed"
                for name, why in absent.items()
            ),
            *config_problems(home),
            *routing.problems,
            *external_problems(home, routing),
            *_unready(home, routing),
            *_set_aside(home),
            *unclaimed_file_problems(home),
            *_orphaned(home, routing),
            *_late(home, routing),
            *_watchers(home),
            *_envoy(home),
            *(f"{QUESTIONS}/{name} cannot be used: mend it, or remove it" for name in Questions(home).damaged()),
        ],
    )


def _asked(home: Home, question: Question) -> str:
    minutes = int(max(0.0, home.clock.now() - instant(question.asked_at)) // 60)
    age = f"{minutes} min" if minutes < 120 else f"{minutes // 60} h" if minutes < 2880 else f"{minutes // 1440} days"
    return f"{question.task_id} asks for {age}: {question.text}"


def _roles(home: Home, table: Table) -> list[Role]:
    found = [_role(home, name) for name in home.config.roles]
    return found + [
        Role(each.name, "external", None, "") if each.external else _role(home, each.name)
        for each in table.generals.values()
    ]


def _role(home: Home, name: str) -> Role:
    pulse = read_pulse(home.root / "state" / name / "heartbeat", home.clock)
    since = f"{pulse.silent:.0f} s ago" if pulse.state != "gone" else ""
    return Role(name, pulse.state, pulse.beat.pid if pulse.beat and pulse.state != "gone" else None, since)


def _health(home: Home, absent: list[str]) -> str:
    """Return the health of the machine; a running kingdom that lacks a role is incomplete in any case."""
    health = health_of(home)
    machine = f"{health.level}{f': {health.warning}' if health.warning else ''}"
    return f"incomplete: {', '.join(absent)} gone; the machine is {machine}" if absent else machine


def absent_roles(home: Home, table: Table) -> dict[str, str]:
    """Return the roles that are missing in a kingdom that is up, with the reason from the journal if there is one."""
    names = [role.name for role in _roles(home, table) if role.state == "gone"] if holder_of(home.root) else []
    if not names:
        return {}
    last = {line["actor"]: line for line in read_journal(home.root / FILE) if line["type"].startswith("system.")}
    lines = {name: last.get(name) for name in names}
    return {
        name: f": {line['data'].get('problem')}" if line and line["type"] == FAILED else ""
        for name, line in lines.items()
    }


def _unready(home: Home, table: Table) -> list[str]:
    """Name what the generals need and do not have: a command, a plugin, a library."""
    from pabal.apps.kingdom.preflight import check_general  # which uses this module

    found = [each for manifest in table.generals.values() for each in check_general(home, manifest)]
    return [f"{each.what}: {each.problem}; {each.advice}" for each in found if each.problem]


def _set_aside(home: Home) -> list[str]:
    """Name the corrupt and dead documents, with their reasons."""
    words = {State.CORRUPT: "malformed", State.DEAD: "given up", State.READY: "misplaced"}
    found = []
    for name, entry in set_aside(home):
        place = path_of(home, name, entry)
        found.append(f"{name}: {entry.id} {words[entry.state]}: {_reason(entry)}{f' ({place})' if place else ''}")
    return found


def orphaned_tasks(home: Home, table: Table) -> dict[str, str]:
    """Return the open tasks of generals that are gone, with the general of each.

    A general whose manifest cannot be used is not gone.
    """
    entries = (entry for state in OPEN_STATES for entry in home.queue(TASKS).browse(state))
    lost = {
        entry.id: entry.message.target
        for entry in entries
        if entry.message and isinstance(entry.message.body, dict) and kind_of(entry.message.body) is Task
    }
    here = {*table.generals, *(name.removesuffix(".yaml") for name in table.unusable)}
    return {id: target for id, target in lost.items() if target not in here}


def _orphaned(home: Home, table: Table) -> list[str]:
    """Name the open tasks of generals that are gone."""
    advice = "install it again, or `pabal kingdom retry TASK --general NAME`, or `pabal kingdom cancel TASK`"
    return [
        f"tasks: {id} is for {target or 'nobody'}: there is no such general; {advice}"
        for id, target in orphaned_tasks(home, table).items()
    ]


def _late(home: Home, table: Table) -> list[str]:
    until = dismissed_until(home)
    lines = [line for line in read_journal(home.root / FILE) if line["type"] == "event.discarded"]
    discarded = [
        f"event {line['data'].get('event')} was discarded: {line['data'].get('reason')}"
        for line in lines[-_SHOWN_LINES:]
        if str(line["ts"]) > until
    ]
    return [*(f"schedule {text}" for text in deferred(home, table)), *discarded]


def waiting_events(home: Home, limit: int) -> list[dict[str, Any]]:
    """List the events that are not dispatched, with the reason for each."""
    admission = Admission(home, Table(load(home.root / FOLDER), home.config.engine))
    found = []
    for state in (State.READY, State.DELAYED):
        for entry in home.queue(EVENTS).browse(state, limit=limit):
            body = _body(entry)
            priority, type = str(body.get("priority", "normal")), str(body.get("type", ""))
            known = priority if priority in PRIORITIES else "normal"
            found.append(_event(entry, "next" if type in ANSWERS else admission.held(known, type) or "next"))
    found += [_event(entry, "being dispatched") for entry in home.queue(EVENTS).browse(State.INFLIGHT, limit=limit)]
    for state in (State.CORRUPT, State.DEAD):
        found += [_event(entry, f"malformed: {_reason(entry)}") for entry in home.queue(EVENTS).browse(state)]
    return found[:limit]


def completed_events(home: Home, limit: int) -> list[dict[str, Any]]:
    """List archived events, the newest first."""
    if not home.on_files:
        entries = sorted(home.queue(COMPLETED_QUEUE).entries(State.READY), key=lambda entry: -entry.due_at)[:limit]
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


def open_tasks(home: Home, limit: int) -> list[dict[str, Any]]:
    """List the tasks that are not over, and those that were set aside, with the state of each."""
    states = (*OPEN_STATES, State.DEAD, State.CORRUPT)
    entries = [entry for state in states for entry in home.queue(TASKS).browse(state, limit=limit)]
    found = [_task(home, entry) for entry in entries[:limit]]
    return [*found, *(_outside(task) for task in outside_tasks(home).values())][:limit]


def finished_tasks(home: Home, limit: int) -> list[dict[str, Any]]:
    """List the tasks that are over, with how each ended, the last one first."""
    results = results_of(home)
    tasks = finished_of(home)
    open_ones = {entry.id for state in OPEN_STATES for entry in home.queue(TASKS).entries(state)}
    rows = []
    for id in (tasks.keys() | results.keys()) - open_ones:
        task, result = tasks.get(id, {}), results.get(id, {})
        names = {"general": "target_general", "type": "type", "priority": "priority", "created_at": "created_at"}
        facts = {name: task.get(theirs) or result.get(theirs, "") for name, theirs in names.items()}
        over = str(result.get("completed_at") or task.get("created_at") or "")
        rows.append((over, {"id": id, **facts, "why": _ended(result)}))
    # Ids of one block are given in order; those that are made by hand come from another block.
    newest = sorted(rows, key=lambda row: (row[0], len(row[1]["id"]), row[1]["id"]), reverse=True)
    return [row for _, row in newest[:limit]]


def _outside(task: Task) -> dict[str, Any]:
    facts = {name: getattr(task, name) for name in ("type", "priority", "created_at")}
    return {"id": task.id, "general": task.target_general, **facts, "why": "runs, in the hands of another program"}


def _task(home: Home, entry: Entry) -> dict[str, Any]:
    body = _body(entry)
    failed = f", last: {_reason(entry)}" if entry.failure else ""
    why = {
        State.READY: f"waits for {body.get('target_general')}{failed}",
        State.DELAYED: f"again in {max(0.0, entry.due_at - home.clock.now()):.0f} s{failed}",
        State.INFLIGHT: f"runs, attempt {len(failures_of(home, entry.id).value) + 1}",
    }.get(entry.state, f"given up: {_reason(entry)}")
    facts = {name: body.get(name, "") for name in ("type", "priority", "created_at")}
    return {"id": entry.id, "general": body.get("target_general", ""), **facts, "why": why}


def _ended(result: dict[str, Any]) -> str:
    """Return how a task ended, from its result."""
    if not result:
        return "done"
    text = result.get("error") or result.get("reason") or result.get("question") or result.get("summary") or ""
    return f"{result.get('status')}: {' '.join(str(text).split())[:300]}"


def _body(entry: Entry) -> dict[str, Any]:
    body = entry.message.body if entry.message else None
    return body if isinstance(body, dict) else {}


def _watchers(home: Home) -> list[str]:
    """Name the watchers that fail."""
    found = StateFile(home.root / PROBLEMS, Problems).value
    return [f"watcher {name}: {problem}" for name, problem in found.watchers.items()]


def _envoy(home: Home) -> list[str]:
    """Say why no notice reaches people."""
    problem = unsent(home)
    return [f"envoy: {problem}"] if problem else []


def _reason(entry: Entry) -> str:
    return plain_reason(entry.failure)[:300]


def diagnose(home: Home, task_id: str) -> dict[str, Any]:
    """Return all that is known about a task; raise MessageUnknown if nothing is."""
    check_id(task_id)
    task, result = home.queue(TASKS).find(task_id), home.queue(RESULTS).find(task_id)
    lines = [line for line in read_journal(home.root / FILE) if line["data"].get("task") == task_id]
    if task is None and result is None and not lines:
        raise MessageUnknown(f"nothing is known of {task_id!r:.80}; `pabal kingdom tasks --completed` lists tasks")
    at = home.root / "state/results"
    soldier = _text(at / f"{task_id}-soldier-id")
    prompt = home.root / "state/prompts" / f"{task_id}.md"
    return {
        "state": str(task.state) if task else "forgotten",
        "task": task.message.body if task and task.message else None,
        "result": result.message.body if result and result.message else None,
        "failures": StateFile(at / f"{task_id}-failures.json", list).value,
        "soldier": soldier,
        "prompt_bytes": prompt.stat().st_size if prompt.is_file() else 0,
        "last_words": tail(home.root / "logs/sessions" / f"{soldier}.err", _ERROR_LINES) if soldier else [],
        "journal": [f"{line['ts']}  {line['type']}  {line['actor']}" for line in lines],
    }


def failures(home: Home) -> list[dict[str, Any]]:
    """Return the journal's lines of failed tasks, the latest last."""
    return [line for line in read_journal(home.root / FILE) if line["type"] == "task.failed"]


def _text(path: Path) -> str:
    try:
        return read_plain(path).decode(errors="replace").strip()
    except OSError:
        return ""


def config_problems(home: Home) -> list[str]:
    """Name the files of the configuration that have a mistake, or changed after the process that reads them began.

    `king.yaml` and the manifests are followed as they change; every other file is read when a role begins.
    """
    found = [f"{home.king_problem}: running roles go on with the version before"] if home.king_problem else []
    found += [problem] if (problem := place_problem(home)) else []
    for role in home.config.roles:
        if role in _WITH_SETTINGS:
            found += _of_role(home, role)
    running = [role for role in home.config.roles if _began_before(home, role, home.root / SYSTEM)]
    if running:
        found.append(f"{SYSTEM} changed after {', '.join(running)} began: `pabal kingdom down`, then `up`")
    return found


def _of_role(home: Home, role: str) -> list[str]:
    settings = import_module(f"pabal.apps.kingdom.{role}.settings")
    path = home.root / settings.FILE
    try:
        read_config(path, settings.Settings)
    except InvalidConfig as exc:
        return [f"{exc}: {role} cannot begin with it"]
    pid = _began_before(home, role, path)
    return [f"{settings.FILE} changed after {role} began: `kill {pid}`, and it begins again with that"] if pid else []


def _began_before(home: Home, role: str, path: Path) -> int:
    """Return the process of a role if the file changed after it began, else 0."""
    pulse = read_pulse(home.root / "state" / role / "heartbeat", home.clock)
    if pulse.beat is None or pulse.state == "gone":
        return 0
    try:
        changed = path.stat().st_ctime  # the mtime of a file that is moved in may be older
    except OSError:
        return 0
    began = home.clock.now() - (home.clock.boot() - pulse.beat.started)
    return pulse.beat.pid if changed > began else 0
