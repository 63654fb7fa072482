"""A team at a table: served in this process a pass at a time, or by the real command in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pabal.apps.ignite import mail
from pabal.apps.ignite.monitor import Monitor
from pabal.apps.ignite.workspace import Held, Workspace
from pabal.clock import Clock
from pabal.jsontext import Json
from pabal.runtime.wake import FdWatch
from pabal.store import Published, State
from tests.services.postgres import PostgresServer

COMMAND = [sys.executable, "-c", "from pabal.cli.main import main; main()"]
TASK: dict[str, Json] = {"task_id": "task_001", "title": "paint the fence", "description": "d", "instructions": "do it"}
HOOKS = "agents: {leader: {wake: hook}, worker: {wake: hook}}"


# For tests of what must hold wherever the mail lies.
everywhere = pytest.mark.parametrize("kind", ["files", "sqlite", "postgres"], indirect=True)


class Place(NamedTuple):
    """Where the mail of a team lies: its `queues` line; on a server in a schema of its own."""

    queues: str = ""
    server: PostgresServer | None = None
    schema: str = ""

    def team(self, text: str) -> str:
        """Return the team file of a team whose mail lies here."""
        return f"{text}\nqueues: {self.queues}\n" if self.queues else text


class Table:
    """A workspace and its monitor, whose passes the test makes."""

    def __init__(
        self,
        place: Path,
        team: str = HOOKS,
        *,
        clock: Clock | None = None,
        serve: bool = True,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.root = place / "team"
        self.root.mkdir(exist_ok=True)
        (self.root / "team.yaml").write_text(team)
        self._clock = clock
        self._variables = {"PATH": os.environ["PATH"], **(variables or {})}
        self.workspace = Workspace.open(self.root, clock=clock)
        self.workspace.prepare()
        self.watch = FdWatch()
        self._monitor: Monitor | None = None
        if serve:
            self.serve()

    @property
    def monitor(self) -> Monitor:
        assert self._monitor is not None
        return self._monitor

    def serve(self) -> None:
        """Begin to serve, as a monitor that starts."""
        self._monitor = Monitor(self.workspace, watch=self.watch, folder=self.root.parent, variables=self._variables)

    def change(self, team: str) -> None:
        """Write another team file; where the mail lies stays."""
        (self.root / "team.yaml").write_text(Place(self.workspace.team.queues).team(team))

    def crash(self) -> None:
        """Let the monitor be gone from one moment to the next: nothing is given back."""
        for runner in self.monitor.busy:
            assert runner.turn is not None
            if runner.running:
                runner.wake.stop(runner.turn)
        self.monitor.close()
        self._monitor = None
        self.reopen()

    def reopen(self) -> None:
        """Open the workspace anew, with whatever team it has by now."""
        self.workspace.close()
        self.workspace = Workspace.open(self.root, clock=self._clock)
        self.watch.close()
        self.watch = FdWatch()

    def send(self, to: str | Sequence[str] = "worker", type: str = "task_assignment", **more: Any) -> list[Published]:
        return mail.send(self.workspace, **{"sender": "user", "to": to, "type": type, "body": TASK, **more})

    def passes(self, count: int = 5) -> None:
        for _ in range(count):
            self.monitor.step()
            self.watch.wait(0.002)

    def until(self, condition: Callable[[], object], timeout: float = 20.0) -> None:
        """Serve until the condition holds, which only a failing test waits for in vain."""
        end = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < end, f"it never came true: {sorted(map(str, self.files()))}"
            self.monitor.step()
            self.watch.wait(0.02)

    def hand(self, agent: str = "worker") -> Held:
        """Serve until the agent has a message in hand, of which it knows."""
        self.until(lambda: self.workspace.held(agent) and self.monitor.runners[agent]._waking is None)
        return self.workspace.held(agent)[0]

    def state(self, id: str, agent: str = "worker") -> State | None:
        entry = self.workspace.store.find(agent, id)
        return entry.state if entry is not None else None

    def files(self) -> list[Path]:
        return [path.relative_to(self.root) for path in self.root.glob("queue/**/*.mime")]

    def lines(self, name: str = "got") -> list[str]:
        path = self.root / name
        return path.read_text().splitlines() if path.exists() else []

    def close(self) -> None:
        if self._monitor is not None:
            for runner in self._monitor.busy:
                assert runner.turn is not None
                runner.wake.stop(runner.turn)
            self._monitor.close()
        self.watch.close()
        self.workspace.close()


def ignite(root: Path, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the real command on a workspace."""
    return subprocess.run(
        [*COMMAND, "ignite", "--root", str(root), *arguments], input=stdin, capture_output=True, timeout=60, check=False
    )


class Served:
    """A workspace served by `pabal ignite up`, which may be killed and started again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "ignite", "--root", str(self.root), "up"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith(b"serving"), line

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(timeout=60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


def soon(condition: Callable[[], object], timeout: float = 30.0) -> bool:
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
