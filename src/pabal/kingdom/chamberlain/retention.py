"""Removes what need not be kept, by age. What belongs to a task that is not over, or to an open question, stays.

Events, tasks, results and notices that are done are forgotten by their queues themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pabal.kingdom.chamberlain import settings
from pabal.kingdom.envoy.questions import Questions
from pabal.kingdom.home import Home
from pabal.kingdom.king.archive import COMPLETED_QUEUE
from pabal.kingdom.layout import COMPLETED, TASKS
from pabal.store import State

_DAY = 86400.0
_TASK = re.compile(r"(task-\d{8}-\d{3,})[-.]", re.ASCII)
_UNDONE = (State.READY, State.DELAYED, State.INFLIGHT)


def clean(home: Home, days: settings.Retention) -> int:
    """Remove what is old; return how many files."""
    kept = {entry.id for state in _UNDONE for entry in home.queue(TASKS).entries(state)}
    kept |= {question.task_id for question in Questions(home).open()}
    removed = 0
    for pattern, age in _PATTERNS.items():
        for path in _older(home, pattern, getattr(days, age)):
            task = _TASK.match(path.name)
            if task is None or task[1] not in kept:
                with suppress(OSError):
                    path.unlink()
                    removed += 1
    if not home.on_files:
        removed += home.queue(COMPLETED_QUEUE).purge(State.READY, age=days.completed * _DAY)
    if removed:
        home.journal.note("recovery.files_cleaned", "chamberlain", files=removed)
    return removed


# Never `task-….json` itself in the folder of results: that is a queue.
_PATTERNS = {
    "logs/events-*.log": "logs",
    "logs/system-*.log": "logs",
    "logs/sessions/*": "logs",
    "state/results/task-*-*-*": "results",
    f"{COMPLETED}/*.json": "completed",
    "state/prompts/*": "prompts",
    "state/sentinel/seen/*": "seen",
    "state/questions/*.json": "questions",
}


def _older(home: Home, pattern: str, days: float) -> Iterator[Path]:
    since = home.clock.now() - days * _DAY
    for path in home.root.glob(pattern):
        with suppress(OSError):
            if path.is_file() and not path.is_symlink() and path.stat().st_mtime < since:
                yield path
