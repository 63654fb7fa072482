"""What a person does with events and tasks by hand: hand in, retry, cancel, take in again, dismiss.

Each step may be repeated after a crash: what is published has a dedup key, and what it replaces is removed afterwards.
A general may take a task while a person cancels or replaces it. So a mark is written before the task is removed, and
the general looks for it before it starts a soldier and while the soldier works.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from pabal import durable, jsontext
from pabal.apps.kingdom.codec import KingdomCodec
from pabal.apps.kingdom.documents import Event, Notice, Result, Task, event_of, kind_of, read, result_of, stamp
from pabal.apps.kingdom.envoy.questions import Questions
from pabal.apps.kingdom.home import Home, queue_of
from pabal.apps.kingdom.king.archive import Archive
from pabal.apps.kingdom.king.dispatch import start_notice
from pabal.apps.kingdom.layout import COMPLETED_TASKS, EVENTS, MESSAGES, QUEUES, RESULTS, TASKS
from pabal.apps.kingdom.lookup import results_of
from pabal.apps.kingdom.manifests import Table
from pabal.apps.kingdom.outside_tasks import outside_task
from pabal.durable import make_dirs
from pabal.errors import DecodeError, InvalidInput, MessageUnknown, NameTaken
from pabal.filesystem import read_plain
from pabal.ids import IdMaker
from pabal.message import Message
from pabal.names import check_id
from pabal.runtime.state_file import DAMAGED, read_state, write_state
from pabal.store import Entry, Failure, Published, State

DISMISSED = "state/dismissed"
_UNTIL = f"{DISMISSED}/until.json"
_ASIDE = (State.CORRUPT, State.DEAD)


def submit(home: Home, documents: Sequence[Any]) -> list[Published]:
    """Hand in events, on any store. One without an id gets one. Raise InvalidBody, with its number, for a wrong one."""
    ids = IdMaker(home.clock)
    events = []
    for number, document in enumerate(documents, 1):
        if not isinstance(document, dict):
            raise InvalidInput(f"event {number}: an event is a JSON object; found {type(document).__name__}")
        try:
            events.append(read(Event, {"id": f"evt-local-{ids()}", **document}))
        except InvalidInput as exc:
            raise InvalidInput(f"event {number}: {exc}") from exc
    return home.emit(events)


def retry(home: Home, table: Table, task_id: str, general: str = "") -> str:
    """Make a task again, for the same general or another one; return the id of the new task.

    The question of a task that asks is closed. Raise NameTaken for a task that runs, waits for its general, succeeded,
    or was answered.
    """
    task, state = _find(home, task_id)
    wanted = general or task.target_general
    if wanted not in table.generals:
        known = ", ".join(sorted(table.generals)) or "none"
        raise InvalidInput(f"there is no general {wanted}; there are: {known}. Give one with --general")
    if state is State.INFLIGHT:
        raise NameTaken(f"{task_id} runs: `pabal kingdom cancel {task_id}` first")
    if state is State.READY and wanted == task.target_general:
        raise NameTaken(f"{task_id} waits for {wanted} already")
    if state is State.DONE:
        _require_unfinished(home, task_id)
    [id] = home.task_ids.take()
    at = stamp(home.clock.now())
    facts = {"retry_of": task_id, "retry_count": 0, "created_at": at, "status": "pending"}
    again = replace(task, id=id, target_general=wanted, **facts)
    start = start_notice(home, again, f"{task.type}, again as {id}")
    published, _ = home.store.publish([home.draft(again), home.draft(start, key=f"start-retry-{task_id}")])
    if state is not State.DONE:
        write_state(cancel_mark(home, task_id), CancelMark(instead=published.id))
        home.store.purge(TASKS, state, ids=[task_id], limit=1)
    if published.duplicate:
        raise NameTaken(f"{task_id} was made again already, as {published.id}")
    home.journal.note("task.created", "king", task=id, general=wanted, type=task.type, retry_of=task_id)
    return id


def _require_unfinished(home: Home, task_id: str) -> None:
    """Raise NameTaken if the work of a task is done or went on; close its question if it still asks."""
    status = results_of(home).get(task_id, {}).get("status")
    if status == "success":
        raise NameTaken(f"{task_id} succeeded: hand its event in under another id to have it done again")
    if status == "needs_human":
        with suppress(MessageUnknown):  # its question may be forgotten
            question = Questions(home).close(task_id, "retry")
            if question.state == "answered":
                raise NameTaken(f"{task_id} was answered, and its work went on: `pabal kingdom show {task_id}`")


def cancel(home: Home, task_id: str, person: str) -> bool:
    """Cancel an open task: its event is completed and people are told. True if it ran and its general must stop it.

    If the task asked, its question is closed.
    """
    task, state = _find(home, task_id)
    if state is State.DONE:
        _close_question(home, task_id, person)
        return False
    write_state(cancel_mark(home, task_id), CancelMark(person=person))
    if state is State.INFLIGHT and outside_task(home, task_id) is None:
        return True
    result = result_of(task, cancelled(person), completed_at=stamp(home.clock.now()))
    home.store.publish([home.draft(result)])
    if state is not State.INFLIGHT:
        Archive(home).keep_task(task, result)  # before it is removed: it may be made again
        home.store.purge(TASKS, state, ids=[task_id], limit=1)
    return False


def _close_question(home: Home, task_id: str, person: str) -> None:
    """Close the open question of a task and tell people; raise NameTaken if there is none."""
    try:
        before = Questions(home).find(task_id)
    except MessageUnknown:
        before = None
    if before is None or before.state != "open":
        raise NameTaken(f"{task_id} is over already")
    closed = Questions(home).close(task_id, person)
    if closed.state != "closed":
        raise NameTaken(f"{task_id} was answered in this moment: `pabal kingdom show {task_id}`")
    Questions(home).notify(closed, f"[question] closed by {person}: {closed.text}", "closed")


def cancelled(person: str) -> dict[str, str]:
    """Return the result of a task that a person cancelled."""
    return {"status": "skipped", "summary": "cancelled", "reason": f"cancelled by {person}"}


class CancelMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tells a general to stop the soldier of a task: a person cancelled it, or another task does its work instead."""

    person: str = ""
    instead: str = ""


