"""A power cut at any moment: nothing acknowledged is lost. Without the directory's fsync the same test finds losses."""

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pabal.clock import SystemClock
from pabal.testing.history import History, Report
from tests.crash.conftest import need
from tests.crash.crew import Crew
from tests.crash.harness import SOAK, judge
from tests.crash.power import SBIN, Disk
from tests.openers import OPENERS

CUTS = 100 if SOAK else 8


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    need("root and mkfs.ext4 for power cuts", os.geteuid() == 0 and shutil.which("mkfs.ext4", path=SBIN) is not None)
    disk = Disk(tmp_path)
    yield disk
    disk.unmount()


def cut_and_judge(store: str, disk: Disk, folder: Path, *, seed: int, fault: str = "") -> Report:
    """Let a crew work, cut the power at a random moment, bring it back, and check what was promised."""
    place, histories = disk.mount_point / folder.name, folder / "histories"
    place.mkdir()
    histories.mkdir(parents=True)
    crew = Crew(store, place, histories, seed=seed, fault=fault)
    try:
        crew.start(["publish", "publish", "consume"])
        crew.wait_until_busy()
        crew.work(0.05, 0.4)
        began = SystemClock().boot()
        disk.cut()
        History(histories / "power.jsonl", clock=SystemClock(), seed=seed).note("cut")
    finally:
        crew.kill_all()
    forget_answers(histories, began)
    disk.unmount()
    disk.mount()
    report = judge(store, histories, place)
    if not report.harm:
        shutil.rmtree(place)  # the disk has room for twenty
    return report


def forget_answers(histories: Path, began: float) -> None:
    """Take no answer for a promise that was given while the power was going.

    A process lives on after this cut, as it would not after a real one, and an fsync that it waits for may then answer
    "done" though the journal was given up: the kernel finds nothing left to wait for.
    """
    for path in histories.glob("*.jsonl"):
        events = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        for event in events:
            if event["phase"] == "ok" and event["op"] != "cut" and event["t"] >= began:
                event["phase"] = "info"
        path.write_text("".join(f"{json.dumps(event)}\n" for event in events))


@pytest.mark.root
@pytest.mark.parametrize("store", OPENERS)
def test_g1_a_power_cut_loses_nothing_that_was_acknowledged(store: str, disk: Disk, tmp_path: Path) -> None:
    first = random.randrange(10**6)
    published = 0
    for seed in range(first, first + CUTS):
        report = cut_and_judge(store, disk, tmp_path / f"cut-{seed}", seed=seed)
        assert report.harm == {}, f"seed {seed}"
        published += report.published
    assert published > 10 * CUTS


# Of the hybrid's bodies ext4 writes the names together with the commit that names them: only the missing flush of the
# files themselves can be seen here.
@pytest.mark.root
@pytest.mark.parametrize(
    ("store", "fault"), [("files", "no-dir-sync"), ("sqlite", "sqlite-normal"), ("hybrid", "no-body-sync")]
)
def test_the_same_cuts_find_what_a_careless_store_loses(store: str, fault: str, disk: Disk, tmp_path: Path) -> None:
    first = random.randrange(10**6)
    for seed in range(first, first + 20):
        try:
            if "lost" in cut_and_judge(store, disk, tmp_path / f"cut-{seed}", seed=seed, fault=fault).harm:
                return
        except AssertionError as exc:
            assert str(exc).startswith(("damaged: ", "no message: ")), exc
            return
    pytest.fail(f"20 cuts from seed {first} on found no loss though {fault}")
