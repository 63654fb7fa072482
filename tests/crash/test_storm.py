"""Processes killed at random moments under load, and one that sleeps through its lease: nothing lost, nobody fooled."""

import os
import random
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

from pabal.clock import SystemClock
from pabal.testing.store_place import Child, ack, publish, retry, take_one
from tests.crash.crew import Crew
from tests.crash.harness import SOAK, judge
from tests.openers import OPENERS

KILLS = 500 if SOAK else 30
SLEEPS = 50 if SOAK else 3


@pytest.mark.parametrize("store", OPENERS)
def test_random_kills_under_load_harm_nothing(store: str, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    place = tmp_path / "place"
    place.mkdir()
    crew = Crew(store, place, tmp_path, seed=seed)
    try:
        crew.start(["publish", "publish", "consume", "consume", "consume"])
        crew.wait_until_busy()
        for _ in range(KILLS):
            crew.work(0.02, 0.3)
            crew.kill_one()
    finally:
        crew.kill_all()
    assert crew.failures() == [], f"seed {seed}"
    report = judge(store, tmp_path)
    assert report.harm == {}, f"seed {seed}"
    assert report.published > 5 * KILLS and report.acked > KILLS


@pytest.mark.parametrize("store", OPENERS)
def test_g5_who_sleeps_through_its_lease_is_told(store: str, tmp_path: Path) -> None:
    with closing(OPENERS[store].open(tmp_path, SystemClock())) as mine:
        for n in range(SLEEPS):
            publish(mine, n)

            def sleep_on_it() -> str:
                with closing(OPENERS[store].open(tmp_path, SystemClock())) as theirs:
                    lease = take_one(theirs, seconds=0.05)
                    os.kill(os.getpid(), signal.SIGSTOP)
                    return ack(theirs, lease).name

            child = Child(sleep_on_it)
            os.waitpid(child.pid, os.WUNTRACED)
            time.sleep(0.06)
            (over,) = mine.expired("jobs", 10)
            retry(mine, over)
            again = take_one(mine)
            os.kill(child.pid, signal.SIGCONT)
            assert child.result() == "LOST"
            assert ack(mine, again).name == "APPLIED"
