"""Runs the real command, as a process of its own or in this one, on a store in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

from pabal.cli.main import cli
from pabal.connect import Connection, connect

COMMAND = [sys.executable, "-c", "from pabal.cli.main import main; main()"]


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def documents(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Pabal:
    """The command with a store of its own."""

    def __init__(self, url: str, place: Path) -> None:
        self.url = url
        self.place = place
        self.env = {**os.environ, "PABAL_URL": url, "PYTHONWARNINGS": "error"}
        self._started: list[subprocess.Popen[str]] = []

    def __call__(self, *args: str, stdin: str | bytes = b"") -> Ran:
        """Run in this process."""
        result = CliRunner().invoke(cli, list(args), input=stdin, env={"PABAL_URL": self.url}, prog_name="pabal")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    def ok(self, *args: str, stdin: str | bytes = b"") -> str:
        """Run in this process and expect success; return what was printed."""
        ran = self(*args, stdin=stdin)
        assert ran.code == 0, ran
        return ran.out.rstrip("\n")

    def start(self, *args: str, **settings: Any) -> subprocess.Popen[str]:
        """Start as a process of its own."""
        settings = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | settings
        process = subprocess.Popen(
            [*COMMAND, *args], env=self.env, cwd=self.place, text=True, errors="replace", **settings
        )
        self._started.append(process)
        return process

    def run(self, *args: str, stdin: str = "", **settings: Any) -> Ran:
        """Run as a process of its own."""
        process = self.start(*args, stdin=subprocess.PIPE, **settings)
        out, err = process.communicate(stdin, timeout=60)
        return Ran(process.returncode, out, err)

    def connect(self, consumer: str = "") -> Connection:
        return connect(self.url, consumer=consumer)

    def counts(self, queue: str = "jobs") -> dict[str, int]:
        """Return the states that hold something."""
        with self.connect() as mq:
            return {str(state): count for state, count in mq.queue(queue).counts().items() if count}

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@contextmanager
def working(place: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `pabal work jobs:app`; at the end the parent is killed with -9, and the kernel kills its processes."""
    with open(place / "log", "ab") as log:
        command = [*COMMAND, "work", "jobs:app", *options]
        process = subprocess.Popen(command, cwd=place, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def children(process: subprocess.Popen[bytes]) -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    except FileNotFoundError:
        return []
