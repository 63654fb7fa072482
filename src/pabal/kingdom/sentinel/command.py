"""Watches by any program that prints JSON lines: each is an event with id and type, or `{"state": {…}}`.

The state is given back in WATCH_STATE at the next look. What a program printed counts if it ended with 0.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from pabal import jsontext
from pabal.clock import Clock
from pabal.errors import InvalidConfig, InvalidInput, WatchFailed
from pabal.kingdom.documents import Event, read
from pabal.kingdom.sentinel.contract import Page, Parsed, State
from pabal.runtime.process import Child, Command
from pabal.runtime.wake import FdWatch

LARGEST = 16 << 20  # bytes that one look may print
_WORDS = 500  # characters of its last words that are told


class CommandSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`polling: NAME:` with a command, an argument vector."""

    command: tuple[str, ...]
    interval_seconds: float = 60.0
    timeout_seconds: float = 60.0


class CommandWatcher:
    """Runs a program and reads what it printed."""

    def __init__(
        self, settings: CommandSettings, folder: Path, variables: Mapping[str, str], clock: Clock, watch: FdWatch
    ) -> None:
        if not settings.command:
            raise InvalidConfig("command: a program and its arguments are needed")
        self._settings = settings
        self._argv = (_program(settings.command[0], folder, variables.get("PATH", "")), *settings.command[1:])
        self._folder = folder
        self._variables = variables
        self._clock = clock
        self._watch = watch

    @property
    def interval(self) -> float:
        return self._settings.interval_seconds

    def fetch(self, state: State, now: float) -> Iterator[Page | None]:
        env = {**self._variables, "WATCH_STATE": jsontext.encode(dict(state)).decode()}
        command = Command(argv=self._argv, cwd=self._folder, env=env)
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            child = Child(command, stdout=output, stderr=errors)
            self._watch.add(child.fd)
            end = self._clock.boot() + self._settings.timeout_seconds
            try:
                while (status := child.status()) is None and self._clock.boot() < end:
                    yield None
            finally:
                with suppress(KeyError):
                    self._watch.remove(child.fd)
                child.stop(0.0)
                child.close()
            if status != 0:
                how = "did not end in time" if status is None else f"ended with {status}"
                raise WatchFailed(f"{self._argv[0]} {how}: {_last(errors) or 'it said nothing'}")
            output.seek(0)
            data = output.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise WatchFailed(f"{self._argv[0]} printed more than {LARGEST} bytes in one look")
        yield Page([line for line in data.splitlines() if line.strip()])

    def parse(self, page: Page, state: State) -> Parsed:
        events: list[Event] = []
        problems: list[str] = []
        after = dict(state)
        for line in page.items:
            try:
                said = jsontext.read(line)
                if isinstance(said, dict) and set(said) == {"state"} and isinstance(said["state"], dict):
                    after = said["state"]
                else:
                    events.append(read(Event, said))
            except InvalidInput as exc:
                problems.append(f"a line that is no event: {exc.code}: {exc}")
        return Parsed(events, after, tuple(problems))

    def post_emit(self, events: list[Event]) -> Iterator[None]:
        return iter(())

    def close(self) -> None:
        pass


def _last(errors: IO[bytes]) -> str:
    errors.seek(0, os.SEEK_END)
    errors.seek(max(0, errors.tell() - _WORDS))
    return " ".join(errors.read().decode(errors="replace").split())


def _program(name: str, folder: Path, path: str) -> str:
    found = str(folder / name) if "/" in name else shutil.which(name, path=path)
    if found is None or not os.access(found, os.X_OK):
        raise InvalidConfig(f"command: {name} is not there or cannot be run")
    return found
