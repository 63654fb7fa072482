"""What a kingdom costs: dispatches per second, from an event moved in to its soldier's first act, and idling."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from footprint import Latency, percentiles
from pabal.apps.kingdom.config import ROLES
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.king.dispatch import Dispatch
from pabal.apps.kingdom.king.role import tasks
from pabal.store import State
from scale import Scale

EVENTS = 10_000
GAP = 0.2, 0.4  # seconds between events, so that everybody is idle each time
_UP = [sys.executable, "-c", "from pabal.cli.main import main; main()", "kingdom", "up", "--home"]
_KING = "concurrency: {max_soldiers: 1000000}\ngate: {enabled: false}\n"
_MANIFEST = """\
name: gen-bench
description: for a measurement
timeout_seconds: 60
subscribes: [bench.*]
schedules: []
command:
  - /bin/sh
  - -c
  - |
    date +%s%N > "$KINGDOM_RESULT_PATH.at"
    printf '{"task_id": "x", "status": "success", "summary": "ok"}' > "$KINGDOM_RESULT_PATH"
"""


def made(place: Path) -> Path:
    """Make a kingdom with one general."""
    root = place / "kingdom"
    Home.make(root).close()
    (root / "config/king.yaml").write_text(_KING)
    (root / "config/generals/gen-bench.yaml").write_text(_MANIFEST)
    return root


def dispatched(place: Path, scale: Scale) -> float:
    """Return how many of many pending events a King dispatches per second, cap and gate lifted."""
    count = min(EVENTS, scale.large)
    root = made(place)
    for number in range(count):
        _write(root, f"evt-{number}", root / f"queue/events/pending/evt-{number}.json")
    with Home.open(root) as home:
        king = next(task for task in tasks(home) if isinstance(task, Dispatch))
        start = time.monotonic()
        king.step()
        while king.next_due() == 0:
            king.step()
        return count / (time.monotonic() - start)


def latency(place: Path, scale: Scale, chance: random.Random) -> Latency | str:
    """Move events in at random moments and see when the soldier of each begins."""
    root = made(place)
    with (root / "config/system.yaml").open("a") as file:
        file.write("roles: [king]\n")
    up = subprocess.Popen([*_UP, str(root)], stdout=subprocess.DEVNULL, env=dict(os.environ))
    try:
        moved = {}
        for number in range(min(scale.samples, 200) + 1):
            id = f"evt-{number}"
            _write(root, id, root / "draft")
            moved[id] = time.time_ns()
            os.rename(root / "draft", root / f"queue/events/pending/{id}.json")
            if not _await(root, id, scale.fill_seconds):
                return f"none within {scale.fill_seconds:g} s"
            time.sleep(chance.uniform(*GAP))
        return percentiles([at - moved[id] for id, at in _begun(root).items() if id != "evt-0"])
    finally:
        _end(up)


def idle(place: Path, scale: Scale) -> float:
    """Return the CPU milliseconds per second of six roles and what holds them, with nothing to do."""
    root = made(place)
    (root / "config/generals/gen-other.yaml").write_text(_MANIFEST.replace("bench", "other"))
    up = subprocess.Popen([*_UP, str(root)], stdout=subprocess.DEVNULL, env=dict(os.environ))
    try:
        beats = [root / f"state/{role}/heartbeat" for role in (*ROLES, "gen-bench", "gen-other")]
        end = time.monotonic() + scale.fill_seconds
        while not all(beat.exists() for beat in beats) and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(min(2.0, scale.idle_seconds))
        family = [psutil.Process(up.pid), *psutil.Process(up.pid).children(recursive=True)]
        before, start = _used(family), time.monotonic()
        time.sleep(5 * scale.idle_seconds)
        return (_used(family) - before) / (time.monotonic() - start) * 1000
    finally:
        _end(up)


def _used(family: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in family)


def _write(root: Path, id: str, path: Path) -> None:
    path.write_text(f'{{"id": "{id}", "type": "bench.event", "payload": {{"text": "{"x" * 300}"}}}}')


def _await(root: Path, id: str, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (root / f"queue/events/completed/{id}.json").exists():
            return True
        time.sleep(0.01)
    return False


def _begun(root: Path) -> dict[str, int]:
    """Return when the soldier of each event began."""
    with Home.open(root) as home:
        bodies = [entry.message.body for entry in home.queue("tasks").entries(State.DONE) if entry.message]
    found = {}
    for body in bodies:
        assert isinstance(body, dict)
        found[body["event_id"]] = int((root / f"state/results/{body['id']}-raw.json.at").read_text())
    return found


def _end(up: "subprocess.Popen[bytes]") -> None:
    up.send_signal(signal.SIGTERM)
    up.wait(60)
