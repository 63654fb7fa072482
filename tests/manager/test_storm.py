"""Manager and clients killed at random moments under load: nothing lost, nothing done twice, nobody fooled."""

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from pabal import jsontext
from pabal.connect import connect
from pabal.store import State
from tests.crash.harness import ROOT, SOAK, judge
from tests.manager.running import Running

KILLS = 500 if SOAK else 10  # on each of three stores
WORK = 5000  # bytes of history: some twenty operations
ROLES = ("publish", "publish", "consume", "consume", "consume", "script")
CONFIG = """
[policyDefaults.retry]
limit = 1000000
initialDelaySec = 0
maxDelaySec = 0
"""


class Clients:
    def __init__(self, ipc: Path, histories: Path, chance: random.Random) -> None:
        self._ipc = ipc
        self._histories = histories
        self._chance = chance
        self._numbers = count()
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(self, role: str) -> None:
        suffix = "scripts" if role == "script" else "jsonl"
        history = self._histories / f"{role[0]}{next(self._numbers)}.{suffix}"
        arguments = [str(self._ipc), str(history), role, str(self._chance.randrange(10**9))]
        process = subprocess.Popen([sys.executable, "-m", "tests.manager.busy", *arguments], cwd=ROOT)
        self._running.append((role, process))

    def kill_one(self) -> None:
        """Kill one at random and start another in its place."""
        role, process = self._running.pop(self._chance.randrange(len(self._running)))
        assert process.poll() is None, f"a {role} client ended by itself"
        process.kill()
        process.wait()
        self.start(role)

    def kill_all(self) -> None:
        for _, process in self._running:
            process.kill()
            process.wait()
        self._running.clear()

    def wait_until_busy(self) -> None:
        _wait(lambda: sum(path.stat().st_size > 0 for path in self._histories.iterdir()) >= len(self._running))

    def wait_for_work(self) -> None:
        """Wait until some more was done, however slow the machine: a kill of those who do nothing shows nothing."""
        goal = self._written() + WORK
        _wait(lambda: self._written() > goal)

    def _written(self) -> int:
        return sum(path.stat().st_size for path in self._histories.iterdir())


def _wait(done: Callable[[], bool], timeout: float = 120.0) -> None:
    end = time.monotonic() + timeout
    while not done():
        assert time.monotonic() < end, "the clients do nothing"
        time.sleep(0.02)


@pytest.mark.timeout(1800 if SOAK else 300)
@pytest.mark.parametrize(("backend", "store"), [("sqlite", "sqlite"), ("filesystem", "files"), ("hybrid", "hybrid")])
def test_random_kills_of_manager_and_clients_harm_nothing(backend: str, store: str, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    histories = tmp_path / "histories"
    histories.mkdir()
    (tmp_path / "pabal.toml").write_text(CONFIG)
    manager = Running(tmp_path, "--backend", backend)
    clients = Clients(manager.ipc, histories, chance)
    try:
        manager.wait_until_up()
        for role in ROLES:
            clients.start(role)
        clients.wait_until_busy()
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.05, 0.6))
            if chance.random() < 0.8:  # else it may be struck while it starts
                clients.wait_for_work()
            if chance.random() < 0.5:
                manager.kill()
                manager.start()
            else:
                clients.kill_one()
        manager.wait_until_up()
        time.sleep(1.0)
        assert manager.process.poll() is None, manager.log
    finally:
        clients.kill_all()
        manager.end()
    check_scripts(f"{'file' if store == 'files' else store}:{place(tmp_path, store)}", histories)
    report = judge(store, histories, place=tmp_path / ".pabal")
    assert report.harm == {}, f"seed {seed}"
    assert report.published > KILLS and report.acked > KILLS / 2, report._replace(lost=())


def place(folder: Path, store: str) -> Path:
    return folder / ".pabal" / {"sqlite": "pabal.db", "files": "spool", "hybrid": "hybrid"}[store]


def check_scripts(url: str, histories: Path) -> None:
    """Assert that every answered request of a script is there under the id it was told, and that no body is twice."""
    lines = [line for path in histories.glob("*.scripts") for line in path.read_bytes().split(b"\n")[:-1]]
    told = {found["n"]: found["id"] for found in map(jsontext.decode, lines)}
    assert told
    with connect(url) as mq:
        queue = mq.queue("scripts")
        stored = [entry for state in (State.READY, State.DELAYED) for entry in queue.entries(state)]
        queue.purge(State.READY)  # the history does not know of these
    bodies = Counter(entry.message.body["n"] for entry in stored if entry.message)  # type: ignore[index, call-overload]  # as the script wrote them
    assert [n for n, many in bodies.items() if many > 1] == []
    ids = {entry.id for entry in stored}
    assert [n for n, id in told.items() if id not in ids] == []
