"""Processes killed at random moments under load, and one that sleeps through its lease: nothing lost, nobody fooled."""

import random
from pathlib import Path

import pytest

from pabal.clock import SystemClock
from tests.crash.crew import Crew
from tests.crash.harness import SOAK, judge
from tests.crash.sleepers import check_sleepers
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
    check_sleepers(lambda: OPENERS[store].open(tmp_path, SystemClock()), SLEEPS)
