"""Nobody waits without end: readers wait for no writer, writers for a limited time, and then they name the holder."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pabal.connect import connect
from pabal.errors import StoreBusy
from pabal.sql.connection import connect as connect_database
from pabal.sql.writer_lock import WriterLock
from pabal.store import State
from tests.crash.conftest import need

STOPPED = """
import os, signal, sys
import pabal
store = pabal.connect(sys.argv[1]).store
def work(tx):
    tx.run("insert into queues (name) values ('other')")
    os.kill(os.getpid(), signal.SIGSTOP)
store._db.write(work, durable=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with connect(f"sqlite:{tmp_path}/q.db") as mq:
        mq.queue("jobs").publish("first")
    return tmp_path / "q.db"


@pytest.fixture
def stopped(path: Path) -> Iterator[int]:
    """A process that is stopped in the middle of a commit."""
    with subprocess.Popen([sys.executable, "-c", STOPPED, f"sqlite:{path}"]) as process:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        yield process.pid
        process.kill()


def test_reading_waits_for_no_writer_and_writing_names_the_one_that_is_stopped(path: Path, stopped: int) -> None:
    began = time.monotonic()
    with connect(f"sqlite:{path}?busy=0.3", create=False) as mq:
        jobs = mq.queue("jobs")
        assert [entry.message.body for entry in jobs.browse(State.READY) if entry.message] == ["first"]
        assert jobs.counts()[State.READY] == 1 and mq.queues() == ["jobs"]
        assert mq.store.check(repair=False) == []  # type: ignore[attr-defined]
        with pytest.raises(StoreBusy, match=f"process {stopped} .*stopped.* for 0.3 s"):
            jobs.publish(1)
        os.kill(stopped, signal.SIGCONT)
        os.waitid(os.P_PID, stopped, os.WEXITED | os.WNOWAIT)
        assert jobs.publish(1).id
    assert time.monotonic() - began < 20  # the default is longer than that


def test_another_program_that_locks_the_file_is_named(path: Path) -> None:
    script = "import sys, sqlite3, time; sqlite3.connect(sys.argv[1]).execute('begin immediate'); print(); input()"
    arguments = [sys.executable, "-u", "-c", script, str(path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with connect(f"sqlite:{path}?busy=0.1") as mq, pytest.raises(StoreBusy, match=f"process {other.pid} "):
            mq.queue("jobs").publish(1)
        other.kill()


def test_a_lock_that_comes_after_its_caller_has_left_is_let_go(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    holder = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    lock = WriterLock(path, 0.05)
    for _ in range(3):  # one thread waits for all of them
        with pytest.raises(StoreBusy), lock.held():
            pass
    fcntl.flock(holder, fcntl.LOCK_UN)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(0.001)
    fcntl.flock(holder, fcntl.LOCK_UN)
    with lock.held():
        with pytest.raises(BlockingIOError):
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(holder)
    lock.close()


def test_a_caller_that_had_to_wait_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    holder = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    lock = WriterLock(path, 30)
    child = os.fork()
    if not child:
        time.sleep(0.1)
        os._exit(0)  # the last descriptor of the holder
    os.close(holder)
    with lock.held():
        other = os.open(path, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    os.waitpid(child, 0)
    lock.close()


READ_ONLY = """
import sys
from pabal.cli.main import cli

def run(*arguments):
    try:
        cli(["--url", sys.argv[1], *arguments], prog_name="pabal")
    except SystemExit as exc:
        return int(exc.code)

print([run("status"), run("peek", "jobs"), run("show", "m1"), run("doctor"), run("publish", "jobs", "2")])
"""


@pytest.mark.parametrize("scheme", ["sqlite", "hybrid"])
@pytest.mark.parametrize("killed", [False, True])
def test_a_read_only_file_system_can_be_read(tmp_path: Path, scheme: str, killed: bool) -> None:
    need("root and unshare to mount a file system", os.geteuid() == 0 and shutil.which("unshare") is not None)
    live, place = tmp_path / "live", tmp_path / "place"
    live.mkdir()
    with connect(f"{scheme}:{live}/q") as mq:
        mq.queue("jobs").publish("first", id="m1")
        if killed:
            shutil.copytree(live, place)
    if not killed:
        shutil.copytree(live, place)
    script = 'mount --bind place place && mount -o remount,ro,bind place && exec "$0" -c "$1" "$2"'
    arguments = ["unshare", "-m", "sh", "-c", script, sys.executable, READ_ONLY, f"{scheme}:place/q"]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.endswith("[0, 0, 0, 0, 6]\n"), done.stdout + done.stderr
    assert "first" in done.stdout and "all is well" in done.stdout
    assert "Read-only file system" in done.stderr


def test_a_wal_that_cannot_be_opened_on_a_read_only_file_system_is_named(tmp_path: Path) -> None:
    need("root and unshare to mount a file system", os.geteuid() == 0 and shutil.which("unshare") is not None)
    with connect(f"sqlite:{tmp_path}/q.db") as mq:
        mq.queue("jobs").publish("first")
        shutil.copytree(tmp_path, tmp_path / "place", ignore=shutil.ignore_patterns("*-shm", "place"))
    script = """
mount --bind place place && mount -o remount,ro,bind place || exit 99
exec "$0" -c 'from pabal.cli.main import main; main()' --url sqlite:place/q.db status
"""
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, sys.executable], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 6 and "copy it and" in done.stderr, done.stderr


def test_a_writer_is_opened_by_the_first_write(path: Path) -> None:
    with connect(f"sqlite:{path}") as mq:
        assert mq.queues() == ["jobs"]
        assert mq.store._db._writer is None  # type: ignore[attr-defined]
        mq.queue("jobs").publish(2)
    connection = connect_database(path)
    assert connection.execute("select count(*) from messages").get == 2
    connection.close()