def cancel_mark(home: Home, task_id: str) -> Path:
    """Return the file with the mark of a task."""
    return home.root / "state/results" / f"{check_id(task_id)}-cancelled.json"


def _find(home: Home, task_id: str) -> tuple[Task, State]:
    check_id(task_id)
    if (outside := outside_task(home, task_id)) is not None:
        return outside, State.INFLIGHT
    entry = home.queue(TASKS).find(task_id)
    if entry is not None and entry.message is not None:
        return read(Task, entry.message.body), entry.state
    try:  # one that was cancelled
        return read(Task, jsontext.read(read_plain(home.root / COMPLETED_TASKS / f"{task_id}.json"))), State.DONE
    except (OSError, InvalidInput):
        raise MessageUnknown(f"no task {task_id}; `pabal kingdom tasks` and `tasks --completed` list them") from None


class SetAside(NamedTuple):
    """A document that was set aside: it is malformed, or was given up, or it is in the queue of another kind."""

    queue: str
    entry: Entry

    @property
    def id(self) -> str:
        """The id by which a person names it: that of the document, or its file without what the store added."""
        return self.entry.id.partition("~")[0].removesuffix(".json")


def set_aside(home: Home) -> list[SetAside]:
    """Return the documents that were set aside, and those that nobody takes: they are in the queue of another kind."""
    found = [SetAside(name, entry) for name in QUEUES for state in _ASIDE for entry in home.queue(name).entries(state)]
    for name, kind in ((TASKS, Task), (RESULTS, Result), (MESSAGES, Notice)):
        for entry in home.queue(name).browse(State.READY):
            if entry.message and isinstance(entry.message.body, dict) and kind_of(entry.message.body) is not kind:
                reason = f"it is no document of {name}, but of {queue_of(entry.message.body)}"
                found.append(SetAside(name, entry._replace(failure=Failure("Misplaced", reason, entry.due_at))))
    return found


