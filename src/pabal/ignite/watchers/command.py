"""Watches by any command that prints JSON lines: each is an event, sent as soon as it is printed.

A line is {"key": …, "type": …, "body": {…}} with whatever else an event may say; `{"cursor": {…}}` is remembered and
given back in WATCH_CURSOR at the next start. A command may end after each look or run for ever.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pabal import jsontext
from pabal.errors import InvalidConfig, InvalidInput, WatchFailed
from pabal.ignite.watchers.contract import Event, Found, Look
from pabal.jsontext import Json
from pabal.runtime.process import Child, Command

LONGEST_LINE = 1 << 20  # bytes


class CommandSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to run."""

    command: tuple[str, ...]


class CommandWatcher:
    """Runs the command and reads what it prints."""

    def __init__(self, argv: tuple[str, ...], cwd: Path, env: Mapping[str, str]) -> None:
        self._argv = argv
        self._cwd = cwd
        self._env = dict(env)

    @classmethod
    def made(cls, options: Mapping[str, Any], folder: Path, variables: Mapping[str, str]) -> CommandWatcher:
        """Make one from its options; it runs in this folder and sees these variables."""
        settings = msgspec.convert(options, CommandSettings)
        if not settings.command:
            raise InvalidConfig("command: a program and its arguments are needed")
        program = _program(settings.command[0], folder, variables.get("PATH", ""))
        return cls((program, *settings.command[1:]), folder, variables)

    def poll(self, look: Look) -> Iterator[Found]:
        env = {
            **self._env,
            "WATCH_SINCE": f"{look.since:.6f}",
            "WATCH_LAST": f"{look.last:.6f}",
            "WATCH_CURSOR": jsontext.encode(dict(look.cursor)).decode(),
        }
        child = Child(Command(argv=self._argv, cwd=self._cwd, env=env), stdout=subprocess.PIPE)
        output = child.process.stdout
        assert output is not None
        cursor = dict(look.cursor)
        try:
            with output:
                while line := output.readline(LONGEST_LINE + 1):
                    if line.strip():
                        found = _found(line, cursor, look.now)
                        cursor = dict(found.cursor)
                        yield found
            status = child.wait()
        finally:
            child.stop(0.0)
            child.close()
        if status:
            raise WatchFailed(f"{self._argv[0]} ended with {status}; what it said is in the log")


def _found(line: bytes, cursor: Mapping[str, Json], now: float) -> Found:
    if len(line) > LONGEST_LINE:
        raise WatchFailed(f"a line has at most {LONGEST_LINE} bytes; print less of it")
    try:
        said = jsontext.read(line)
        if isinstance(said, dict) and set(said) == {"cursor"} and isinstance(said["cursor"], dict):
            return Found((), said["cursor"])
        if isinstance(said, dict):
            said.setdefault("at", now)
        return Found((msgspec.convert(said, Event),), cursor)
    except (InvalidInput, msgspec.ValidationError) as exc:
        raise WatchFailed(f"a line that is no event ({exc}): print key, type and body as JSON") from exc


def _program(name: str, folder: Path, path: str) -> str:
    found = str(folder / name) if "/" in name else shutil.which(name, path=path)
    if found is None or not os.access(found, os.X_OK):
        raise InvalidConfig(f"command: {name} is not there or cannot be run")
    return found
