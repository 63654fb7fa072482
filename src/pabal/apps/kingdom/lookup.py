"""Look things up: the story of an event or a task, messages to people, generals, and where a type of event goes.

Everything here only reads.
"""

from __future__ import annotations

from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pabal import jsontext
from pabal.apps.kingdom.documents import document_of, plain_reason, stamp
from pabal.apps.kingdom.envoy.outbound import PROBLEM, Problem
from pabal.apps.kingdom.envoy.questions import Questions
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.king.archive import COMPLETED_QUEUE
from pabal.apps.kingdom.king.archive import WORDS as END_WORDS
from pabal.apps.kingdom.layout import (
    COMPLETED,
    COMPLETED_TASKS,
    EVENTS,
    MESSAGES,
    OPEN_STATES,
    RESULTS,
    RESULTS_ARCHIVE,
    TASKS,
)
from pabal.apps.kingdom.manifests import Schedule, Table
from pabal.apps.kingdom.outside_tasks import outside_tasks
from pabal.errors import InvalidInput, MessageUnknown
from pabal.filesystem import read_plain
from pabal.names import check_id
from pabal.queues import cron
from pabal.runtime.heartbeat import read_pulse
from pabal.runtime.state_file import StateFile
from pabal.store import Entry, State

# The words of the kingdom for the states of its queues.
WORDS: dict[str, dict[State, str]] = {
    EVENTS: {State.READY: "pending", State.DONE: "dispatched", State.DEAD: "failed"},
    TASKS: {State.READY: "pending", State.DELAYED: "resting", State.INFLIGHT: "in_progress", State.DONE: "completed"},
    RESULTS: {State.READY: "pending", State.DONE: "archived"},
    MESSAGES: {State.READY: "pending", State.DONE: "sent", State.DEAD: "failed"},
    COMPLETED_QUEUE: {State.READY: "completed"},
}
_GENERAL = {State.DELAYED: "pending", State.INFLIGHT: "pending", State.DEAD: "given up", State.CORRUPT: "malformed"}


def word(queue: str, state: State) -> str:
    """Return the kingdom's word for the state of a document."""
    return WORDS[queue].get(state) or _GENERAL.get(state, str(state))


def counts(home: Home, queue: str) -> dict[str, int]:
    """Count the documents of a queue, by the words of the kingdom."""
    found = dict.fromkeys((word(queue, state) for state in State), 0)
    for state, count in home.queue(queue).counts().items():
        found[word(queue, state)] += count
    if queue == TASKS:
        found["in_progress"] += len(outside_tasks(home))
    if queue == EVENTS and home.on_files:
        found["completed"] = sum(1 for _ in (home.root / COMPLETED).glob("*.json"))
    always = {*WORDS[queue].values(), "completed"} if queue == EVENTS else set(WORDS[queue].values())
    return {name: count for name, count in found.items() if count or name in always}


@dataclass(frozen=True)
class TaskStory:
    """A task with its state, result, question and messages, and the task that went on with it."""

    id: str
    state: str
    task: dict[str, Any] | None
    result: dict[str, Any] | None
    question: dict[str, Any] | None
    messages: list[dict[str, Any]]
    went_on_as: list[str]


@dataclass(frozen=True)
class Story:
    """An event with its state, and the tasks that it became."""

    id: str
    state: str
    event: dict[str, Any] | None
    tasks: list[TaskStory]


