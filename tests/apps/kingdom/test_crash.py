"""Events in while King and generals are killed at random: exactly one completed task for each, nothing told twice.

With PABAL_SOAK=1 a thousand events and a hundred kills.
"""

import os
import random
import signal
import subprocess
import time
from collections import Counter

import pytest

from pabal.apps.kingdom.documents import Event
from pabal.store import State
from tests.apps.kingdom.realm import Realm, eventually, everywhere
from tests.waiting import wait_until_caught

SOAK = os.environ.get("PABAL_SOAK") == "1"
EVENTS, KILLS, GENERALS = (1000, 100, 3) if SOAK else (30, 6, 2)
# A shell starts faster than Python: the test is about who is killed, not about who works.
SOLDIER = """\
printf '{"task_id": "x", "status": "success", "summary": "ok"}' > "$KINGDOM_RESULT_PATH.tmp"
mv "$KINGDOM_RESULT_PATH.tmp" "$KINGDOM_RESULT_PATH"
"""


@everywhere
@pytest.mark.timeout(3000 if SOAK else 300)
def test_every_event_makes_one_completed_task_whoever_is_killed(living: Realm) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    names = ["king", *(f"gen-{number}" for number in range(GENERALS))]
    for number, name in enumerate(names[1:]):
        living.general(name, subscribes=[f"work.{number}"], command=["/bin/sh", "-c", SOLDIER])
    living.king(concurrency={"max_soldiers": EVENTS}, retry={"backoff_seconds": 0.1})
    living.system(lease_seconds=5)
    roles = {name: living.start("role", name) for name in names}
    living.home.emit([Event(id=f"evt-{n}", type=f"work.{n % GENERALS}") for n in range(EVENTS)])

    def done() -> int:
        return living.home.queue("tasks").counts()[State.DONE]

    def revive() -> None:
        for name, process in roles.items():
            if process.poll() is not None:
                roles[name] = living.start("role", name)

    for _ in range(KILLS):
        time.sleep(chance.uniform(0.05, 0.8))
        victim = chance.choice(names)
        roles[victim].kill()
        roles[victim].wait()
        revive()
    end = time.monotonic() + (2400 if SOAK else 200)
    while len(living.completed()) < EVENTS:
        assert time.monotonic() < end, (seed, done(), living.home.queue("events").counts(), living.log[-3000:])
        revive()
        time.sleep(0.2)
    for process in roles.values():
        wait_until_caught(process.pid, signal.SIGTERM)
        process.terminate()
    assert all(process.wait(60) == 0 for process in roles.values()), (seed, living.log[-3000:])
    check(living, seed)


def check(living: Realm, seed: int) -> None:
    tasks = living.tasks(State.DONE)
    assert Counter(task["event_id"] for task in tasks) == {f"evt-{n}": 1 for n in range(EVENTS)}, seed
    assert len({task["id"] for task in tasks}) == EVENTS
    assert all(not living.tasks(state) for state in (State.READY, State.DELAYED, State.INFLIGHT, State.DEAD))
    told = Counter((notice["type"], notice["task_id"]) for notice in living.notices())
    assert told == {(kind, task["id"]): 1 for task in tasks for kind in ("thread_start", "notification")}, seed
    assert living.completed().keys() == {f"evt-{n}" for n in range(EVENTS)}
    assert living.home.queue("events").counts() == dict.fromkeys(State, 0)


@everywhere
def test_a_kingdom_that_is_up_restarts_what_dies_and_follows_its_manifests(living: Realm) -> None:
    living.system(roles=["king"], lease_seconds=5)
    living.general()
    up = living.start("up")
    eventually(lambda: pids(living) == {"king", "gen-pr"}, lambda: living.log)
    for name in ("king", "gen-pr"):
        os.kill(pid_of(living, name), 9)
    living.event()
    eventually(lambda: "evt-1" in living.completed(), lambda: living.log)
    living.general("gen-new", subscribes=["new.*"])
    living.event("evt-2", "new.x")
    eventually(lambda: "evt-2" in living.completed(), lambda: living.log)
    (living.root / "config/generals/gen-new.yaml").unlink()
    eventually(lambda: "gen-new" not in pids(living), lambda: living.log)
    again = living.start("up")
    assert again.wait(30) == 6 and "is up already" in living.log
    assert living.start("down").wait(30) == 0
    assert up.wait(30) == 0 and pids(living) == set()


def pids(living: Realm) -> set[str]:
    from pabal.apps.kingdom.status import report
    from pabal.runtime.heartbeat import read_pulse

    folders = [path for path in (living.root / "state").iterdir() if (path / "heartbeat").exists()]
    assert report(living.home)
    return {path.name for path in folders if read_pulse(path / "heartbeat", living.clock).state == "ok"}


def pid_of(living: Realm, name: str) -> int:
    from pabal.runtime.heartbeat import read_pulse

    beat = read_pulse(living.root / "state" / name / "heartbeat", living.clock).beat
    assert beat is not None
    return beat.pid


def test_an_event_that_a_shell_moves_in_goes_all_the_way(tmp_path: os.PathLike[str]) -> None:
    from pathlib import Path

    from pabal.clock import SystemClock

    living = Realm(Path(tmp_path) / "home", "", SystemClock())
    try:
        living.general()
        king, general = living.start("role", "king"), living.start("role", "gen-pr")
        moved_in = """printf '{"id": "evt-sh", "type": "github.pr.assigned"}' > draft
            mv draft queue/events/pending/whatever-it-is.json"""
        subprocess.run(["sh", "-c", moved_in], cwd=living.root, check=True)
        eventually(lambda: "evt-sh" in living.completed(), lambda: living.log)
        for process in (king, general):
            process.terminate()
            assert process.wait(30) == 0
        [start, outcome] = sorted((living.root / "queue/messages/pending").glob("msg-*.json"))
        assert "thread_start" in start.read_text() and "✅" in outcome.read_text()
        assert os.listdir(living.root / "queue/events/dispatched") == []
        assert '"status": "completed"' in (living.root / "queue/events/completed/evt-sh.json").read_text()
    finally:
        living.close()
