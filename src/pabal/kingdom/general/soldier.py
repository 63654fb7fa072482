"""A soldier: one process for one task, in a group of its own, with limits and with few variables.

What it runs stands in the manifest or is one of the engines; the task reaches it as files and never as a command.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from pabal import jsontext
from pabal.errors import InvalidConfig
from pabal.kingdom.documents import Task, document_of, stamp
from pabal.kingdom.general.workspace import inherited, program
from pabal.kingdom.home import SCHEMA, Home
from pabal.kingdom.manifests import Manifest
from pabal.kingdom.sessions import Session, Sessions, ticks_of
from pabal.runtime.process import Child, Command

# Each reads the prompt from its standard input.
ENGINES: dict[str, tuple[str, ...]] = {
    "claude": ("claude", "-p", "--output-format", "json", "--permission-mode", "acceptEdits"),
    "codex": ("codex", "exec", "--full-auto", "-"),
}
_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}", re.ASCII)
_TAIL = 4000  # bytes of what it wrote last


class Files(NamedTuple):
    """Where a task's soldier finds and leaves things."""

    task: Path
    result: Path
    heartbeat: Path
    checkpoint: Path
    session: Path
    soldier: Path

    @classmethod
    def of(cls, home: Home, task_id: str) -> Files:
        at = home.root / "state/results"
        names = ("raw.json", "heartbeat", "checkpoint.json", "session-id", "soldier-id")
        return cls(home.root / "state/prompts" / f"{task_id}.json", *(at / f"{task_id}-{name}" for name in names))


class Soldier:
    """A running soldier."""

    def __init__(self, home: Home, manifest: Manifest, task: Task, folder: Path, prompt: Path) -> None:
        self._home = home
        self.files = Files.of(home, task.id)
        for path in (self.files.result, self.files.heartbeat):
            path.unlink(missing_ok=True)  # of an earlier try
        self.files.task.write_bytes(jsontext.pretty(document_of(task)))
        logs = home.root / "logs/sessions"
        out, err = logs / f".{task.id}.out", logs / f".{task.id}.err"
        with out.open("wb") as stdout, err.open("wb") as stderr, prompt.open("rb") as stdin:
            command = self._command(manifest, task, folder, prompt)
            self.child = Child(command, stdin=stdin, stdout=stdout, stderr=stderr)
        self.id = f"soldier-{int(home.clock.now())}-{self.child.pid}"
        self._out, self.errors = out.rename(logs / f"{self.id}.json"), err.rename(logs / f"{self.id}.err")
        self._register(manifest, task)

    def _register(self, manifest: Manifest, task: Task) -> None:
        self.files.soldier.write_text(self.id)
        session = Session(
            id=self.id,
            task_id=task.id,
            general=manifest.name,
            pid=self.child.pid,
            ticks=ticks_of(self.child.pid) or 0,
            started_at=stamp(self._home.clock.now()),
        )
        Sessions(self._home.root).add(session)

    def last_sign(self) -> float:
        """Return when it last touched its heartbeat or wrote something."""
        found = [0.0]
        for path in (self.files.heartbeat, self._out, self.errors):
            try:
                found.append(os.stat(path).st_mtime)
            except OSError:
                continue
        return max(found)

    def last_words(self) -> str:
        """Return the last lines that it wrote to its standard error."""
        try:
            data = self.errors.read_bytes()[-_TAIL:]
        except OSError:
            return ""
        return "\n".join(data.decode(errors="replace").splitlines()[-20:]).strip()

    def close(self, grace: float = 5.0) -> int:
        """End it if it still runs, with all that it started."""
        status = self.child.stop(grace)
        self.child.close()
        Sessions(self._home.root).remove(self.id)
        return status

    def _command(self, manifest: Manifest, task: Task, folder: Path, prompt: Path) -> Command:
        limits = manifest.limits
        files = self.files
        own = {
            "KINGDOM_TASK_ID": task.id,
            "KINGDOM_TASK_PATH": str(files.task),
            "KINGDOM_PROMPT_PATH": str(prompt),
            "KINGDOM_RESULT_PATH": str(files.result),
            "KINGDOM_SCHEMA_PATH": str(self._home.root / SCHEMA),
            "KINGDOM_HEARTBEAT_PATH": str(files.heartbeat),
            "KINGDOM_CHECKPOINT_PATH": str(files.checkpoint),
            "KINGDOM_SESSION_PATH": str(files.session),
        }
        return Command(
            argv=argv_of(self._home, manifest, task),
            cwd=folder,
            env={**inherited(self._home, manifest), **own},
            cpu=limits.cpu_seconds,
            memory=limits.memory_bytes,
            files=limits.open_files,
        )


def argv_of(home: Home, manifest: Manifest, task: Task) -> tuple[str, ...]:
    """Return what a soldier of this general runs."""
    if manifest.command:
        first, *rest = manifest.command
        if first.startswith("./"):  # beside the manifest, in the general's package
            return (str(home.root / "generals" / manifest.name / first[2:]), *rest)
        return (program(home, first), *rest)
    engine = manifest.engine_of(home.config.engine)
    if engine not in ENGINES:
        known = ", ".join(ENGINES)
        raise InvalidConfig(f"{manifest.name} has no command and engine {engine!r:.40} is none of {known}")
    first, *rest = ENGINES[engine]
    session = str(task.payload.get("session_id") or "") if task.type == "resume" else ""
    again = ("--resume", session) if engine == "claude" and _SESSION.fullmatch(session) else ()
    return (program(home, first), *rest, *again)