def story(home: Home, id: str) -> Story:
    """Return what became of an event or a task, from its event on; raise MessageUnknown if nothing is known of it.

    Work that went on after an answer belongs to the event with which it began.
    """
    check_id(id)
    tasks = _tasks(home)
    id = _first(tasks, id)
    event_id = str(tasks[id][0].get("event_id", "")) if id in tasks else id
    state, event = _event(home, event_id)
    if event_id.startswith("schedule-") and id in tasks:  # which has a task for each of its times
        own = sorted(each for each, (body, _) in tasks.items() if each == id or body.get("retry_of") == id)
    else:
        own = sorted(each for each, (body, _) in tasks.items() if body.get("event_id") == event_id)
    for each in own:  # which grows
        own += [other for other in _went_on(tasks, each) if other not in own]
    if event is None and not own:
        raise MessageUnknown(f"nothing is known of {id!r:.80}; `pabal kingdom events` and `tasks` list what there is")
    notices, results = list_messages(home), results_of(home)
    return Story(event_id, state, event, [_task_story(home, each, tasks, results, notices) for each in own])


def _task_story(
    home: Home,
    id: str,
    tasks: dict[str, tuple[dict[str, Any], str]],
    results: dict[str, dict[str, Any]],
    notices: list[dict[str, Any]],
) -> TaskStory:
    body, state = tasks[id]
    result = results.get(id)
    question = next((each for each in Questions(home).all() if each.task_id == id), None)
    return TaskStory(
        id,
        state,
        body,
        result,
        document_of(question) if question else None,
        [notice for notice in notices if notice["task"] in (id, f"proclamation-{id}")],
        _went_on(tasks, id),
    )


def _original(body: dict[str, Any]) -> str:
    """Return the task whose work a task resumes; empty if there is none."""
    payload = body.get("payload")
    return str(payload.get("original_task_id") or "") if isinstance(payload, dict) else ""


def _first(tasks: dict[str, tuple[dict[str, Any], str]], id: str) -> str:
    """Return the task with which the work of a task began."""
    for _ in tasks:
        before = _original(tasks[id][0]) if id in tasks else ""
        if before not in tasks:
            break
        id = before
    return id


def _went_on(tasks: dict[str, tuple[dict[str, Any], str]], id: str) -> list[str]:
    """Return the tasks that went on with the work of a task."""
    return sorted(other for other, (body, _) in tasks.items() if _original(body) == id)


def results_of(home: Home) -> dict[str, dict[str, Any]]:
    """Return the results of the tasks that ended, by task."""
    states = (State.READY, State.INFLIGHT, State.DONE)
    found = {entry.id: _body(entry) for state in states for entry in home.queue(RESULTS).entries(state)}
    return {**_archived(home, RESULTS_ARCHIVE, found), **found}


def finished_of(home: Home) -> dict[str, dict[str, Any]]:
    """Return the tasks that are over, by id."""
    found = {entry.id: _body(entry) for entry in home.queue(TASKS).entries(State.DONE)}
    return {**_archived(home, COMPLETED_TASKS, found), **found}


def _archived(home: Home, folder: str, known: Container[str]) -> dict[str, dict[str, Any]]:
    """Return the documents of a folder of the archive that are not known: cancelled tasks, and what was moved there."""
    found = {}
    for path in (home.root / folder).glob("*.json"):
        if path.stem not in known:
            with suppress(OSError, InvalidInput):
                body = jsontext.read(read_plain(path))
                if isinstance(body, dict):
                    found[path.stem] = body
    return found


def _tasks(home: Home) -> dict[str, tuple[dict[str, Any], str]]:
    """Return every known task with its state; of one that is forgotten, what its result has of it."""
    results = results_of(home)
    ended = {id: ({**body, "id": id}, "completed") for id, body in results.items()}
    found = {id: (body, "completed") for id, body in finished_of(home).items()}
    found |= {
        entry.id: (_body(entry), word(TASKS, state))
        for state in (*OPEN_STATES, State.DEAD)
        for entry in home.queue(TASKS).entries(state)
    }
    for id in found.keys() & results.keys():
        status = str(results[id].get("status"))
        found[id] = ({**found[id][0], "status": END_WORDS.get(status, status)}, found[id][1])
    return {**ended, **found, **{id: (document_of(task), "in_progress") for id, task in outside_tasks(home).items()}}


