"""Commands: a watcher that runs a program and reads events from the JSON lines that it prints.

Each application decides which variables the program gets, which word a line with a new cursor has, and how another line
becomes an event. There are two ways to read:

- streamed: each line is a step of its own, taken as soon as it is printed; the program may run for ever.
- collected: the lines count once the program has ended with status 0, and the loop goes on while it runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Generic, NamedTuple, TypeVar

from pabal import jsontext
from pabal.clock import Clock
from pabal.errors import InvalidConfig, InvalidInput, WatchFailed
from pabal.jsontext import Json
from pabal.runtime.process import Child, Command
from pabal.runtime.wake import FdWatch
from pabal.watchers.contract import Found, Look

LONGEST_LINE = 1 << 20  # bytes of a streamed line
LARGEST_OUTPUT = 16 << 20  # bytes that one collected look may print
_SHOWN_ERRORS = 500  # characters from the end of the standard error

E = TypeVar("E")


class Collected(NamedTuple):
    """How to collect the output: the seconds that the program may run, and what the loop waits on."""

    timeout: float
    clock: Clock
    watch: FdWatch


class CommandWatcher(Generic[E]):
    """Runs a program for each look.

    `variables` returns the variables that the program gets for a look. `cursor_word` is the only key of a line that
    holds a new cursor. `event` makes an event of any other line, or raises InvalidInput.
    """

    def __init__(
        self,
        argv: tuple[str, ...],
        folder: Path,
        *,
        variables: Callable[[Look], Mapping[str, str]],
        cursor_word: str,
        event: Callable[[Any, float], E],
        collected: Collected | None = None,
    ) -> None:
        self._argv = argv
        self._folder = folder
        self._variables = variables
        self._cursor_word = cursor_word
        self._make = event
        self._collected = collected

    def poll(self, look: Look) -> Iterator[Found[E] | None]:
        command = Command(argv=self._argv, cwd=self._folder, env=self._variables(look))
        return self._collect(command, look, self._collected) if self._collected else self._stream(command, look)

    def _stream(self, command: Command, look: Look) -> Iterator[Found[E]]:
        child = Child(command, stdout=subprocess.PIPE)
        output = child.process.stdout
        assert output is not None
        cursor: Mapping[str, Json] = dict(look.cursor)
        try:
            with output:
                while line := output.readline(LONGEST_LINE + 1):
                    if len(line) > LONGEST_LINE:
                        raise WatchFailed(f"a line has at most {LONGEST_LINE} bytes; print less of it")
                    if line.strip():
                        try:
                            found = self._read(line, cursor, look.now)
                        except InvalidInput as exc:
                            raise WatchFailed(
                                f"a line that is no event ({exc}): print key, type and body as JSON"
                            ) from exc
                        cursor = found.cursor
                        yield found
            status = child.wait()
        finally:
            child.stop(0.0)
            child.close()
        if status:
            raise WatchFailed(f"{self._argv[0]} ended with {status}; its log has what it printed")

    def _collect(self, command: Command, look: Look, how: Collected) -> Iterator[Found[E] | None]:
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            child = Child(command, stdout=output, stderr=errors)
            how.watch.add(child.fd)
            end = how.clock.boot() + how.timeout
            try:
                while (status := child.status()) is None and how.clock.boot() < end:
                    yield None
            finally:
                with suppress(KeyError):
                    how.watch.remove(child.fd)
                child.stop(0.0)
                child.close()
            if status != 0:
                problem = "did not end in time" if status is None else f"ended with {status}"
                raise WatchFailed(f"{self._argv[0]} {problem}: {_end_of(errors) or 'it printed no error'}")
            output.seek(0)
            data = output.read(LARGEST_OUTPUT + 1)
        if len(data) > LARGEST_OUTPUT:
            raise WatchFailed(f"{self._argv[0]} printed more than {LARGEST_OUTPUT} bytes in one look")
        events: list[E] = []
        problems: list[str] = []
        cursor = look.cursor
        for line in data.splitlines():
            try:
                if line.strip():
                    found = self._read(line, cursor, look.now)
                    events += found.events
                    cursor = found.cursor
            except InvalidInput as exc:
                problems.append(f"a line that is no event: {exc.code}: {exc}")
        yield Found(tuple(events), cursor, tuple(problems))

    def _read(self, line: bytes, cursor: Mapping[str, Json], now: float) -> Found[E]:
        value = jsontext.read(line)
        if isinstance(value, dict) and set(value) == {self._cursor_word}:
            new = value[self._cursor_word]
            if isinstance(new, dict):
                return Found((), new)
        return Found((self._make(value, now),), cursor)


def find_program(command: tuple[str, ...], folder: Path, path: str) -> tuple[str, ...]:
    """Return the command with the full path of its program; raise InvalidConfig if that cannot be run."""
    if not command:
        raise InvalidConfig("command: a program and its arguments are needed")
    name = command[0]
    found = str(folder / name) if "/" in name else shutil.which(name, path=path)
    if found is None or not os.access(found, os.X_OK):
        raise InvalidConfig(f"command: {name} is not there or cannot be run")
    return (found, *command[1:])


def _end_of(errors: IO[bytes]) -> str:
    errors.seek(0, os.SEEK_END)
    errors.seek(max(0, errors.tell() - _SHOWN_ERRORS))
    return " ".join(errors.read().decode(errors="replace").split())
