"""What a person said becomes a `resume` task for the general who asked, at once and whatever the gate says.

An answer to a question names its task, whose checkpoint must be there; a word in a conversation names the general.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pabal import jsontext
from pabal.durable import read_plain
from pabal.errors import InvalidInput
from pabal.kingdom.documents import Event, Task, stamp
from pabal.kingdom.home import Home
from pabal.kingdom.routing import Table
from pabal.store import Draft, Failure

RESULTS = "state/results"


class Orders(NamedTuple):
    """What follows from an event: its task, what is published, and why nothing does if so."""

    then: tuple[Draft, ...] = ()
    failure: Failure | None = None
    task: Task | None = None


class Checkpoint(msgspec.Struct, frozen=True):
    """What a general wrote down when its soldier asked."""

    task_id: str
    target_general: str
    repo: str | None = None
    session_id: str = ""


def resume(home: Home, table: Table, event: Event, task_id: str) -> Orders:
    """Return the task that goes on with what was asked."""
    context = event.payload.get("reply_context")
    context = context if isinstance(context, dict) else {}
    original = str(context.get("task_id") or event.payload.get("task_id") or "")
    if original:
        path = home.root / RESULTS / f"{original}-checkpoint.json"
        found = _checkpoint(home, path)
        if isinstance(found, str):
            return discarded(home, event, "NoCheckpoint", found)
        place, saved = str(path), found
    else:
        place, saved = "", _from_context(context)
    if saved.target_general not in table.generals:
        reason = f"the answer is for {saved.target_general or 'nobody'}, and there is no such general"
        return discarded(home, event, "NoGeneral", reason)
    return _orders(home, event, saved, _task(home, event, saved, place, original, context, task_id))


def _checkpoint(home: Home, path: Path) -> Checkpoint | str:
    # The name came from outside: only a file of the folder itself is opened.
    if path.resolve().parent != (home.root / RESULTS).resolve():
        return f"{path.name!r:.80} is no name of a checkpoint"
    try:
        return msgspec.convert(jsontext.read(read_plain(path)), Checkpoint)
    except OSError as exc:
        return f"no checkpoint {path.name}: {exc.strerror}"
    except (InvalidInput, msgspec.ValidationError) as exc:
        return f"checkpoint {path.name} cannot be read: {exc}"


def _from_context(context: dict[str, Any]) -> Checkpoint:
    repo = context.get("repo")
    general, session = str(context.get("general") or ""), str(context.get("session_id") or "")
    return Checkpoint("", general, str(repo) if repo else None, session)


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
            "checkpoint_path": place,
            "human_response": str(payload.get("human_response") or payload.get("text") or ""),
            "session_id": str(context.get("session_id") or saved.session_id),
            "channel": str(payload.get("channel") or context.get("channel") or ""),
            "thread_ts": str(payload.get("thread_ts") or context.get("thread_ts") or ""),
        },
        priority="high",
        created_at=stamp(home.clock.now()),
    )


def _orders(home: Home, event: Event, saved: Checkpoint, task: Task) -> Orders:
    said = task.payload["human_response"]
    update = home.notice(
        "thread_update",
        f"answer received: {said!r:.200}, goes on as {task.id}",
        task_id=task.payload["original_task_id"] or task.id,
        thread_ts=task.payload["thread_ts"],
        **({"channel": task.payload["channel"]} if task.payload["channel"] else {}),
    )
    return Orders((home.draft(task), home.draft(update)), task=task)


def discarded(home: Home, event: Event, code: str, reason: str, then: tuple[Draft, ...] = ()) -> Orders:
    """Return the orders for an event of which nothing comes."""
    return Orders(then, Failure(code, reason, round(home.clock.now(), 3)))
