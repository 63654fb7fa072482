"""What a soldier said, or what has to be said in its stead: strict about its fields, forgiving about its task id."""

from __future__ import annotations

from typing import Any

from pabal import jsontext
from pabal.durable import read_plain, replace_whole
from pabal.errors import InvalidBody, InvalidInput
from pabal.kingdom.documents import SoldierResult, Task, document_of, read, stamp
from pabal.kingdom.general.soldier import Files
from pabal.kingdom.home import Home

_LONGEST = 2000


class Unreadable(Exception):
    """A result file that is no JSON, or not yet."""


def read_raw(files: Files, task: Task) -> SoldierResult | None:
    """Read what the soldier wrote; None if nothing is there. A result that breaks the schema is a failed one."""
    try:
        data = read_plain(files.result)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise Unreadable(f"{files.result.name}: {exc.strerror}") from exc
    try:
        document = jsontext.read(data)
    except InvalidInput as exc:
        raise Unreadable(f"{files.result.name}: {exc.code}: {exc}") from exc
    if not isinstance(document, dict):
        return failed(task, f"the soldier's result is no JSON object but {type(document).__name__}")
    document["task_id"] = task.id  # models have been seen to invent one
    try:
        return read(SoldierResult, document)
    except InvalidBody as exc:
        return failed(task, f"the soldier's result was refused: {exc}")


def failed(task: Task, error: str, *, status: str = "failed") -> SoldierResult:
    """Return the result of a soldier that left none, or none that can be used."""
    document = {"task_id": task.id, "status": status, "summary": error.splitlines()[0][:200], "error": error[:_LONGEST]}
    return read(SoldierResult, document)


def keep_checkpoint(home: Home, files: Files, task: Task, said: SoldierResult) -> str:
    """Write down where the task stopped, with what the soldier itself wrote there; return the path."""
    try:
        own: Any = jsontext.read(read_plain(files.checkpoint))
    except (OSError, InvalidInput):
        own = {}
    document = {
        **(own if isinstance(own, dict) else {"soldier": own}),
        "task_id": task.id,
        "target_general": task.target_general,
        "repo": task.repo,
        "payload": task.payload,
        "session_id": said.session_id or session_of(files),
        "soldier_checkpoint_path": said.checkpoint_path,
        "created_at": stamp(home.clock.now()),
    }
    replace_whole(files.checkpoint, jsontext.pretty(document))
    return str(files.checkpoint)


def session_of(files: Files) -> str:
    """Return the id of the session that the soldier left, for one who goes on with it."""
    try:
        return read_plain(files.session).decode(errors="replace").strip()[:200]
    except OSError:
        return ""


def keep_failure(home: Home, task: Task, said: SoldierResult) -> int:
    """Note a failed try beside the others; return how many there were. It outlives the general."""
    path = home.root / "state/results" / f"{task.id}-failures.json"
    try:
        found = jsontext.read(read_plain(path))
    except (OSError, InvalidInput):
        found = []
    failures = found if isinstance(found, list) else []
    failures.append({"at": stamp(home.clock.now()), **document_of(said)})
    replace_whole(path, jsontext.pretty(failures))
    return len(failures)