def _event(home: Home, id: str) -> tuple[str, dict[str, Any] | None]:
    if home.on_files:
        try:
            body = jsontext.read(read_plain(home.root / COMPLETED / f"{id}.json"))
            return "completed", body if isinstance(body, dict) else None
        except (OSError, InvalidInput):
            pass
    for queue in (EVENTS,) if home.on_files else (EVENTS, COMPLETED_QUEUE):
        if (entry := home.queue(queue).find(id)) is not None:
            return word(queue, entry.state), _body(entry)
    return ("of a schedule" if id.startswith("schedule-") else "forgotten"), None


def _body(entry: Entry) -> dict[str, Any]:
    body = entry.message.body if entry.message else None
    return body if isinstance(body, dict) else {}


def list_messages(home: Home, limit: int = 100_000) -> list[dict[str, Any]]:
    """Return the messages to people, the newest first, with how each stands."""
    found = []
    for state in State:
        for entry in home.queue(MESSAGES).entries(state):
            body = _body(entry)
            found.append(
                {
                    "id": entry.id,
                    "created_at": str(body.get("created_at", "")),
                    "state": word(MESSAGES, state),
                    "type": body.get("type", ""),
                    "channel": body.get("channel", ""),
                    "task": str(body.get("task_id", "")),
                    "text": str(body.get("content", "")),
                    "problem": plain_reason(entry.failure) if entry.failure else "",
                }
            )
    return sorted(found, key=lambda each: (each["created_at"], each["id"]), reverse=True)[:limit]


def unheard(home: Home) -> str:
    """Return why nobody hears the messages of a kingdom; empty if somebody does."""
    name = home.envoy.slack.bot_token_variable
    if "envoy" not in home.config.roles:
        return "nobody hears them: the kingdom has no envoy (roles in config/system.yaml)"
    if not home.variables.get(name):
        return f"nobody hears them: there is no Slack token here (variable {name}); they are kept as sent"
    return ""


def unsent(home: Home) -> str:
    """Return why all messages wait; empty if they do not."""
    reason = StateFile(home.root / PROBLEM, Problem).value.reason
    return f"{reason}; all notices wait: `pabal kingdom check --slack` says what to do" if reason else ""


def list_generals(home: Home, table: Table) -> list[dict[str, Any]]:
    """Return every general: whether it runs, its tasks, types and schedules with their next time."""
    tasks = _tasks(home)
    found = []
    for manifest in table.generals.values():
        pulse = read_pulse(home.root / "state" / manifest.name / "heartbeat", home.clock)
        own = [state for body, state in tasks.values() if body.get("target_general") == manifest.name]
        found.append(
            {
                "name": manifest.name,
                "state": "external" if manifest.external else pulse.state,
                "soldiers": f"{own.count('in_progress')} of {manifest.max_soldiers}",
                "waiting": own.count("pending") + own.count("resting"),
                "types": ", ".join(manifest.subscribes),
                "schedules": ", ".join(f"{each.name} {_next(home, each)}" for each in manifest.schedules),
                "description": manifest.description,
            }
        )
    return found


def _next(home: Home, schedule: Schedule) -> str:
    at = cron.following(schedule.cron, schedule.timezone, home.clock.now())
    return f"at {stamp(at)}" if at is not None else "never"


def routes(home: Home, table: Table, type: str = "") -> list[dict[str, str]]:
    """Return which general gets events of a type, and by which pattern; without a type, all patterns and schedules."""
    if type:
        found = table.route(type)
        general, pattern = (found[0].name, found[1]) if found else ("", "")
        return [{"type": type, "general": general or "none: it is completed with that reason", "by": pattern}]
    rows = [{"type": pattern, "general": each.name, "by": "subscription"} for pattern, each in table.claims()]
    rows += [
        {"type": schedule.task_type, "general": each.name, "by": f"schedule {schedule.name}, {_next(home, schedule)}"}
        for each in table.generals.values()
        for schedule in each.schedules
    ]
    return rows
