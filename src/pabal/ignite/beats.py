"""Signs of life: a file for each agent, touched while it works; the monitor hears of it at once."""

from __future__ import annotations

import os
from contextlib import suppress

from pabal.ignite.workspace import BEATS, Workspace


def beat(workspace: Workspace, agent: str) -> None:
    """Say that an agent is at work. A sign that cannot be given is no reason to stop working."""
    path = workspace.root / BEATS / agent
    with suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        os.utime(path)
