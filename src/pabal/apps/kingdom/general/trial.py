"""A trial of a soldier: the command, variables and prompt of a task, run outside of its general.

Nothing of the task changes. The folder and the result file of a trial are its own; they stay to be looked at, until the
next trial or the daily cleaning.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from pabal import jsontext
from pabal.apps.kingdom.documents import Task, document_of, read
from pabal.apps.kingdom.general.prompt import prompt
from pabal.apps.kingdom.general.results import Unreadable, read_raw
from pabal.apps.kingdom.general.role import manifest_of
from pabal.apps.kingdom.general.soldier import Files, argv_of, variables_of
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.layout import TASKS
from pabal.apps.kingdom.outside_tasks import outside_task
from pabal.durable import make_dirs, replace_whole
from pabal.errors import MessageUnknown
from pabal.names import check_id
from pabal.runtime.process import Child, Command


class Trial(NamedTuple):
    """What the soldier of a task would get."""

    task: Task
    command: Command
    prompt: str
    files: Files


def trial_of(home: Home, task_id: str) -> Trial:
    """Return the trial of a task; raise MessageUnknown if there is no such task."""
    check_id(task_id)
    entry = home.queue(TASKS).find(task_id)
    task = outside_task(home, task_id) or (read(Task, entry.message.body) if entry and entry.message else None)
    if task is None:
        raise MessageUnknown(f"no task {task_id}; `pabal kingdom tasks` and `tasks --completed` list them")
    manifest = manifest_of(home, task.target_general)
    folder = home.root / "workspace" / manifest.name / f"trial-{task.id}"
    names = ("task.json", "result.json", "heartbeat", "checkpoint.json", "session-id", "soldier-id")
    files = Files(*(folder / f".{name}" for name in names))
    command = Command(
        argv=argv_of(home, manifest, task),
        cwd=folder,
        env=variables_of(home, manifest, task, files, folder / ".prompt.md"),
    )
    return Trial(task, command, prompt(home, manifest, task), files)


def try_soldier(home: Home, trial: Trial) -> tuple[int, str]:
    """Run a trial in this terminal; return the exit status and what its result says."""
    folder: Path = trial.command.cwd
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier trial
    make_dirs(folder)
    replace_whole(trial.files.task, jsontext.pretty(document_of(trial.task)), synced=False)
    replace_whole(folder / ".prompt.md", trial.prompt.encode("utf-8", "replace"), synced=False)
    with (folder / ".prompt.md").open("rb") as stdin:
        child = Child(trial.command, stdin=stdin, stdout=None, stderr=subprocess.STDOUT)
    status = child.wait()
    child.close()
    try:
        result = read_raw(trial.files, trial.task)
    except Unreadable as exc:
        return status or 0, str(exc)
    return status or 0, "none" if result is None else jsontext.encode(document_of(result)).decode()
