"""What became of a task, put together from all the places that know something of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pabal import jsontext
from pabal.durable import read_plain
from pabal.errors import InvalidInput, MessageUnknown
from pabal.kingdom.home import Home
from pabal.kingdom.journal import FILE
from pabal.kingdom.layout import RESULTS, TASKS
from pabal.names import check_id

_TAIL = 1 << 20  # bytes of the journal that are looked at
_WORDS = 20  # lines of a soldier's last words


def diagnose(home: Home, task_id: str) -> dict[str, Any]:
    """Return what is known of a task; raise MessageUnknown if nothing is."""
    check_id(task_id)
    task, result = home.queue(TASKS).find(task_id), home.queue(RESULTS).find(task_id)
    lines = [line for line in journal(home.root / FILE) if line["data"].get("task") == task_id]
    if task is None and result is None and not lines:
        raise MessageUnknown(f"nothing is known of {task_id!r:.80}; `pabal kingdom tasks --completed` lists tasks")
    at = home.root / "state/results"
    soldier = _text(at / f"{task_id}-soldier-id")
    prompt = home.root / "state/prompts" / f"{task_id}.md"
    return {
        "state": str(task.state) if task else "forgotten",
        "task": task.message.body if task and task.message else None,
        "result": result.message.body if result and result.message else None,
        "failures": _list(at / f"{task_id}-failures.json"),
        "soldier": soldier,
        "prompt_bytes": prompt.stat().st_size if prompt.is_file() else 0,
        "last_words": tail(home.root / "logs/sessions" / f"{soldier}.err", _WORDS) if soldier else [],
        "journal": [f"{line['ts']}  {line['type']}  {line['actor']}" for line in lines],
    }


def failures(home: Home) -> list[dict[str, Any]]:
    """Return the journal's lines of tasks that failed, the latest last."""
    return [line for line in journal(home.root / FILE) if line["type"] == "task.failed"]


def journal(path: Path) -> list[dict[str, Any]]:
    """Return the last lines of the journal that can be read."""
    found = []
    for line in tail(path, 100_000):
        try:
            document = jsontext.read(line.encode())
            if isinstance(document["data"], dict):
                found.append({"ts": document["ts"], "type": document["type"], **document})
        except (InvalidInput, KeyError, TypeError):
            continue
    return found


def tail(path: Path, lines: int) -> list[str]:
    """Return the last lines of a file, of its last megabyte at most."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            found = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return found[-lines:] if lines else []


def _text(path: Path) -> str:
    try:
        return read_plain(path).decode(errors="replace").strip()
    except OSError:
        return ""


def _list(path: Path) -> list[Any]:
    try:
        found = jsontext.read(read_plain(path))
    except (OSError, InvalidInput):
        return []
    return found if isinstance(found, list) else []
