"""What each agent does now: the title and the last line of its output, its message in hand, what waits.

Looking changes nothing. The output of an agent in a tmux pane is the screen of the pane, that of others their log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pabal.apps.ignite import wakes
from pabal.apps.ignite.archive import subject_of
from pabal.apps.ignite.errors import WakeFailed
from pabal.apps.ignite.health import Report, report_of
from pabal.apps.ignite.inbox import urgent
from pabal.apps.ignite.team import SYSTEM
from pabal.apps.ignite.wakes import Showing, Turn, Wake, WakeContext
from pabal.apps.ignite.workspace import Workspace
from pabal.errors import PabalError
from pabal.message import Message
from pabal.store import Receipt

_TAIL = 4096  # bytes at the end of a log
_escape = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


class Activity(NamedTuple):
    """One agent at one moment."""

    name: str
    title: str = ""  # of its pane
    line: str = ""  # the last one of its output
    subject: str = ""  # of its message in hand
    urgent: int = 0  # critical messages that wait


class Activities:
    """Looks at the agents of a workspace, again and again."""

    def __init__(self, workspace: Workspace, variables: Mapping[str, str]) -> None:
        self._workspace = workspace
        self._context = WakeContext(workspace.root, workspace.root.parent, variables)
        self._wakes: dict[str, Wake | None] = {}

    def look(self) -> tuple[Report, dict[str, Activity]]:
        """Return the report of the team, and what each agent does."""
        report = report_of(self._workspace)
        return report, {load.name: self._activity(load.name, waits=load.ready > 0) for load in report.loads}

    def _activity(self, name: str, *, waits: bool) -> Activity:
        held = self._workspace.held(name)
        title, line = self._screen(name)
        return Activity(
            name,
            title,
            line or last_line(self._workspace.log_file(name)),
            subject_of(held[0].message) if held else "",
            len(urgent(self._workspace, name)) if waits else 0,
        )

    def _screen(self, name: str) -> tuple[str, str]:
        about = self._workspace.team.agents[name]
        if about.wake not in self._wakes:
            self._wakes[about.wake] = None
            with suppress(PabalError):  # `status` names a wake that does not exist
                self._wakes[about.wake] = wakes.load(about.wake)(self._context)
        wake: object = self._wakes[about.wake]
        if not isinstance(wake, Showing):
            return "", ""
        nothing = Message(id=name, type="", body=None, sender=SYSTEM)
        try:
            title, screen = wake.shown(Turn(name, about, "", Receipt(name, name, ""), nothing, 0))
        except WakeFailed:
            return "", ""
        return title, last_text(screen)


def last_line(path: Path) -> str:
    """Return the last line of a log that has text; nothing if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            return last_text(_escape.sub(b"", file.read()).decode(errors="replace"))
    except OSError:
        return ""


def last_text(screen: str) -> str:
    """Return the last line that has a letter or a digit: not the frame of an input field."""
    lines = (line.rpartition("\r")[2].strip() for line in reversed(screen.rstrip().split("\n")))
    return next((line for line in lines if any(char.isalnum() for char in line)), "")
