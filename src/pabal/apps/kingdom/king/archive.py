"""The archive of what is over: events in `queue/events/completed/`, or in the queue `events.completed` of a database.

Finished tasks and results that are files get plain names: `queue/tasks/completed/<task>.json`, with the word for how
the task ended, and `state/results/archive/<task>.json`. The queues keep their own records of them.

Archiving is no state of the queue and may be repeated. It happens after the result was acknowledged, and at the start
for everything that a former King did not archive.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from pabal import durable, jsontext
from pabal.apps.kingdom.codec import KingdomCodec
from pabal.apps.kingdom.documents import Event, Result, Task, document_of, read
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.layout import COMPLETED, COMPLETED_TASKS, EVENTS, RESULTS, RESULTS_ARCHIVE, TASKS
from pabal.apps.kingdom.outside_tasks import forget_outside_task, outside_task
from pabal.errors import InvalidInput, NameTaken
from pabal.filesystem import read_plain, rename_new
from pabal.message import Message, replace
from pabal.store import Entry, FailureCode, Receipt, State

COMPLETED_QUEUE = "events.completed"
REPEATED = "Repeated"  # the code of an event whose id was handled before
_AGAIN = (REPEATED, FailureCode.DUPLICATE)
DISPATCHED = "queue/events/dispatched"
PENDING = "queue/events/pending"
WORDS = {"success": "completed", "failed": "failed", "killed": "failed"}  # of a finished task
_TAKE_BACK = 1.0  # seconds


class Ending(NamedTuple):
    """How an event ended: why it was discarded, or the task that it became."""

    reason: str = ""
    task_id: str = ""


class Archive:
    """Archives events, tasks and results."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._move = self._by_file if home.on_files else self._by_queue

    def handled(self, ids: Collection[str]) -> set[str]:
        """Return those of these events whose id is dispatched or completed."""
        if not self._home.on_files:
            completed = self._home.queue(COMPLETED_QUEUE)
            return {id for id in ids if completed.find(id) is not None}
        root = self._home.root
        dispatched = {_stem(name) for name in os.listdir(root / DISPATCHED)}
        return {id for id in ids if id in dispatched or (root / COMPLETED / f"{id}.json").exists()}

    def complete(self, endings: Mapping[str, Ending]) -> None:
        """Archive these events, if they were dispatched."""
        if endings:
            self._move(endings)

    def complete_repeated(self, again: Sequence[tuple[Receipt, str]]) -> None:
        """Archive events whose id was handled before, each under a name of its own."""
        for receipt, reason in again:
            id = f"{receipt.id}-repeated-{receipt.token[-8:]}"
            if not self._home.on_files:
                for entry in self._done([receipt.id]):
                    if entry.message is not None:
                        completed = replace(_completed(entry.message, Ending(reason)), id=id)
                        self._home.queue(COMPLETED_QUEUE).publish_many([completed])
                        self._forget([receipt.id])
                continue
            for name in os.listdir(self._home.root / DISPATCHED):
                if _stem(name) == receipt.id and receipt.token in name and not name.endswith(".why"):
                    self._keep_repeated(name, id, reason)

    def _keep_repeated(self, name: str, id: str, reason: str) -> None:
        path = self._home.root / DISPATCHED / name
        durable.replace_whole(self._home.root / COMPLETED / f"{id}.json", _ended(path.read_bytes(), Ending(reason)))
        path.unlink()
        path.with_name(f"{name}.why").unlink(missing_ok=True)

    def catch_up(self) -> int:
        """Archive what a former King left: discarded events, and events whose result was acknowledged."""
        over: dict[str, Ending] = {}
        waiting: set[str] = set()
        for entry in self._home.queue(EVENTS).entries(State.DONE):
            if entry.failure is None:
                waiting.add(entry.id)
            elif entry.failure.code not in _AGAIN or not self._home.on_files:
                over[entry.id] = Ending(entry.failure.reason)
        self.catch_up_repeated()
        if waiting or self._home.on_files:
            results = [found for entry in self._home.queue(RESULTS).entries(State.DONE) if (found := _result(entry))]
            over |= {found.event_id: Ending("", found.task_id) for found in results if found.event_id in waiting}
            self.finish([found for found in results if not self.is_finished(found.task_id)])
        self.complete(over)
        return len(over)

    def catch_up_repeated(self) -> None:
        """Archive the events whose id was handled before, also those that the store set aside itself."""
        if not self._home.on_files:
            return
        folder = self._home.root / DISPATCHED
        for name in os.listdir(folder):
            if name.endswith(".why"):
                with suppress(OSError, InvalidInput, TypeError, KeyError):
                    why = jsontext.read(read_plain(folder / name))
                    if why["code"] in _AGAIN:
                        reason = f"an event of this id was handled before: {why['reason']}"
                        file = name.removesuffix(".why")
                        token = file.removesuffix(".json").rpartition(".")[2]
                        self._keep_repeated(file, f"{_stem(file)}-repeated-{token[-8:]}", reason)

    def finish(self, results: Sequence[Result]) -> None:
        """Give finished tasks and their results their plain names."""
        if not self._home.on_files:
            return
        for found in results:
            task = self._task(found.task_id)
            if task is not None:
                self.keep_task(task, found)
                forget_outside_task(self._home, found.task_id)
            self._keep(f"{RESULTS_ARCHIVE}/{found.task_id}.json", document_of(found))

    def keep_task(self, task: Task, result: Result) -> None:
        """Write a finished task under its plain name, with the word for its end."""
        word = WORDS.get(result.status, result.status)
        document = {**document_of(task), "status": word, "retry_count": max(0, result.attempts - 1)}
        self._keep(f"{COMPLETED_TASKS}/{task.id}.json", document)

    def take_back(self, id: str) -> bool:
        """Make a completed event pending again that was discarded; False if it is not here.

        Raise NameTaken if it became a task, or if an event of its id was handled before.
        """
        found = self._completed_event(id)
        if found is None:
            return False
        if found.get("task_id"):
            raise NameTaken(f"{id} became {found['task_id']}: `pabal kingdom retry {found['task_id']}`")
        if found.get("id") != id or "was handled before" in str(found.get("reason")):
            raise NameTaken(f"{id} repeats an event that was handled: hand it in under another id")
        event = {name: value for name, value in found.items() if name not in ("reason", "task_id")} | {
            "status": "pending"
        }
        if self._home.on_files:
            path = self._home.root / COMPLETED / f"{id}.json"
            durable.replace_whole(path, jsontext.pretty(event))
            with durable.translated(f"taking {id} back"):
                try:  # in one step: it is either completed or pending
                    rename_new(str(path), str(self._home.root / PENDING / path.name))
                except FileExistsError:
                    raise NameTaken(f"a file of the name {path.name} waits in {PENDING}") from None
                durable.sync_dir(self._home.root / PENDING)
            return True
        # Late enough that the King does not see it beside the completed one.
        draft = replace(self._home.draft(read(Event, event)), delay=_TAKE_BACK)
        if self._home.store.publish([draft])[0].duplicate:
            raise NameTaken(f"{id} is back already")
        self._home.store.purge(COMPLETED_QUEUE, State.READY, ids=[id], limit=1)
        return True

    def _completed_event(self, id: str) -> dict[str, Any] | None:
        if self._home.on_files:
            try:
                body = jsontext.read(read_plain(self._home.root / COMPLETED / f"{id}.json"))
            except (OSError, InvalidInput):
                return None
        else:
            entry = self._home.queue(COMPLETED_QUEUE).find(id)
            body = entry.message.body if entry is not None and entry.message is not None else None
        return body if isinstance(body, dict) else None

    def is_finished(self, task_id: str) -> bool:
        """Return whether a result of this task was archived as a file."""
        return (self._home.root / RESULTS_ARCHIVE / f"{task_id}.json").exists()

    def _task(self, id: str) -> Task | None:
        entry = self._home.queue(TASKS).find(id)
        if entry is None or entry.message is None:
            return outside_task(self._home, id)
        with suppress(InvalidInput):
            return read(Task, entry.message.body)
        return None

    def _keep(self, place: str, document: dict[str, Any]) -> None:
        durable.replace_whole(self._home.root / place, jsontext.pretty(document), synced=False)

    def _by_file(self, endings: Mapping[str, Ending]) -> None:
        home = self._home.root
        found: dict[str, bytes] = {}
        for name in os.listdir(home / DISPATCHED):
            id = _stem(name)
            if id in endings and not name.endswith(".why"):
                found[id] = (home / DISPATCHED / name).read_bytes()
        for entry in self._done(endings.keys() - found.keys()):  # another program gave its file another name
            if entry.message is not None:
                found[entry.id] = KingdomCodec().encode(entry.message)
        for id, data in found.items():
            durable.replace_whole(home / COMPLETED / f"{id}.json", _ended(data, endings[id]))
        self._forget(found)

    def _by_queue(self, endings: Mapping[str, Ending]) -> None:
        found = self._done(endings)
        messages = [_completed(entry.message, endings[entry.id]) for entry in found if entry.message]
        if messages:
            self._home.queue(COMPLETED_QUEUE).publish_many(messages)
            self._forget([entry.id for entry in found])

    def _done(self, ids: Iterable[str]) -> list[Entry]:
        entries = (self._home.queue(EVENTS).find(id) for id in ids)
        return [entry for entry in entries if entry is not None and entry.state is State.DONE]

    def _forget(self, ids: Collection[str]) -> None:
        """Remove events from the queue, with their dedup records."""
        if ids:
            self._home.store.purge(EVENTS, State.DONE, ids=list(ids), limit=len(ids))


def _stem(name: str) -> str:
    return name.partition("~")[0].removesuffix(".json")


def _result(entry: Entry) -> Result | None:
    with suppress(InvalidInput):
        return read(Result, entry.message.body) if entry.message else None
    return None


def _ended(data: bytes, ending: Ending) -> bytes:
    try:
        return jsontext.pretty(_document(jsontext.read(data), ending))
    except (InvalidInput, TypeError):
        return data  # archived as it is


def _document(event: Any, ending: Ending) -> dict[str, Any]:
    more = {name: value for name, value in ending._asdict().items() if value}
    return {**event, "status": "completed", **more}


def _completed(message: Message, ending: Ending) -> Message:
    body = message.body if isinstance(message.body, dict) else {"body": None}
    document = _document({**body, "id": message.id}, ending)
    return Message(id=message.id, type=message.type, body=document, created_at=message.created_at)
