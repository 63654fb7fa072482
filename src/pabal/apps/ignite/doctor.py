"""The check of a team: can each agent be woken, and what to do if not. Nothing is changed, and nobody is woken."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from pabal.apps.ignite import wakes
from pabal.apps.ignite.errors import WakeFailed
from pabal.apps.ignite.guide import is_taught
from pabal.apps.ignite.health import LOCK
from pabal.apps.ignite.hook_settings import WAKES, installed
from pabal.apps.ignite.hooks import is_awaited
from pabal.apps.ignite.layout import DEAD_LETTERS
from pabal.apps.ignite.monitor import beat_time
from pabal.apps.ignite.team import FILE, Agent
from pabal.apps.ignite.wakes import Turn, WakeContext
from pabal.apps.ignite.wakes.exec import command_line, command_of
from pabal.apps.ignite.wakes.tmux import find_pane, panes
from pabal.apps.ignite.workspace import STATE, TEST_TOKEN, Workspace, is_made
from pabal.errors import InvalidConfig, PabalError
from pabal.message import Message
from pabal.names import shown_name
from pabal.runtime.role_lock import holder
from pabal.store import Receipt

_TIMEOUT = 1.0  # seconds


class Finding(NamedTuple):
    """What was looked at, whether it is well, and what to do if it is not."""

    about: str
    ok: bool
    text: str
    remedy: str = ""


def examine(root: Path, variables: Mapping[str, str]) -> Iterator[Finding]:
    """Look at a team: its file, its monitor, each agent and its mail."""
    mistakes: list[str] = []
    if (root / FILE).is_file() and not is_made(root):
        yield Finding(FILE, False, "no queues for its agents yet", "`pabal ignite init` makes them")
        return
    try:
        workspace = Workspace.open(root)
        yield Finding(FILE, True, f"{len(workspace.team.agents)} agents")
    except InvalidConfig as exc:
        for mistake in exc.mistakes or (str(exc),):
            yield Finding(FILE, False, mistake, f"correct {root / FILE}")
        workspace = Workspace.open(root, warn=mistakes.append)
    with workspace:
        pid = holder(workspace.root / STATE / LOCK)
        serves = f"process {pid} gives out the mail" if pid else "nobody gives out the mail"
        yield Finding("monitor", pid is not None, serves, "" if pid else "`pabal ignite up --detach` starts it")
        yield _program(variables)
        project = workspace.root.parent
        if not is_taught(project):
            yield Finding(
                "AGENTS.md", False, "agents are not told about their mail", "`pabal ignite init` writes a section"
            )
        for name, about in workspace.team.agents.items():
            yield from _agent(workspace, name, about, project, variables)
        dead = workspace.mail.load(DEAD_LETTERS).ready
        if dead:
            remedy = "`pabal ignite dlq` shows the reasons, `pabal ignite replay ID` tries again"
            yield Finding("mail", False, f"{dead} dead letters", remedy)


def _program(variables: Mapping[str, str]) -> Finding:
    found = shutil.which("pabal", path=variables.get("PATH"))
    if found:
        return Finding("pabal", True, found)
    return Finding("pabal", False, "not in PATH, so agents cannot run it", "install it where their shells find it")


def _agent(
    workspace: Workspace, name: str, about: Agent, project: Path, variables: Mapping[str, str]
) -> Iterator[Finding]:
    shown = shown_name(name)
    remedy = f"`pabal ignite wake-test {shown}` tries it"
    try:
        wakes.load(about.wake)
        text = _look(workspace, name, about, project, variables)
    except WakeFailed as exc:
        yield Finding(shown, False, f"{about.wake}: {exc}", _REMEDIES.get(about.wake, "").format(agent=shown) or remedy)
    except PabalError as exc:
        yield Finding(shown, False, str(exc), f"correct {workspace.root / FILE}")
    else:
        yield Finding(shown, True, f"{about.wake}: {text}")


_REMEDIES = {
    "exec": "install the program, or correct `command` in the team file",
    "tmux": "`pabal ignite init --tmux` finds panes; `tmux select-pane -T {agent}` names the one you are in",
    "webhook": "start the program that listens there",
}


def _look(workspace: Workspace, name: str, about: Agent, project: Path, variables: Mapping[str, str]) -> str:
    """Return how an agent would be woken; raise WakeFailed if that is not possible."""
    if about.wake == "exec":
        message = Message(id="doctor", body={}, type="system_init", sender="system")
        turn = Turn(name, about, "", Receipt(name, "doctor", TEST_TOKEN), message, 1)
        argv, inherited = command_line(turn)
        program = command_of(WakeContext(workspace.root, project, variables), argv, inherited, {}).argv[0]
        if not os.access(program, os.X_OK):
            raise WakeFailed(f"{program} cannot be run")
        return program
    if about.wake == "tmux":
        pane, _ = find_pane(panes(variables, about.socket), workspace.root, name, about)
        pane.check()
        return f"pane {pane.id}, where {pane.command} runs"
    if about.wake == "webhook":
        parts = urlsplit(about.url)
        try:
            socket.create_connection((parts.hostname or "", parts.port or 80), _TIMEOUT).close()
        except OSError as exc:
            raise WakeFailed(f"nothing listens on port {parts.port or 80}: {exc}") from exc
        return about.url
    if about.wake in WAKES:
        client = WAKES[about.wake]
        if "Stop" not in installed(client, project, variables):
            raise WakeFailed(f"the hooks are not installed: `pabal ignite hooks install {client}`")
        if client == "claude":
            return "its session waits" if is_awaited(workspace.root, name) else "installed; no session waits now"
        return "installed; Codex runs them once they are trusted (`/hooks`)"
    return "was seen before" if beat_time(workspace.root, name) else "has never looked for mail so far"
