"""A copy made while the manager is used, in the way that the manual says, has every message that it should."""

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import pabal
from pabal.store import Checkable, State
from tests.manager.running import Running

MANUAL = Path(__file__).parent.parent.parent / "docs" / "operations.md"
WAITING = (State.READY, State.INFLIGHT, State.DELAYED)
PLACES = {"sqlite": "pabal.db", "filesystem": "spool", "hybrid": "hybrid"}


def documented(backend: str) -> str:
    """Return the command that the manual gives for a store, as it is called in the data root."""
    page = MANUAL.read_text()
    (command,) = re.findall(r"^\$ pabal --url sqlite:data/pabal\.db (backup pabal\.tar --verify)$", page, re.M)
    scheme = "file" if backend == "filesystem" else backend
    (place,) = re.findall(rf"`{scheme}:data/([\w.]+)`", page)
    return f"pabal --url {scheme}:{place} {command.replace('pabal.tar', '../pabal.tar')}"


class Traffic:
    """Publishes and takes through the mailbox until stopped, and knows what was answered."""

    def __init__(self, ipc: Path) -> None:
        self.published: list[str] = []
        self.taken: list[str] = []  # noted before each ack
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=part, args=(f"mailbox:{ipc}",)) for part in (self._give, self._take)]
        for thread in self._threads:
            thread.start()

    def _give(self, url: str) -> None:
        with pabal.connect(url, consumer="giver") as mq:
            for n in count():
                if self._stop.is_set():
                    return
                target = "nobody" if n % 2 else None  # however long the backup takes, something is left
                self.published.append(mq.queue("jobs").publish(n, id=f"m{n:05d}", target=target).id)

    def _take(self, url: str) -> None:
        with pabal.connect(url, consumer="taker") as mq:
            while not self._stop.wait(0.02):
                for delivery in mq.queue("jobs").lease(wait=0.1):
                    self.taken.append(delivery.message.id)
                    delivery.ack()

    def wait_for(self, more: int) -> None:
        goal = len(self.published) + more
        while len(self.published) < goal:
            assert all(thread.is_alive() for thread in self._threads)
            self._stop.wait(0.01)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture(params=PLACES)
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Running]]:
    running = Running(tmp_path, "--backend", request.param)
    running.wait_until_up()
    yield request.param, running
    running.end()


def test_a_copy_made_under_load_can_be_restored(manager: tuple[str, Running], tmp_path: Path) -> None:
    backend, running = manager
    root, store = tmp_path / ".pabal", PLACES[backend]
    traffic = Traffic(running.ipc)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    try:
        traffic.wait_for(50)
        promised = set(traffic.published)
        subprocess.run(["sh", "-ec", documented(backend)], cwd=root, env=environment, check=True, timeout=60)
        handled = set(traffic.taken)
        traffic.wait_for(20)
    finally:
        traffic.stop()
    running.stop()
    for old in root.glob(f"{store}*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    restore = documented(backend).replace("backup", "restore").replace("--verify", "")
    subprocess.run(["sh", "-ec", restore], cwd=root, env=environment, check=True, timeout=60)

    running.start()
    running.wait_until_up()
    with pabal.connect(f"mailbox:{running.ipc}") as mq:
        waiting = {entry.id for state in WAITING for entry in mq.queue("jobs").entries(state)}
        assert isinstance(mq.store, Checkable) and mq.store.check(repair=False) == []
        assert mq.queue("jobs").publish("after").id
    assert len(promised - handled) > 10 and promised - handled <= waiting
