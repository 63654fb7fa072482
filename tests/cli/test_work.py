"""`pabal work`: real processes and signals. Kills at random are in `tests/crash/test_work.py`."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

import pabal
from pabal import State
from pabal.cli.work import Replacement
from pabal.runtime.supervisor import Supervisor
from pabal.runtime.wake import FdWatch
from pabal.testing import ManualClock
from tests.cli.command import COMMAND, Pabal, children, working
from tests.waiting import until

# Three types, one of them async; each message that was handled is a line in the file of its process.
JOBS = """
import asyncio, os, time, msgspec, pabal

class Job(msgspec.Struct):
    n: int

if os.path.exists("at-import"):
    exec(open("at-import").read())

app = pabal.App("{url}")
notes = os.open(f"notes-{{os.getpid()}}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

def note(n):
    os.write(notes, f"{{n}}\\n".encode())

@app.on("jobs", type="typed", body=Job, concurrency=2)
def typed(job):
    note(job.n)

@app.on("jobs", type="async")
async def later(delivery):
    await asyncio.sleep(0)
    note(delivery.body)

@app.on("jobs")
def other(delivery):
    note(delivery.body)

@app.on("slow")
def slow(delivery):
    note("slow")
    time.sleep(3600)
"""


def replaced(process: subprocess.Popen[bytes], old: set[int]) -> set[int]:
    """Wait until there are two processes, none of them an old one."""
    found: set[int] = set()

    def are_new() -> bool:
        nonlocal found
        found = set(children(process))
        return len(found) == 2 and not found & old

    until(are_new)
    return found


def change(place: Path, source: str) -> None:
    """Change the module in one step, so that `--reload` sees one change."""
    (place / "changed").write_text(source)
    (place / "changed").rename(place / "jobs.py")


def at_import(place: Path, source: str) -> None:
    """Run this whenever the module is imported from now on; nothing if it is empty."""
    (place / "changed").write_text(source)
    (place / "changed").rename(place / "at-import")


def notes(place: Path) -> Counter[str]:
    return Counter(line for path in place.glob("notes-*") for line in path.read_text().splitlines())


def log_of(place: Path) -> str:
    return (place / "log").read_text()


@pytest.fixture(params=["sqlite", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(JOBS.format(url=f"{request.param}:{tmp_path}/store"))
    (tmp_path / "url").write_text(f"{request.param}:{tmp_path}/store")
    return tmp_path


def connect(place: Path) -> pabal.Connection:
    return pabal.connect((place / "url").read_text())


def test_sigterm_finishes_what_is_in_hand_and_counts_no_attempt(place: Path) -> None:
    with connect(place) as mq:
        slow = mq.queue("slow")
        slow.publish_many([1, 2, 3])
        with working(place, "--processes", "2", "--grace", "0.3") as process:
            until(lambda: notes(place)["slow"] == 2)
            assert slow.counts()[State.INFLIGHT] == 2
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        assert [entry.attempt for entry in slow.browse(State.READY)] == [0, 0, 0]
    lines = [json.loads(line) for line in log_of(place).splitlines()]
    assert {line["node"] for line in lines} >= {"work"} and not [line for line in lines if line["level"] == "error"]


def test_sighup_and_a_changed_file_replace_the_processes(place: Path) -> None:
    with working(place, "--processes", "2", "--reload") as process:
        first = replaced(process, set())
        process.send_signal(signal.SIGHUP)
        second = replaced(process, first)
        source = (place / "jobs.py").read_text()
        change(place, source + '\n@app.on("new")\ndef new(delivery):\n    note("new")\n')
        replaced(process, second)
        with connect(place) as mq:
            mq.queue("new").publish(1)
        until(lambda: notes(place)["new"] == 1)
        os.kill(children(process)[0], signal.SIGKILL)
        until(lambda: "ended with -9" in log_of(place) and len(children(process)) == 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_a_mistake_in_the_module_replaces_nothing(place: Path) -> None:
    source = (place / "jobs.py").read_text()
    with working(place, "--processes", "2", "--reload") as process:
        first = replaced(process, set())
        until(lambda: all((place / f"notes-{pid}").exists() for pid in first))  # they have loaded it
        change(place, f"{source}\ndef broken(:\n")
        until(lambda: "running processes go on: SyntaxError" in log_of(place))
        process.send_signal(signal.SIGHUP)
        until(lambda: log_of(place).count("running processes go on: SyntaxError") == 2)
        assert set(children(process)) == first
        with connect(place) as mq:
            mq.queue("jobs").publish(7)
        until(lambda: notes(place)["7"] == 1)
        change(place, source)
        replaced(process, first)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import sys; sys.exit(1)", "it ended with 1"),
        ("os._exit(3)", "it ended with 3"),
        ("os.kill(os.getpid(), 9)", "it ended with -9"),
        ("import sys; sys.exit('no licence')", "no licence"),
    ],
)
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_module_that_ends_its_process_replaces_nothing(place: Path, source: str, reason: str) -> None:
    with working(place, "--processes", "2") as process:
        first = replaced(process, set())
        until(lambda: all((place / f"notes-{pid}").exists() for pid in first))  # they have loaded it
        at_import(place, source)
        process.send_signal(signal.SIGHUP)
        said = f"the application could not be loaded, and the running processes go on: {reason}"
        until(lambda: said in log_of(place) or "replacing" in log_of(place))
        assert "replacing" not in log_of(place) and set(children(process)) == first


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_while_the_module_is_loaded_the_processes_are_kept_and_a_stop_is_obeyed(place: Path) -> None:
    with working(place, "--processes", "2") as process:
        first = replaced(process, set())
        until(lambda: all((place / f"notes-{pid}").exists() for pid in first))
        at_import(place, "open(f'hangs-{os.getpid()}', 'w').close(); time.sleep(3600)")
        process.send_signal(signal.SIGHUP)
        [hanging] = until(lambda: list(place.glob("hangs-*")))
        at_import(place, "")
        os.kill(first.pop(), signal.SIGKILL)
        until(lambda: len(list(place.glob("notes-*"))) == 3)  # the third one has loaded it
        pid = int(hanging.name.removeprefix("hangs-"))
        assert pid in children(process) and first <= set(children(process))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0 and not Path(f"/proc/{pid}").exists()
    assert "replacing" not in log_of(place) and "could not be loaded" not in log_of(place)


class Restarts(Supervisor):
    """Notes what is to be restarted."""

    def __init__(self, clock: ManualClock, watch: FdWatch) -> None:
        super().__init__({}, clock=clock, watch=watch)
        self.restarted: list[str] = []

    def restart(self, name: str, grace: float = 0.0) -> None:
        self.restarted.append(name)


class Replacing(NamedTuple):
    task: Replacement
    supervisor: Restarts
    clock: ManualClock
    watch: FdWatch

    def finish(self) -> None:
        """Run the task until it has nothing to do."""
        while (due := self.task.next_due()) is not None:
            self.watch.wait(due)
            self.task.step()


@pytest.fixture
def replacing(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replacing]:
    monkeypatch.chdir(place)
    clock = ManualClock()
    with closing(FdWatch()) as watch:
        supervisor = Restarts(clock, watch)
        task = Replacement(supervisor, "jobs:app", ["a", "b"], 1.0, clock=clock, watch=watch)
        try:
            yield Replacing(task, supervisor, clock, watch)
        finally:
            task.end()


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_module_that_takes_too_long_replaces_nothing(
    place: Path, replacing: Replacing, caplog: pytest.LogCaptureFixture
) -> None:
    at_import(place, "open('hangs', 'w').close(); time.sleep(3600)")
    replacing.task.begin()
    replacing.task.step()
    until((place / "hangs").exists)
    replacing.task.step()
    assert replacing.task.next_due() == 60.0
    replacing.clock.advance(60)
    replacing.finish()
    assert "go on: it took longer than 60 s" in caplog.text and replacing.supervisor.restarted == []


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_what_was_changed_while_the_module_was_loaded_is_loaded_again(
    place: Path, replacing: Replacing, caplog: pytest.LogCaptureFixture
) -> None:
    replacing.task.begin()
    replacing.finish()
    assert replacing.supervisor.restarted == ["a", "b"]
    replacing.task.begin()
    replacing.task.step()
    replacing.task.begin()  # each time that it was loaded, one is replaced, although it is asked again
    replacing.finish()
    assert replacing.supervisor.restarted[2:] == ["a", "b", "a"] and len(list(place.glob("notes-*"))) == 3
    replacing.task.begin()
    replacing.task.step()
    until(lambda: len(list(place.glob("notes-*"))) == 4)  # the module is as it was
    at_import(place, "os._exit(3)")
    replacing.task.begin()
    replacing.finish()
    assert replacing.supervisor.restarted[5:] == ["a"] and "go on: it ended with 3" in caplog.text


def test_a_storm_of_sighup_replaces_all_and_ends(place: Path) -> None:
    with working(place, "--processes", "2") as process:
        old = replaced(process, set())
        while old & set(children(process)):  # each turn is the next one's, although the signals go on
            process.send_signal(signal.SIGHUP)
        replaced(process, old)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_what_is_wrong_is_said_before_anything_starts(pabal: Pabal, tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("import pabal\nthing = 1\napp = pabal.App('memory:')\n")
    for name, said in (
        ("nothing", "give MODULE:NAME"),
        ("missing_module:app", "no module 'missing_module'"),
        ("empty:thing", "is a int, not a pabal.App; empty has app"),
        ("empty:nothing", "is nothing, not a pabal.App"),
        ("empty:app", "serves no queue"),
    ):
        ran = subprocess.run([*COMMAND, "work", name], cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == 2 and said in ran.stderr, ran.stderr
    assert not list(tmp_path.glob("*.db"))


def test_the_unit_of_an_application(place: Path) -> None:
    command = [*COMMAND, "install-service", "--work", "jobs:app", "--processes", "3", "--show"]
    unit = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True).stdout
    assert "work jobs:app --processes 3" in unit and f"WorkingDirectory={place}" in unit and "KillMode=mixed" in unit


WORKER = """
import pabal, sys, threading, time
mq = pabal.connect(sys.argv[1])
def handler(delivery):
    print("begun", flush=True)
    time.sleep({seconds})
count = pabal.worker(mq.queue("jobs"), handler).run(grace={grace})
print("handled", count, flush=True)
"""


@pytest.mark.parametrize(
    ("seconds", "grace", "handled", "state"), [(0.5, 30, 1, State.DONE), (3600, 0.2, 0, State.READY)]
)
def test_a_worker_in_a_main_thread_ends_well_on_sigterm(
    tmp_path: Path, seconds: float, grace: float, handled: int, state: State
) -> None:
    url = f"sqlite:{tmp_path}/store"
    with pabal.connect(url) as mq:
        id = mq.queue("jobs").publish(1).id
        program = WORKER.format(seconds=seconds, grace=grace)
        with subprocess.Popen([sys.executable, "-c", program, url], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "begun\n"
            process.send_signal(signal.SIGTERM)
            assert process.stdout.read() == f"handled {handled}\n" and process.wait(60) == 0
        entry = mq.queue("jobs").find(id)
        assert entry is not None and (entry.state, entry.attempt) == (state, handled)
