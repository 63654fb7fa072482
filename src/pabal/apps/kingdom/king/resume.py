"""Resume: an answer of a person becomes a `resume` task for the general that asked, without waiting for the gate.

An answer to a question names its task, whose checkpoint must exist. A message in a conversation names the general. If
an answer cannot be used, its question is open again, and people are told why.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from pabal import jsontext
from pabal.apps.kingdom.documents import Event, Task, stamp
from pabal.apps.kingdom.envoy.questions import Questions
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.manifests import Table
from pabal.errors import InvalidInput, NameTaken
from pabal.filesystem import read_plain
from pabal.names import check_id
from pabal.store import Draft, Failure

RESULTS = "state/results"
_UPKEEP = 30.0  # seconds


class EventOutcome(NamedTuple):
    """What follows from an event: its task and the published drafts, or the reason why it is discarded."""

    then: tuple[Draft, ...] = ()
    failure: Failure | None = None
    task: Task | None = None
    repeated: bool = False  # an event of its id was handled before
    held: str = ""  # why it waits


class Checkpoint(msgspec.Struct, frozen=True):
    """What a general saved when its soldier asked."""

    task_id: str
    target_general: str
    repo: str | None = None
    session_id: str = ""
    workspace: str = ""
    type: str = ""


def resume(home: Home, table: Table, event: Event) -> EventOutcome:
    """Return the outcome of an answer: the task that continues the work. The first answer closes the question."""
    context = event.payload.get("reply_context")
    context = context if isinstance(context, dict) else {}
    original = str(context.get("task_id") or event.payload.get("task_id") or "")
    if original:
        try:
            check_id(original)  # it came from outside, and becomes the name of a file
        except InvalidInput:
            reason = f"{original!r:.80} is no task"
            return discarded(home, "NotTaken", reason, _refusal(home, event, "", reason))
        path = home.root / RESULTS / f"{original}-checkpoint.json"
        found = _checkpoint(path)
        if isinstance(found, str):
            return _unusable(
                home, event, original, "NoCheckpoint", f"{found}; `pabal kingdom cancel {original}` ends it"
            )
        place, saved = str(path), found
    else:
        place, saved = "", _from_context(context)
    if saved.target_general not in table.generals:
        reason = f"the answer is for {saved.target_general or 'nobody'}, and there is no such general"
        if table.unusable:
            return EventOutcome(held=f"held: {reason}; {', '.join(table.unusable)} cannot be used")
        return _unusable(home, event, original, "NoGeneral", reason)
    if original:
        try:
            text, person = str(event.payload.get("human_response") or event.payload.get("text") or ""), _person(event)
            question = Questions(home).answer_with_event(original, text, event.id, responder=person)
        except (NameTaken, InvalidInput) as exc:
            return discarded(home, "NotTaken", str(exc), _refusal(home, event, original, str(exc)))
        event = structs.replace(event, payload={**event.payload, "human_response": question.answer})
    return _outcome(home, _task(home, event, saved, place, original, context, home.task_ids.take()[0]))


def _person(event: Event) -> str:
    named = (event.payload.get(name) for name in ("user_id", "responder", "user"))
    return next((str(name) for name in named if name), event.source or "an event")


def _refusal(home: Home, event: Event, original: str, reason: str) -> tuple[Draft, ...]:
    """Return the notice that tells a person why the answer does not count, in the thread where it was given."""
    channel, thread = (str(event.payload.get(name) or "") for name in ("channel", "thread_ts"))
    if not channel:
        return ()
    return (home.draft(home.notice("thread_reply", reason, task_id=original, channel=channel, thread_ts=thread)),)


def _unusable(home: Home, event: Event, original: str, code: str, reason: str) -> EventOutcome:
    """Return the outcome of an answer that cannot be used: its question is open again, and people are told."""
    if not original:
        return discarded(home, code, reason, _refusal(home, event, "", f"Sorry: {reason}"))
    Questions(home).reopen(original, event.id)
    told = f"the answer to {original} could not be used: {reason}; the question is open again"
    then = _refusal(home, event, original, told) or (home.draft(home.notice("thread_update", told, task_id=original)),)
    return discarded(home, code, reason, then)


def _checkpoint(path: Path) -> Checkpoint | str:
    try:
        return jsontext.convert(jsontext.read(read_plain(path)), Checkpoint)
    except OSError as exc:
        return f"no checkpoint {path.name}: {exc.strerror}"
    except (InvalidInput, msgspec.ValidationError) as exc:
        return f"checkpoint {path.name} cannot be read: {exc}"


def _from_context(context: dict[str, Any]) -> Checkpoint:
    repo = context.get("repo")
    general, session = str(context.get("general") or ""), str(context.get("session_id") or "")
    return Checkpoint("", general, str(repo) if repo else None, session, str(context.get("workspace") or ""))


def _task(
    home: Home, event: Event, saved: Checkpoint, place: str, original: str, context: dict[str, Any], task_id: str
) -> Task:
    payload = event.payload
    return Task(
        id=task_id,
        event_id=event.id,
        target_general=saved.target_general,
        type="resume",
        repo=saved.repo,
        payload={
            "original_task_id": original,
            "original_type": saved.type,
            "checkpoint_path": place,
            "workspace": saved.workspace,
            "human_response": str(payload.get("human_response") or payload.get("text") or ""),
            "session_id": str(context.get("session_id") or saved.session_id),
            "channel": str(payload.get("channel") or context.get("channel") or ""),
            "thread_ts": str(payload.get("thread_ts") or context.get("thread_ts") or ""),
        },
        priority="high",
        created_at=stamp(home.clock.now()),
    )


def _outcome(home: Home, task: Task) -> EventOutcome:
    answer = task.payload["human_response"]
    update = home.notice(
        "thread_update",
        f"answer received: {answer!r:.200}, {task.payload['original_type'] or 'the work'} goes on as {task.id}",
        task_id=task.payload["original_task_id"] or task.id,
        thread_ts=task.payload["thread_ts"],
        **({"channel": task.payload["channel"]} if task.payload["channel"] else {}),
    )
    return EventOutcome((home.draft(task), home.draft(update)), task=task)


def discarded(home: Home, code: str, reason: str, then: tuple[Draft, ...] = ()) -> EventOutcome:
    """Return the outcome of an event that is discarded."""
    return EventOutcome(then, Failure(code, reason, round(home.clock.now(), 3)))


class QuestionUpkeep:
    """A task of the King's service: publishes answers that a crash left unpublished, and closes late questions.

    Not of the envoy's: a kingdom may have none.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._questions = Questions(home)
        self._due = home.clock.boot()

    def step(self) -> None:
        if self.next_due() > 0:
            return
        self._due = self._home.clock.boot() + _UPKEEP
        for question in self._questions.all():
            if question.state == "answered" and not question.emitted:
                self._questions.emit(question)
        self._questions.expire(self._home.clock.now())

    def next_due(self) -> float:
        return max(0.0, self._due - self._home.clock.boot())
