"""A soldier: one process for one task, in a process group of its own, with limits and few variables.

Its command is in the manifest, or is one of the engines. The task reaches it as files and never as a command.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pabal import jsontext
from pabal.apps.kingdom.documents import Task, document_of, stamp
from pabal.apps.kingdom.general.workspace import inherited, program
from pabal.apps.kingdom.home import SCHEMA, Home
from pabal.apps.kingdom.manifests import Manifest
from pabal.apps.kingdom.sessions import Session, Sessions
from pabal.durable import replace_whole
from pabal.errors import InvalidConfig
from pabal.filesystem import private
from pabal.runtime.process import Child, Command
from pabal.runtime.resources import start_ticks

# Each engine reads the prompt from its standard input.
ENGINES: dict[str, tuple[str, ...]] = {
    "claude": ("claude", "-p", "--output-format", "json", "--permission-mode", "acceptEdits"),
    "codex": ("codex", "exec", "--full-auto", "-"),
}
_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}", re.ASCII)
_TAIL = 4000  # bytes at the end of its standard error


class Files(NamedTuple):
    """The files of a task's soldier."""

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
            path.unlink(missing_ok=True)  # from an earlier try
        replace_whole(self.files.task, jsontext.pretty(document_of(task)), synced=False)
        logs = home.root / "logs/sessions"
        out, err = logs / f".{task.id}.out", logs / f".{task.id}.err"
        with (
            open(out, "wb", opener=private) as stdout,
            open(err, "wb", opener=private) as stderr,
            prompt.open("rb") as stdin,
        ):
            command = self._command(manifest, task, folder, prompt)
            self.child = Child(command, stdin=stdin, stdout=stdout, stderr=stderr)
        self.id = f"soldier-{int(home.clock.now())}-{self.child.pid}"
        self._out, self.errors = out.rename(logs / f"{self.id}.json"), err.rename(logs / f"{self.id}.err")
        self._register(manifest, task)

    def _register(self, manifest: Manifest, task: Task) -> None:
        replace_whole(self.files.soldier, self.id.encode(), synced=False)
        session = Session(
            id=self.id,
            task_id=task.id,
            general=manifest.name,
            pid=self.child.pid,
            ticks=start_ticks(self.child.pid) or 0,
            started_at=stamp(self._home.clock.now()),
        )
        Sessions(self._home.root).add(session)

    def last_sign(self) -> float:
        """Return when it last touched its heartbeat or printed something."""
        found = [0.0]
        for path in (self.files.heartbeat, self._out, self.errors):
            try:
                found.append(os.stat(path).st_mtime)
            except OSError:
                continue
        return max(found)

    def last_errors(self) -> str:
        """Return the last lines of its standard error."""
        try:
            data = self.errors.read_bytes()[-_TAIL:]
        except OSError:
            return ""
        return "\n".join(data.decode(errors="replace").splitlines()[-20:]).strip()

    def close(self, grace: float = 5.0) -> int:
        """Stop it if it still runs, with the processes that it started."""
        status = self.child.stop(grace)
        self.child.close()
        Sessions(self._home.root).remove(self.id)
        return status

    def _command(self, manifest: Manifest, task: Task, folder: Path, prompt: Path) -> Command:
        limits = manifest.limits
        return Command(
            argv=argv_of(self._home, manifest, task),
            cwd=folder,
            env=variables_of(self._home, manifest, task, self.files, prompt),
            cpu=limits.cpu_seconds,
            memory=limits.memory_bytes,
            files=limits.open_files,
        )


def stop_all(soldiers: Iterable[Soldier], grace: float) -> None:
    """Stop soldiers at the same time: those that have not ended after `grace` seconds are killed."""
    running = [soldier.child for soldier in soldiers if soldier.child.status() is None]
    end = time.monotonic() + grace
    for child in running:
        child.signal(signal.SIGTERM)
    for child in running:
        child.wait(max(0.0, end - time.monotonic()))
        child.kill()


def variables_of(home: Home, manifest: Manifest, task: Task, files: Files, prompt: Path) -> dict[str, str]:
    """Return the variables of a soldier."""
    return {
        **inherited(home, manifest),
        "KINGDOM_TASK_ID": task.id,
        "KINGDOM_TASK_PATH": str(files.task),
        "KINGDOM_PROMPT_PATH": str(prompt),
        "KINGDOM_RESULT_PATH": str(files.result),
        "KINGDOM_SCHEMA_PATH": str(home.root / SCHEMA),
        "KINGDOM_HEARTBEAT_PATH": str(files.heartbeat),
        "KINGDOM_CHECKPOINT_PATH": str(files.checkpoint),
        "KINGDOM_SESSION_PATH": str(files.session),
    }


def argv_of(home: Home, manifest: Manifest, task: Task) -> tuple[str, ...]:
    """Return the command of a general's soldiers."""
    if manifest.command:
        first, *rest = manifest.command
        if first.startswith("./"):  # in the general's package, beside the manifest
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
