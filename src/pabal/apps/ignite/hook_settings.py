"""The settings of Claude Code and Codex that run our hooks: what is written into them, how it is found and removed.

A file of settings belongs to the user. Only the handlers that run `pabal ignite inbox --hook` are ours: they are
replaced or removed, and everything else stays as it is.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pabal.apps.ignite.errors import WakeFailed
from pabal.apps.ignite.hooks import REWAKE, is_awaited
from pabal.apps.ignite.wakes import Turn, Wake
from pabal.apps.ignite.workspace import Workspace
from pabal.durable import make_dirs, replace_whole
from pabal.errors import InvalidConfig

CLIENTS = ("claude", "codex")
WAKES = {"claude-hook": "claude", "codex-hook": "codex"}
_OURS = re.compile(r"\bignite\b.*\binbox\b.*--hook\b").search
_SECONDS = 30  # a hook may take; it takes less than one
_DAY = 86400
_POLL = 0.05


class Place(NamedTuple):
    """A file of settings."""

    path: Path
    whose: str


def places(client: str, project: Path, variables: Mapping[str, str]) -> dict[str, Place]:
    """Return the files that a client reads, by the word that chooses one."""
    home = Path(variables.get("HOME", "~")).expanduser()
    if client == "claude":
        own = Path(variables.get("CLAUDE_CONFIG_DIR") or home / ".claude")
        return {
            "local": Place(project / ".claude/settings.local.json", "you, in this project"),
            "shared": Place(project / ".claude/settings.json", "everybody who works on this project"),
            "user": Place(own / "settings.json", "you, in all projects"),
        }
    own = Path(variables.get("CODEX_HOME") or home / ".codex")
    return {
        "local": Place(project / ".codex/hooks.json", "this project, once you trust it"),
        "user": Place(own / "hooks.json", "you, in all projects"),
    }


def wanted_hooks(client: str, program: str, *, root: str = "", wait: float = 0.0) -> dict[str, list[dict[str, Any]]]:
    """Return the hooks of a client, by event. `program` runs pabal; `wait` is how much later a turn of Codex ends."""
    look = f"{program} ignite inbox --hook{f' --root {shlex.quote(root)}' if root else ''}"

    def handler(line: str, timeout: float, **more: bool) -> dict[str, Any]:
        return {"type": "command", "command": line, "timeout": int(timeout), **more}

    short = handler(look, _SECONDS)
    if client == "codex":
        stop = handler(f"{look} --wait {wait:g}", wait + _SECONDS) if wait else short
        return {
            "SessionStart": [{"hooks": [short]}],
            "UserPromptSubmit": [{"hooks": [short]}],
            "PostToolUse": [{"hooks": [short]}],
            "Stop": [{"hooks": [stop]}],
        }
    # The command that waits is started when a turn ends: at the start of a session it holds up some versions.
    return {
        "SessionStart": [{"hooks": [short]}],
        "UserPromptSubmit": [{"hooks": [short]}],
        "PostToolUse": [{"matcher": "*", "hooks": [{**short, "async": True}]}],
        "Stop": [{"hooks": [short, handler(f"{look} {REWAKE}", _DAY, asyncRewake=True)]}],
    }


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings in a file, nothing if there is none; raise InvalidConfig if they are no JSON object."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as exc:
        raise InvalidConfig(f"{path} cannot be read ({exc}); it was left as it is") from exc
    hooks = found.get("hooks", {}) if isinstance(found, dict) else None
    if not isinstance(hooks, dict) or not all(isinstance(groups, list) for groups in hooks.values()):
        raise InvalidConfig(f"{path} has no object of hooks, each with a list; it was left as it is")
    return dict(found)


def changed_settings(settings: Mapping[str, Any], wanted: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the settings with these hooks in the place of ours; without ours if there are none."""
    hooks: dict[str, Any] = {}
    for event, groups in settings.get("hooks", {}).items():
        kept = [group for group in map(_without_ours, groups) if group is not None]
        if kept:
            hooks[event] = kept
    for event, groups in wanted.items():
        hooks[event] = [*hooks.get(event, []), *groups]
    rest = {name: value for name, value in settings.items() if name != "hooks"}
    return {**rest, "hooks": hooks} if hooks else rest


def _without_ours(group: Any) -> Any:
    """Return a group of handlers without ours; None if nothing is left of it."""
    handlers = group.get("hooks") if isinstance(group, dict) else None
    if not isinstance(handlers, list):
        return group
    kept = [handler for handler in handlers if not _is_ours(handler)]
    return group if len(kept) == len(handlers) else {**group, "hooks": kept} if kept else None


