"""Outside tasks: tasks that a program other than a general of the kingdom took, in the way of the original protocol.

Such a program moves a file from `queue/tasks/pending/` to `queue/tasks/in_progress/` and later writes
`state/results/<task>.json`. The store knows nothing of a file that was moved so; the King completes it with its result.
"""

from __future__ import annotations

import os
from contextlib import suppress

from pabal import jsontext
from pabal.apps.kingdom.documents import Task, read
from pabal.apps.kingdom.home import Home
from pabal.errors import InvalidInput
from pabal.filesystem import read_plain

FOLDER = "queue/tasks/in_progress"


def outside_tasks(home: Home) -> dict[str, Task]:
    """Return the tasks that other programs have in hand, by id."""
    found: dict[str, Task] = {}
    for name in outside_names(home) if home.on_files else []:
        with suppress(OSError, InvalidInput):
            task = read(Task, jsontext.read(read_plain(home.root / FOLDER / name)))
            found[task.id] = task
    return found


def outside_task(home: Home, id: str) -> Task | None:
    """Return one task that another program has in hand."""
    return outside_tasks(home).get(id) if f"{id}.json" in outside_names(home) else None


def forget_outside_task(home: Home, id: str) -> None:
    """Remove the file of a task that is completed."""
    with suppress(FileNotFoundError):
        os.unlink(home.root / FOLDER / f"{id}.json")


def outside_names(home: Home) -> list[str]:
    """Return the names of the files that other programs have in hand, wherever the queues are now."""
    try:
        # A name with a mark belongs to the store.
        return [name for name in os.listdir(home.root / FOLDER) if name.endswith(".json") and "~" not in name]
    except FileNotFoundError:
        return []
