"""A hybrid store whose index is another one, an older one or lost: no start removes a body, and each way leads back.

The manager leaves files alone that are younger than a minute, so it runs with a clock that is 61 s ahead.
"""

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from pabal.connect import connect
from pabal.store import State
from tests.manager.running import PABAL, Running
from tests.waiting import until


class Later:
    """Runs the manager and commands, 61 s later."""

    def __init__(self, library: Path, folder: Path) -> None:
        offset = folder / "clock"
        offset.write_bytes(struct.pack("q", 61_000_000))
        self._folder = folder
        self._env = {**os.environ, "LD_PRELOAD": str(library), "PABAL_TEST_CLOCK": str(offset)}

    def up(self, *arguments: str) -> None:
        """Start a manager, and stop it when it serves."""
        (self._folder / "up.log").unlink(missing_ok=True)
        manager = Running(self._folder, "--backend", "hybrid", *arguments, env=self._env)
        try:
            until(lambda: '"event":"serving"' in manager.log)
            assert manager.stop() == 0
        finally:
            manager.end()

    def run(self, *arguments: str) -> str:
        command = [*PABAL, "--url", "hybrid:.pabal/hybrid", *arguments]
        done = subprocess.run(command, cwd=self._folder, env=self._env, capture_output=True, text=True)
        assert done.returncode == 0, done
        return done.stdout


@pytest.fixture
def later(library: Path, tmp_path: Path) -> Later:
    return Later(library, tmp_path)


def publish(url: str, *bodies: str) -> None:
    with connect(url) as mq:
        for body in bodies:
            mq.queue("jobs").publish(body, id=body)


def found(url: str, state: State) -> list[str]:
    with connect(url) as mq:
        return sorted(entry.id for entry in mq.queue("jobs").entries(state))


def files(folder: Path) -> int:
    return len(list(folder.glob("*.json"))) if folder.exists() else 0


@pytest.mark.parametrize("wrong", ["another", "older"])
def test_a_start_with_the_wrong_index_keeps_every_body(later: Later, tmp_path: Path, wrong: str) -> None:
    hybrid = tmp_path / ".pabal" / "hybrid"
    url, bodies, orphaned = f"hybrid:{hybrid}", hybrid / "bodies" / "jobs", hybrid / "bodies.orphaned" / "jobs"
    if wrong == "older":
        publish(url, "old")
        shutil.copy(hybrid / "pabal.db", tmp_path / "wrong.db")
    publish(url, "a", "b", "c")
    many = files(bodies)
    later.up("--db-path", "wrong.db")
    assert files(orphaned) == 3 and files(bodies) == many - 3
    later.up()
    assert files(orphaned) == 0 and files(bodies) == many
    assert found(url, State.READY) == sorted([*"abc", *(["old"] if wrong == "older" else [])])
    assert found(url, State.DEAD) == []


@pytest.mark.parametrize("copy", ["none", "older"])
def test_bodies_whose_index_is_lost_become_a_working_queue(later: Later, tmp_path: Path, copy: str) -> None:
    hybrid = tmp_path / ".pabal" / "hybrid"
    url = f"hybrid:{hybrid}"
    publish(url, "dead", "old")
    with connect(url) as mq:
        mq.queue("jobs").lease()[0].bury("broken")
    shutil.copy(hybrid / "pabal.db", tmp_path / "older.db")
    publish(url, "new")
    for path in hybrid.glob("pabal.db*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if copy == "older":
        shutil.copy(tmp_path / "older.db", hybrid / "pabal.db")
        later.up()
    assert f"{1 if copy == 'older' else 3} mended, 0 left" in later.run("doctor", "--adopt")
    assert found(url, State.READY) == (["new", "old"] if copy == "older" else ["dead", "new", "old"])
    assert found(url, State.DEAD) == (["dead"] if copy == "older" else [])
    later.up()
    assert later.run("doctor").startswith("all is well")