def _one_aside(home: Home, id: str) -> SetAside:
    for each in set_aside(home):
        if id in (each.entry.id, each.id):
            return each
    raise MessageUnknown(f"nothing of the id {id!r:.80} is set aside; `pabal kingdom status` shows what is")


def requeue(home: Home, id: str) -> str:
    """Take in a document again that was set aside, or an event that was discarded; return its queue.

    Raise InvalidInput if it is still malformed, NameTaken if its id is known.
    """
    try:
        aside = _one_aside(home, id)
    except MessageUnknown:
        if not Archive(home).take_back(check_id(id)):
            raise
        home.journal.note("event.requeued", "king", event=id)
        return EVENTS
    return requeue_aside(home, aside)


def requeue_aside(home: Home, aside: SetAside) -> str:
    """Take in a document again that was set aside; return its queue."""
    queue, entry = aside
    id = aside.id
    if entry.state is State.READY and entry.message is not None and isinstance(entry.message.body, dict):
        return _move_document(home, aside, queue_of(entry.message.body), entry.message)
    if entry.state is State.DEAD:
        home.queue(queue).revive([entry.id])
        return queue
    try:
        message = KingdomCodec().decode(entry.data, id=id, at=home.clock.now())
    except DecodeError as exc:
        place = path_of(home, queue, entry)
        raise InvalidInput(f"{id} is still malformed: {exc.reason}; mend {place}, or dismiss it") from exc
    return _move_document(home, aside, queue, message)


def _move_document(home: Home, aside: SetAside, queue: str, message: Message) -> str:
    """Publish a document in its queue and remove it from where it is; return the queue."""
    if queue == EVENTS:
        [published] = home.emit([event_of(message)])
    else:
        [published] = home.queue(queue).publish_many([message])
    if published.duplicate:
        place = path_of(home, aside.queue, aside.entry)
        raise NameTaken(f"{message.id} was handed in before: give {place or 'it'} another id, or dismiss it")
    home.store.purge(aside.queue, aside.entry.state, ids=[aside.entry.id], limit=1)
    return queue


def dismiss(home: Home, id: str) -> str:
    """Put a document that was set aside away: its bytes go to `state/dismissed/<queue>/`; return where they are."""
    return dismiss_aside(home, _one_aside(home, id))


def dismiss_aside(home: Home, aside: SetAside) -> str:
    """Put a document away; return where its bytes are."""
    queue, entry = aside
    folder = home.root / DISMISSED / queue
    make_dirs(folder)
    data = entry.data or (KingdomCodec().encode(entry.message) if entry.message else b"")
    name = entry.id.replace("/", "-")[:150].removesuffix(".json")
    numbered = (folder / f"{name}{f'.{number}' if number else ''}.json" for number in count())
    path = next(each for each in numbered if not each.exists() or each.read_bytes() == data)
    durable.replace_whole(path, data)
    home.store.purge(queue, entry.state, ids=[entry.id], limit=1)
    home.journal.note("event.dismissed", "king", queue=queue, document=entry.id)
    return str(path.relative_to(home.root))


def dismiss_notes(home: Home) -> None:
    """Do not show the discarded events up to now among the problems any more."""
    write_state(home.root / _UNTIL, {"until": stamp(home.clock.now())})


def dismissed_until(home: Home) -> str:
    """Return the time up to which discarded events are not shown as problems."""
    with suppress(*DAMAGED, msgspec.ValidationError):
        return read_state(home.root / _UNTIL, dict[str, str]).get("until", "")
    return ""


def path_of(home: Home, queue: str, entry: Entry) -> str:
    """Return where the file of a malformed document is; empty in a database."""
    if not home.on_files or entry.state is not State.CORRUPT:
        return ""
    folder = home.root / "state/queues" / queue / str(entry.state)
    names = (entry.cursor, entry.id, f"{entry.id}.json")
    found = next((folder / name for name in names if name and (folder / name).is_file()), None)
    if found is None:
        found = next((path for path in folder.glob("*") if path.name.startswith(entry.id.partition("~")[0])), None)
    return str(found.relative_to(home.root)) if found else ""
