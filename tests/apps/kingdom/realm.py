"""A kingdom in a folder of its own, for tests: its King and generals in this process or as processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pabal.apps.kingdom.documents import Event
from pabal.apps.kingdom.general.role import General
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.king.archive import COMPLETED_QUEUE
from pabal.apps.kingdom.king.dispatch import Dispatch
from pabal.apps.kingdom.king.role import tasks
from pabal.apps.kingdom.layout import EVENTS, MESSAGES, RESULTS, TASKS
from pabal.clock import Clock
from pabal.runtime.wake import FdWatch
from pabal.store import State, Watch

PABAL = (sys.executable, "-c", "from pabal.cli.main import main; main()")
URLS = {"files": "", "sqlite": "sqlite:state/kingdom.db"}
# For tests of what the queues themselves carry: also on a server, by the same line of configuration.
everywhere = pytest.mark.parametrize("kind", [*URLS, "postgres"], indirect=True)
SUCCESS = """\
import json, os
result = {"task_id": "not mine", "status": "success", "summary": "done well"}
open(os.environ["KINGDOM_RESULT_PATH"], "w").write(json.dumps(result))
"""


def saying(**fields: Any) -> str:
    """Return a soldier that leaves this result."""
    document = {"task_id": "task-00000000-000", "summary": "said", **fields}
    return f"import os\nopen(os.environ['KINGDOM_RESULT_PATH'], 'w').write({json.dumps(document)!r})\n"


class Realm:
    """One kingdom. `queues` is what its system.yaml says of them."""

    def __init__(self, root: Path, queues: str, clock: Clock) -> None:
        self.root = root
        self._queues = queues
        self.clock = clock
        self.variables = {**os.environ, "SLACK_DEFAULT_CHANNEL": "C0MAIN"}
        Home.make(root, queues=queues, clock=clock).close()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._homes: list[Home] = []
        self._generals: dict[str, tuple[General, FdWatch]] = {}
        self._watches: list[Watch] = []
        self.home = self.open()

    def open(self) -> Home:
        home = Home.open(self.root, clock=self.clock, variables=self.variables)
        home.prepare()
        self._homes.append(home)
        return home

    def king(self, **config: Any) -> None:
        """Write king.yaml and open the kingdom anew."""
        (self.root / "config/king.yaml").write_text(json.dumps(config))
        self.home = self.open()

    def system(self, **config: Any) -> None:
        (self.root / "config/system.yaml").write_text(json.dumps({"queues": self._queues, **config}))
        self.home = self.open()

    def general(self, name: str = "gen-pr", script: str = SUCCESS, **fields: Any) -> None:
        """Install a general whose soldier is a Python program."""
        folder = self.root / "generals" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "soldier.py").write_text(script)
        manifest = {
            "name": name,
            "description": "for a test",
            "timeout_seconds": 30,
            "subscribes": ["github.pr.*"],
            "schedules": [],
            "command": [sys.executable, str(folder / "soldier.py")],
            **fields,
        }
        (self.root / "config/generals" / f"{name}.yaml").write_text(json.dumps(manifest))

    def event(self, id: str = "evt-1", type: str = "github.pr.assigned", **fields: Any) -> Event:
        event = Event(id=id, type=type, **fields)
        self.home.emit([event])
        return event

    # In this process

    def run_kingdom(self) -> None:
        """Be a new King for one pass."""
        for task in tasks(self.home):
            task.step()

    def dispatcher(self) -> Dispatch:
        return next(task for task in tasks(self.home) if isinstance(task, Dispatch))

    def lead(self, name: str = "gen-pr", timeout: float = 20.0) -> None:
        """Be a general until it has nothing in hand."""
        general, watch = self.general_of(name)
        end = time.monotonic() + timeout
        while True:
            general.step()
            if not general.soldiers and not self.home.queue(TASKS, name).counts()[State.INFLIGHT]:
                return
            assert time.monotonic() < end, "the soldier does not end"
            watch.wait(0.2)

    def general_of(self, name: str = "gen-pr") -> tuple[General, FdWatch]:
        if name not in self._generals:
            watch, arrivals = FdWatch(), self.home.watch(TASKS)
            self._watches += [watch, arrivals]
            self._generals[name] = (General(self.home, name, watch, arrivals), watch)
        return self._generals[name]

    # What is there

    def bodies(self, queue: str, state: State = State.READY) -> list[Any]:
        return [entry.message.body for entry in self.home.queue(queue).entries(state) if entry.message]

    def tasks(self, state: State = State.READY) -> list[Any]:
        return self.bodies(TASKS, state)

    def notices(self) -> list[Any]:
        return self.bodies(MESSAGES)

    def results(self) -> list[Any]:
        return [*self.bodies(RESULTS), *self.bodies(RESULTS, State.DONE)]

    def pending(self) -> set[str]:
        return {body["id"] for body in self.bodies(EVENTS)}

    def completed(self) -> dict[str, Any]:
        if self.home.on_files:
            paths = (self.root / "queue/events/completed").glob("*.json")
            return {path.stem: json.loads(path.read_text()) for path in paths}
        return {body["id"]: body for body in self.bodies(COMPLETED_QUEUE)}

    def journal(self, type: str) -> list[Any]:
        lines = map(json.loads, (self.root / "logs/events.log").read_text().splitlines())
        return [line["data"] for line in lines if line["type"] == type]

    # As processes

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        log = (self.root / "logs/test.log").open("ab")
        process = subprocess.Popen(
            [*PABAL, "kingdom", *arguments, "--home", str(self.root)],
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        log.close()
        self._processes.append(process)
        return process

    @property
    def log(self) -> str:
        paths = (self.root / "logs/test.log", self.root / "logs/system.log")
        return "".join(path.read_text() for path in paths if path.exists())

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        for general, _ in self._generals.values():
            general.finish()
        for watch in self._watches:
            watch.close()
        for home in self._homes:
            home.close()


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder; return what it prints."""
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(["git", *who, *arguments], cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


def commit(repository: Path, name: str) -> None:
    """Commit a file of this name, with its name as its text."""
    (repository / name).write_text(name)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", name)


def eventually(holds: Callable[[], bool], what: Callable[[], object] = lambda: "", timeout: float = 60.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < end, what()
        time.sleep(0.02)
