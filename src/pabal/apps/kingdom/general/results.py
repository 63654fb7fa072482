"""The results of soldiers: read strictly, except for the task id, and made for soldiers that left none."""

from __future__ import annotations

from typing import Any

from pabal import jsontext
from pabal.apps.kingdom.documents import SoldierResult, Task, document_of, read, stamp
from pabal.apps.kingdom.general.soldier import Files
from pabal.apps.kingdom.home import Home
from pabal.errors import InvalidBody, InvalidInput
from pabal.filesystem import read_plain
from pabal.runtime.state_file import DAMAGED, StateFile, read_state, write_state

_LONGEST = 2000
_QUOTED = 200  # characters of a result that cannot be used


class Unreadable(Exception):
    """A result file that is no JSON, perhaps because it is still being written."""


def read_raw(files: Files, task: Task) -> SoldierResult | None:
    """Read the soldier's result; None if there is none. A result that breaks the schema becomes a failed one."""
    try:
        data = read_plain(files.result)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise Unreadable(f"the soldier's result cannot be read: {exc.strerror}") from exc
    text = data[: 4 * _QUOTED].decode(errors="replace").strip()
    if not text:
        raise Unreadable("the soldier left an empty result file")
    try:
        document = jsontext.read(data)
    except InvalidInput as exc:
        raise Unreadable(f"the soldier's result is no JSON ({exc}); it begins: {text[:_QUOTED]}") from exc
    if not isinstance(document, dict):
        return failed(task, f"the soldier's result must be a JSON object; it begins: {text[:_QUOTED]}")
    document["task_id"] = task.id  # models have been seen to invent one
    try:
        return read(SoldierResult, document)
    except InvalidBody as exc:
        return failed(task, f"the soldier's result was refused: {exc}")


def failed(task: Task, error: str, *, status: str = "failed") -> SoldierResult:
    """Make the result of a soldier that left none that can be used."""
    document = {"task_id": task.id, "status": status, "summary": error.splitlines()[0][:200], "error": error[:_LONGEST]}
    return read(SoldierResult, document)


def keep_checkpoint(home: Home, files: Files, task: Task, result: SoldierResult, workspace: str) -> str:
    """Write the checkpoint of a task, with the fields that the soldier wrote; return its path."""
    try:
        own: Any = read_state(files.checkpoint, object)
    except DAMAGED:
        own = {}
    document = {
        **(own if isinstance(own, dict) else {"soldier": own}),
        "task_id": task.id,
        "target_general": task.target_general,
        "repo": task.repo,
        "payload": task.payload,
        "session_id": result.session_id or session_of(files),
        "soldier_checkpoint_path": result.checkpoint_path,
        "workspace": workspace,
        "type": task.payload.get("original_type") or task.type,
        "created_at": stamp(home.clock.now()),
    }
    write_state(files.checkpoint, document)
    return str(files.checkpoint)


def session_of(files: Files) -> str:
    """Return the session id that the soldier left, for the soldier that continues."""
    try:
        return read_plain(files.session).decode(errors="replace").strip()[:200]
    except OSError:
        return ""


def failures_of(home: Home, task_id: str) -> StateFile[list[Any]]:
    """Return the file with the failed tries of a task, which counts them also across restarts."""
    return StateFile(home.root / "state/results" / f"{task_id}-failures.json", list)


def keep_failure(home: Home, task: Task, result: SoldierResult) -> int:
    """Add a failed try to the file of failures; return how many there are."""
    file = failures_of(home, task.id)
    file.save([*file.value, {"at": stamp(home.clock.now()), **document_of(result)}])
    return len(file.value)
