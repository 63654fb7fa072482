"""Consumers as commands, with functions that do nothing: `pabal work`, huey's consumer and RQ's workers.

Messages are published first. The rate is counted from the moment when a tenth of them is done, so that the start of the
processes does not count. huey has no lease and RQ no power cut to fear here: see the promises below the table.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from huey import SqliteHuey
from rq import Queue

import pabal
from pabal.store import State
from redis_streams import RedisStreams
from scale import Scale

PROCESSES = (1, 4)
_SECONDS = 120.0  # that a run may take
_PABAL = """
import pabal
app = pabal.App("sqlite:jobs.db")

@app.on("jobs")
def nothing(delivery):
    pass
"""
_HUEY = """
from huey import SqliteHuey
huey = SqliteHuey("bench", filename="huey.db")

@huey.task()
def nothing():
    pass
"""
_RQ = "def nothing():\n    pass\n"


def messages(scale: Scale) -> int:
    return max(20, min(5000, scale.large // 20))


def pabal_work(place: Path, scale: Scale, processes: int) -> float:
    """Return messages per second of `pabal work`."""
    many = messages(scale)
    place.mkdir(exist_ok=True)
    (place / "jobs.py").write_text(_PABAL)
    with pabal.connect(f"sqlite:{place}/jobs.db") as mq:
        queue = mq.queue("jobs")
        queue.publish_many(list(range(many)))
        command = [_tool("pabal"), "work", "jobs:app", "--processes", str(processes)]
        with _running(command, place):
            return _rate(many, lambda: queue.counts()[State.DONE])


def huey_consumer(place: Path, scale: Scale, processes: int) -> float:
    """Return messages per second of huey's consumer with processes."""
    many = messages(scale)
    place.mkdir(exist_ok=True)
    (place / "tasks.py").write_text(_HUEY)
    program = f"import tasks\nfor _ in range({many}): tasks.nothing()"
    subprocess.run([sys.executable, "-c", program], cwd=place, check=True)
    huey = SqliteHuey("bench", filename=str(place / "huey.db"))
    command = [_tool("huey_consumer"), "tasks.huey", "-w", str(processes), "-k", "process", "-n"]
    with _running(command, place):
        return _rate(many, lambda: many - huey.pending_count())


def rq_workers(place: Path, scale: Scale, processes: int) -> float:
    """Return messages per second of RQ's worker pool, on Redis with `appendfsync always`. It forks for each message."""
    many = max(20, messages(scale) // 10)
    place.mkdir(exist_ok=True)
    server = RedisStreams(place)
    try:
        port = int((place / "port").read_text())
        (place / "tasks.py").write_text(_RQ)
        queue = Queue("jobs", connection=redis.Redis(port=port))
        for _ in range(many):
            queue.enqueue("tasks.nothing", result_ttl=0)
        address = f"redis://127.0.0.1:{port}"
        command = [_tool("rq"), "worker-pool", "-n", str(processes), "-u", address, "--quiet", "jobs"]
        with _running(command, place):
            return _rate(many, lambda: many - len(queue) - len(queue.started_job_registry))
    finally:
        server.close()


def _tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)


@contextmanager
def _running(command: list[str], place: Path) -> Iterator[None]:
    environment = {**os.environ, "PYTHONPATH": str(place)}
    with open(place / "log", "wb") as log:
        process = subprocess.Popen(command, cwd=place, env=environment, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _rate(many: int, done: Callable[[], int]) -> float:
    """Return the rate at which the last nine tenths are done."""
    end, begun, first = time.monotonic() + _SECONDS, 0.0, 0
    while (now := done()) < many:
        if not begun and now >= many // 10:
            begun, first = time.perf_counter(), now
        if time.monotonic() > end:
            raise RuntimeError(f"{now} of {many} were done in {_SECONDS:g} s")
        time.sleep(0.005)
    return (many - first) / max(time.perf_counter() - begun, 0.005) if begun else float(many)