def _is_ours(handler: Any) -> bool:
    return isinstance(handler, dict) and _OURS(str(handler.get("command", ""))) is not None


def settings_text(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n" if settings else ""


def write_settings(path: Path, text: str) -> None:
    """Write a file of settings, or remove it if nothing is left in it. A link keeps leading to it."""
    real = Path(os.path.realpath(path))
    if not text:
        real.unlink(missing_ok=True)
        return
    make_dirs(real.parent, mode=0o755)
    mode = real.stat().st_mode & 0o777 if real.exists() else 0o644
    replace_whole(real, text.encode(), mode=mode)


def installed(client: str, project: Path, variables: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """Return our handlers by event, from all files that a client reads."""
    found: dict[str, list[dict[str, Any]]] = {}
    for place in places(client, project, variables).values():
        for event, groups in read_settings(place.path).get("hooks", {}).items():
            for group in groups:
                handlers = group.get("hooks") if isinstance(group, dict) else None
                found.setdefault(event, []).extend(filter(_is_ours, handlers or []))
    return {event: handlers for event, handlers in found.items() if handlers}


# A stand-in for the client: it runs the installed hooks as the client's documentation says.


def try_hooks(
    workspace: Workspace, wake: Wake, turn: Turn, *, project: Path, variables: Mapping[str, str], patience: float
) -> str:
    """Prove that an agent is woken through the hooks of its client; return what was seen. Raise WakeFailed if not."""
    client = WAKES[turn.about.wake]
    found = installed(client, project, variables)
    stop = [handler for handler in found.get("Stop", []) if bool(handler.get("asyncRewake")) is (client == "claude")]
    if not stop:
        raise WakeFailed(f"the hooks are not installed: `pabal ignite hooks install {client}`")
    if client == "claude" and is_awaited(workspace.root, turn.agent):
        wake.wake(turn)
        return "its session was waiting, and was told"
    stand_in = _StandIn(str(stop[0]["command"]), turn.agent, workspace.root, project, variables, patience)
    if client == "claude":
        stand_in.rewake(wake, turn)
    else:
        stand_in.block(wake, turn)
    return f"no session waits now; a stand-in for {client} ran its hooks, and was told"


class _StandIn(NamedTuple):
    command: str
    agent: str
    root: Path
    project: Path
    variables: Mapping[str, str]
    patience: float

    def rewake(self, wake: Wake, turn: Turn) -> None:
        """Claude Code: the command runs in the background; status 2 wakes the session with what is on stderr."""
        running = self._run({"transcript_path": "", "permission_mode": "default"})
        try:
            end = time.monotonic() + self.patience
            while not is_awaited(self.root, self.agent):
                if running.poll() is not None or time.monotonic() > end:
                    raise WakeFailed(f"`{self.command}` does not wait for mail: {self._result(running)}")
                time.sleep(_POLL)
            wake.wake(turn)
            status, out, error = self._result(running)
        finally:
            running.kill()
            running.wait()
        if status != 2 or turn.path not in error:
            raise WakeFailed(
                f"`{self.command}` ended with {status}; 2 and the path on stderr were expected: {error!r:.200}"
            )

    def block(self, wake: Wake, turn: Turn) -> None:
        """Codex: at the end of a turn the decision `block` makes it go on with the reason; no output lets it end."""
        wake.wake(turn)
        for active in (False, True):
            more = {"turn_id": "wake-test", "model": "", "stop_hook_active": active, "last_assistant_message": ""}
            status, out, error = self._result(self._run(more))
            try:
                said = json.loads(out) if out.strip() else {}
            except ValueError:
                said = {"output": out}
            told = said.get("decision") == "block" and turn.path in str(said.get("reason"))
            if status or (active and said) or not (active or told):
                wanted = "nothing" if active else "a decision to block with the path"
                raise WakeFailed(
                    f"`{self.command}`: {wanted} was expected, found {status}, {out!r:.200}, {error!r:.200}"
                )

    def _run(self, more: Mapping[str, Any]) -> subprocess.Popen[str]:
        document = {"session_id": "wake-test", "cwd": str(self.project), "hook_event_name": "Stop", **more}
        running = subprocess.Popen(
            ["/bin/sh", "-c", self.command],
            cwd=self.project,
            env={**self.variables, "IGNITE_AGENT": self.agent},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert running.stdin is not None
        running.stdin.write(json.dumps(document))
        running.stdin.close()
        running.stdin = None
        return running

    def _result(self, running: subprocess.Popen[str]) -> tuple[int, str, str]:
        try:
            out, error = running.communicate(timeout=self.patience)
        except subprocess.TimeoutExpired:
            running.kill()
            out, error = running.communicate()
        return running.returncode, out, error
