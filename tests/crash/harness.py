"""Orders a zygote's children about, cuts them short with strace, and judges what they left behind."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from pabal.store import State, Store
from pabal.testing.history import History, Report, check_history, read_history
from tests.crash.recorder import AheadClock, Recorder, all_entries
from tests.openers import OPENERS

SOAK = os.environ.get("PABAL_SOAK") == "1"
SHARE = float(os.environ.get("PABAL_SOAK_SHARE", 1))  # of the messages, cuts and damages of a soak: it may run in parts
ROOT = Path(__file__).parent.parent.parent

# The calls that can change what another process or the next boot will see.
CALLS = (
    "openat write pwrite64 writev fsync fdatasync sync_file_range rename renameat renameat2 link linkat unlink "
    "unlinkat symlink symlinkat mkdir mkdirat rmdir flock fcntl ftruncate fallocate utimensat utime"
).split()
_CALL = re.compile(r"^\d+ +(\w+)\((.*)")
_KILLED = -9
_LOOKED_UP = 1000  # messages of a queue; in a folder each is a listing of all


MEMORY = Path("/dev/shm")


def scratch() -> "tempfile.TemporaryDirectory[str]":
    """Return a folder that is gone after use. Unlike a power cut, a kill leaves memory as it was: no disk is needed."""
    return tempfile.TemporaryDirectory(prefix="pabal-", dir=MEMORY if MEMORY.is_dir() else None)


class Point(NamedTuple):
    """The n-th call of this name."""

    call: str
    number: int
    told: str  # as strace shows it, for the report

    def __str__(self) -> str:
        return f"{self.call} {self.number}"


class _Forker:
    """A running `tests.crash.zygote`, whose children work under strace."""

    def __init__(self, *arguments: str) -> None:
        self._name = " ".join(arguments)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.zygote", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert self._hear() == "ready", f"the zygote of {self._name} did not start"

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def order(self, order: dict[str, object], *strace: str) -> int:
        """Let a child do an order under strace; return how it ended."""
        self._say(json.dumps(order))
        pid = self._hear()
        tracer = _attach(pid, strace) if strace else None
        self._say("go")
        status = int(self._hear())
        if tracer:
            tracer.communicate(timeout=10)
        return status

    def _say(self, text: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{text}\n".encode())

    def _hear(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline().decode().strip()
        assert line, f"the zygote of {self._name} died"
        return line


class Commands(_Forker):
    """Runs `pabal` commands that are killed at a call, in a folder that is their current one."""

    def __init__(self) -> None:
        super().__init__("commands")

    def run(self, place: Path, *argv: str) -> int:
        return self.order({"argv": argv, "place": str(place)})

    def points(self, place: Path, *argv: str) -> list[Point]:
        """Run a command undisturbed and return every call it makes that may change something."""
        with scratch() as folder:
            trace = Path(folder, "trace")
            order: dict[str, object] = {"argv": argv, "place": str(place)}
            status = self.order(order, "-y", "-o", str(trace), "-e", f"trace={','.join(CALLS)}")
            assert status == 0, f"{argv} fails by itself: {status}"
            return [point for point in _points(trace) if "O_RDONLY" not in point.told and "<pipe:" not in point.told]

    def kill(self, place: Path, point: Point, *argv: str) -> bool:
        """Kill a command at a point; False if it ended before it came there."""
        rule = f"inject={point.call}:signal=SIGKILL:when={point.number}"
        order: dict[str, object] = {"argv": argv, "place": str(place)}
        status = self.order(order, "-o", "/dev/null", "-e", f"trace={point.call}", "-e", rule)
        assert status in (0, _KILLED), f"{argv} at {point} ended with {status}"
        return status == _KILLED


class Zygote(_Forker):
    """A running `tests.crash.zygote` for one store."""

    def __init__(self, store: str) -> None:
        self.store = store
        super().__init__(store)

    def run(self, operation: str, place: Path, history: Path, *strace: str) -> int:
        """Let a child do an operation under strace; return how it ended."""
        place.mkdir(exist_ok=True)
        order: dict[str, object] = {"operation": operation, "place": str(place), "history": str(history)}
        return self.order({"store": self.store, **order}, *strace)

    def points(self, operation: str, *before: str) -> list[Point]:
        """Do an operation undisturbed, after others, and return every call it makes that can be cut."""
        with scratch() as folder:
            place, history, trace = Path(folder, "place"), Path(folder, "child.jsonl"), Path(folder, "trace")
            for each in before:
                self.run(each, place, history)
            status = self.run(operation, place, history, "-y", "-o", str(trace), "-e", f"trace={','.join(CALLS)}")
            assert status == 0, f"{operation} fails by itself: {_wrong(history)}"
            return _points(trace)

    def inject(self, operation: str, folder: Path, point: Point, fault: str, *, name: str = "child") -> int:
        """Let a child do an operation in which one call meets a fault; return how it ended."""
        rule = f"inject={point.call}:{fault}:when={point.number}"
        place, history = folder / "place", folder / f"{name}.jsonl"
        return self.run(operation, place, history, "-o", "/dev/null", "-e", f"trace={point.call}", "-e", rule)

    def kill(self, operation: str, folder: Path, point: Point, *, name: str = "child") -> bool:
        """Kill a child at a point; False if it ended before it came there."""
        status = self.inject(operation, folder, point, "signal=SIGKILL", name=name)
        assert status in (0, _KILLED), f"{operation} at {point}: {_wrong(folder / f'{name}.jsonl')}"
        return status == _KILLED


def _points(trace: Path) -> list[Point]:
    seen: Counter[str] = Counter()
    points = []
    for line in trace.read_text(errors="replace").splitlines():
        if match := _CALL.match(line):
            seen[match[1]] += 1
            points.append(Point(match[1], seen[match[1]], line[:160]))
    return points


def _attach(pid: str, arguments: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    tracer = subprocess.Popen(["strace", "-f", "-p", pid, *arguments], stderr=subprocess.PIPE, bufsize=0)
    assert tracer.stderr
    said = b""
    while b"attached" not in said:
        line = tracer.stderr.readline()
        assert line, f"strace did not attach: {said!r}"
        said += line
    return tracer


def _wrong(history: Path) -> str:
    wrong = history.with_suffix(".wrong")
    return wrong.read_text() if wrong.exists() else "no error was told"


def judge(store: str, folder: Path, place: Path | None = None) -> Report:
    """Open what a crash left, let every lease run out, drain it, and check all that was written down."""
    clock = AheadClock()
    opened = OPENERS[store].open(place or folder / "place", clock)
    try:
        one_state_each(opened)
        clock.ahead = 7200.0
        history = History(folder / "judge.jsonl", clock=clock)
        recorder = Recorder(opened, history, clock)
        recorder.drain()
        one_state_each(opened)
        history.close()
    finally:
        opened.close()
    return check_history(read_history(folder.glob("*.jsonl")))


def one_state_each(store: Store) -> None:
    """Assert that every message is in one state, that every way of looking agrees, and that none is damaged."""
    for queue in store.queues():
        # A delay may end between two of these calls, which are no snapshot; a real disagreement stays.
        for _ in range(3):
            entries = [entry for state in State for entry in all_entries(store, queue, state)]
            counted = sum(store.counts(queue).values())
            if counted == len(entries):
                break
        twice = [id for id, many in Counter(entry.id for entry in entries).items() if many > 1]
        assert twice == [], f"in two states: {twice}"
        assert counted == len(entries)
        for entry in entries:
            assert entry.state is not State.CORRUPT, f"damaged: {entry}"
            assert entry.message or entry.state is State.DONE, f"no message: {entry}"
        for entry in entries[:: 1 + len(entries) // _LOOKED_UP]:
            found = store.find(queue, entry.id)
            assert found and found.state is entry.state, (entry, found)
