"""Processes killed at random moments under load, and one that sleeps through its lease: nothing lost, nobody fooled."""

import random
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from pabal.clock import SystemClock
from pabal.testing.history import Report
from tests.crash.crew import Crew
from tests.crash.harness import SHARE, SOAK, judge
from tests.crash.sleepers import check_sleepers
from tests.openers import OPENERS

KILLS = 500 if SOAK else 30
SLEEPS = 50 if SOAK else 3
MESSAGES = 1_000_000 * SHARE if SOAK else 1_000
ROUND_KILLS = 30 if SOAK else 4  # a round has a store of its own


def storm(
    store: str, folder: Path, roles: Sequence[str], *, seed: int, kills: int, pause: tuple[float, float]
) -> Report:
    """Let processes work at one store, kill one after each pause, and check what was promised."""
    place = folder / "place"
    place.mkdir(parents=True)
    crew = Crew(store, place, folder, seed=seed)
    try:
        crew.start(roles)
        crew.wait_until_busy()
        for _ in range(kills):
            crew.work(*pause)
            crew.kill_one()
    finally:
        crew.kill_all()
    assert crew.failures() == [], f"seed {seed}"
    report = judge(store, folder)
    assert report.harm == {}, f"seed {seed}"
    return report


@pytest.mark.parametrize("store", OPENERS)
def test_random_kills_under_load_harm_nothing(store: str, tmp_path: Path) -> None:
    roles = ("publish", "publish", "consume", "consume", "consume")
    report = storm(store, tmp_path, roles, seed=random.randrange(10**6), kills=KILLS, pause=(0.02, 0.3))
    assert report.published > 5 * KILLS and report.acked > KILLS


@pytest.mark.timeout(7200 if SOAK else 300)
@pytest.mark.parametrize("store", OPENERS)
def test_of_very_many_messages_none_is_lost_or_comes_back(store: str, tmp_path: Path) -> None:
    roles = ("publish_many", "publish", "consume_many", "consume_many", "consume")
    first, total = random.randrange(10**6), Counter[str]()
    while total["acknowledged"] < MESSAGES:
        number, folder = total["rounds"], tmp_path / f"round-{total['rounds']}"
        report = storm(store, folder, roles, seed=first + number, kills=ROUND_KILLS, pause=(0.3, 0.9))
        total += Counter(rounds=1, acknowledged=report.published, acked=report.acked, again=report.duplicate)
        shutil.rmtree(folder)
    kills = total["rounds"] * ROUND_KILLS
    print(f"{store}: {kills} kills, {dict(total)}, no harm")  # noqa: T201  the figures are the point of a soak


@pytest.mark.parametrize("store", OPENERS)
def test_g5_who_sleeps_through_its_lease_is_told(store: str, tmp_path: Path) -> None:
    check_sleepers(lambda: OPENERS[store].open(tmp_path, SystemClock()), SLEEPS)
