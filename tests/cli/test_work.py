"""`pabal work`: real processes and signals. Kills at random are in `tests/crash/test_work.py`."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import pabal
from pabal import State
from tests.cli.command import COMMAND, Pabal, children, working
from tests.waiting import until

# Three types, one of them async; each message that was handled is a line in the file of its process.
JOBS = """
import asyncio, os, time, msgspec, pabal

class Job(msgspec.Struct):
    n: int

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
        (place / "jobs.py").write_text(
            (place / "jobs.py").read_text() + '\n@app.on("new")\ndef new(delivery):\n    note("new")\n'
        )
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
        (place / "jobs.py").write_text(f"{source}\ndef broken(:\n")
        until(lambda: "stay as they are: SyntaxError" in log_of(place))
        process.send_signal(signal.SIGHUP)
        until(lambda: log_of(place).count("stay as they are: SyntaxError") == 2)
        assert set(children(process)) == first
        with connect(place) as mq:
            mq.queue("jobs").publish(7)
        until(lambda: notes(place)["7"] == 1)
        (place / "jobs.py").write_text(source)
        replaced(process, first)


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
