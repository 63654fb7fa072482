"""Reads of the file store wait for no writer and need to write nothing; writers wait for a while, and say for whom."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from pabal import filesystem
from pabal.errors import StoreBusy, StoreFailed
from pabal.store import State
from pabal.stores.files import FileStore
from pabal.testing import ManualClock
from pabal.testing.store_place import QUEUE, bury, draft, drain, publish, take, take_one

_HOLD = """
import fcntl, sys
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
input()
"""


@contextmanager
def held(lock: Path) -> Iterator[int]:
    """Let another process hold a lock and stop; yield its id."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        process.send_signal(signal.SIGSTOP)
        try:
            yield process.pid
        finally:
            process.kill()


def fill(root: Path, clock: ManualClock) -> None:
    with closing(FileStore(root, clock=clock)) as store:
        publish(store, "dead", id="dead")
        bury(store, take_one(store))
        publish(store, 1, 2, group="g")
        publish(store, "later", delay=60.0)
        take(store)
    (root / "foreign").write_text(json.dumps({"messageId": "foreign", "payload": "foreign"}))
    os.rename(root / "foreign", root / QUEUE / "ready" / "foreign.json")


def look(root: Path, clock: ManualClock) -> None:
    """Read everything, as a new process and as one that knows the queue."""
    with closing(FileStore(root, clock=clock)) as store:
        for _ in range(2):
            counts = store.counts(QUEUE)
            assert (counts[State.READY], counts[State.DELAYED], counts[State.INFLIGHT]) == (2, 1, 1)
            assert counts[State.DEAD] == 1
            ready = [(entry.id, entry.message.body) for entry in store.browse(QUEUE, State.READY) if entry.message]
            assert ready[-1] == ("foreign", "foreign") or ready[0] == ("foreign", "foreign")
            dead = store.find(QUEUE, "dead")
            assert dead is not None and dead.state is State.DEAD and dead.failure is not None
            assert store.queues() == [QUEUE] and store.settings(QUEUE) is None and store.facts()["place"] == str(root)
            assert store.check(repair=False) == []


@pytest.mark.parametrize("lock", [".lock", f"{QUEUE}/.lock"])
def test_a_stopped_writer_stops_no_reader(root: Path, lock: str) -> None:
    clock = ManualClock()
    fill(root, clock)
    with held(root / lock):
        look(root, clock)


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.publish([draft(3, group="g")]),
        lambda store: store.publish([draft(3, id="given")]),
        lambda store: take(store),
        lambda store: store.revive(QUEUE, ["dead"]),
    ],
)
def test_a_writer_says_who_holds_the_lock_and_nothing_is_left(
    root: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[FileStore], object]
) -> None:
    clock = ManualClock()
    fill(root, clock)
    monkeypatch.setattr(filesystem, "PATIENCE", 0.1)
    with closing(FileStore(root, clock=clock)) as store:
        with held(root / QUEUE / ".lock") as pid, pytest.raises(StoreBusy, match=rf"process {pid} \(.*, stopped, "):
            call(store)
        assert os.listdir(root / QUEUE / "tmp") == []
        publish(store, 4)
        assert 4 in drain(store)


def test_a_thread_that_holds_the_lock_is_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with filesystem.locked(tmp_path / "lock"):
        monkeypatch.setattr(filesystem, "PATIENCE", 0.01)
        with pytest.raises(StoreBusy, match=f"process {os.getpid()} "), filesystem.locked(tmp_path / "lock"):
            pass


@pytest.mark.root
def test_a_read_only_file_system_can_be_read(root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount")
    clock = ManualClock()
    fill(root, clock)
    (root / ".ballast").unlink()
    before = sorted(map(str, root.rglob("*")))
    subprocess.run(["mount", "--bind", str(root), str(root)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(root)], check=True)
        look(root, clock)
        assert sorted(map(str, root.rglob("*"))) == before
        with closing(FileStore(root, clock=clock)) as store, pytest.raises(StoreFailed, match="Read-only"):
            publish(store, 3)
        for command in (["status"], ["peek", QUEUE], ["show", "dead"], ["list-dlq", QUEUE], ["doctor"]):
            run = [sys.executable, "-c", "from pabal.cli.main import main; main()", "--url", f"file:{root}", *command]
            done = subprocess.run(run, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
    finally:
        subprocess.run(["umount", str(root)], check=True)
    with closing(FileStore(root, clock=clock)) as store:
        assert sorted(map(str, drain(store))) == ["foreign"]
