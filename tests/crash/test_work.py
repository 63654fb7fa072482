"""`pabal work` in four processes: they and their parent are killed -9 at random, replaced and reloaded in between.

Nothing is lost, nothing comes back after its ack or is acknowledged twice; and a stop counts no attempt.
"""

import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

import pabal
from pabal import Queue, State
from tests.cli.command import children, working
from tests.crash.harness import SOAK
from tests.services.postgres import PostgresServer
from tests.waiting import until

STORES = ("sqlite", "file", "hybrid") if SOAK else ("sqlite", "file")
MESSAGES = 10_000 if SOAK else 600
PATIENCE = 600.0  # seconds: only a failing test waits for so long
FOUR = ("--processes", "4", "--concurrency", "2")
KINDS = ("typed", "async", "else")

# Each process writes down when it begins a message and when an ack has returned, on the clock of the machine.
JOBS = """
import asyncio, os, time, msgspec, pabal
from pabal.queues.queue import Queue

class Job(msgspec.Struct):
    n: int

app = pabal.App("{url}")
notes = os.open(f"notes-{{os.getpid()}}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

def note(what, *ns):
    os.write(notes, "".join(f"{{what}} {{n}} {{time.clock_gettime_ns(time.CLOCK_BOOTTIME)}}\\n" for n in ns).encode())

ack_many = Queue.ack_many

def noted_ack(queue, deliveries):
    try:
        ack_many(queue, deliveries)
    finally:
        note("acked", *(each.message.id for each in deliveries if each.settled))

Queue.ack_many = noted_ack

@app.on("jobs", type="typed", body=Job, concurrency=2)
def typed(job):
    note("began", f"m-{{job.n}}")
    time.sleep(0.05)

@app.on("jobs", type="async")
async def later(delivery):
    note("began", delivery.message.id)
    await asyncio.sleep(0.05)

@app.on("jobs")
def other(delivery):
    note("began", delivery.message.id)
"""


def fill(queue: Queue) -> None:
    bodies = [{"n": n} if n % 3 == 0 else n for n in range(MESSAGES)]
    queue.publish_many([queue.draft(body, type=KINDS[n % 3], id=f"m-{n}") for n, body in enumerate(bodies)])


def waiting(queue: Queue) -> int:
    counts = queue.counts()
    assert counts[State.DEAD] == counts[State.CORRUPT] == 0, counts
    return sum(counts[state] for state in (State.READY, State.DELAYED, State.INFLIGHT))


def check_storm(url: str, place: Path, seed: int) -> None:
    (place / "jobs.py").write_text(JOBS.format(url=url))
    chance, did = random.Random(seed), Counter[str]()
    with pabal.connect(url) as mq:
        queue = mq.queue("jobs")
        queue.update_policy(visibility=2.0, retry=pabal.RetryPolicy(limit=1000, initial=0.0))
        fill(queue)
        while left := waiting(queue):
            with working(place, *FOUR, "--reload") as process:
                # However slow the machine is, each round handles some messages.
                goal = max(0, left - chance.randrange(MESSAGES // 20))
                until(lambda goal=goal: waiting(queue) <= goal, PATIENCE)  # type: ignore[misc]
                for _ in range(chance.randrange(2, 8)):
                    time.sleep(chance.uniform(0.05, 0.4))
                    step = chance.choice(("kill", "kill", "replace", "reload", "nothing"))
                    did[step] += 1
                    if step == "replace":
                        process.send_signal(signal.SIGHUP)
                    elif step == "reload":
                        os.utime(place / "jobs.py")
                    elif step == "kill" and (pids := children(process)):
                        with suppress(ProcessLookupError):  # it was just replaced
                            os.kill(chance.choice(pids), signal.SIGKILL)
                    if not waiting(queue):
                        break
            did["parent killed"] += 1
    check_notes(place)
    sys.stdout.write(f"{url.partition(':')[0]}: {MESSAGES} messages, {dict(did)}\n")


def check_notes(place: Path) -> None:
    """Every message was handled; none was acknowledged twice, and none began after its ack."""
    began, acked = dict[str, int](), dict[str, list[int]]()
    for file in place.glob("notes-*"):
        for line in file.read_text().splitlines():
            what, id, at = line.split()
            if what == "began":
                began[id] = max(began.get(id, 0), int(at))
            else:
                acked.setdefault(id, []).append(int(at))
    assert set(began) == {f"m-{n}" for n in range(MESSAGES)}
    assert [id for id, times in acked.items() if len(times) > 1] == []
    assert [id for id, times in acked.items() if began[id] > times[0]] == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", STORES)
def test_nothing_is_lost_or_acknowledged_twice_under_kills(store: str, tmp_path: Path) -> None:
    check_storm(f"{store}:{tmp_path}/store", tmp_path, len(store))


@pytest.mark.timeout(900)
def test_nothing_is_lost_or_acknowledged_twice_on_a_server(
    postgres: PostgresServer, schema: str, tmp_path: Path
) -> None:
    check_storm(f"{postgres.url}?schema={schema}", tmp_path, 1)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", STORES)
def test_a_stop_in_the_middle_counts_no_attempt(store: str, tmp_path: Path) -> None:
    url, chance = f"{store}:{tmp_path}/store", random.Random(store)
    (tmp_path / "jobs.py").write_text(JOBS.format(url=url))
    with pabal.connect(url) as mq:
        queue = mq.queue("jobs")
        queue.update_policy(visibility=600.0)  # nothing comes back because a lease ended
        fill(queue)
        while left := waiting(queue):
            with working(tmp_path, *FOUR) as process:
                until(lambda left=left: waiting(queue) < left, PATIENCE)  # type: ignore[misc]
                time.sleep(chance.uniform(0, 0.3))
                process.send_signal(chance.choice((signal.SIGTERM, signal.SIGINT)))
                assert process.wait(PATIENCE) == 0
            assert queue.counts()[State.INFLIGHT] == 0
            assert {entry.attempt for entry in queue.entries(State.READY)} <= {0}
        assert mq.store.counters("jobs").retried == 0
    check_notes(tmp_path)
