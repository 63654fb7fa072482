"""A power cut at any moment: nothing acknowledged is lost. Without the directory's fsync the same test finds losses."""

import json
import os
import random
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pabal.clock import SystemClock
from pabal.connect import connect
from pabal.store import Checkable, State
from pabal.testing.history import History, Report, body_hash, read_history
from tests.crash.conftest import need
from tests.crash.crew import Crew
from tests.crash.harness import SHARE, SOAK, judge
from tests.crash.power import SBIN, Disk
from tests.openers import OPENERS

CUTS = {kind: round(100 * SHARE) if SOAK else few for kind, few in (("ext4", 8), ("xfs", 2), ("btrfs", 2))}


@pytest.fixture
def kind() -> str:
    return "ext4"


@pytest.fixture
def disk(tmp_path: Path, kind: str) -> Iterator[Disk]:
    make = f"mkfs.{kind}"
    need(f"root and {make} for power cuts", os.geteuid() == 0 and shutil.which(make, path=SBIN) is not None)
    need(f"a kernel with {kind} for power cuts", f"\t{kind}\n" in Path("/proc/filesystems").read_text())
    disk = Disk(tmp_path, kind=kind)
    yield disk
    disk.close()


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
@pytest.mark.parametrize("kind", CUTS)
def test_g1_a_power_cut_loses_nothing_that_was_acknowledged(store: str, kind: str, disk: Disk, tmp_path: Path) -> None:
    first = random.randrange(10**6)
    published = 0
    for seed in range(first, first + CUTS[kind]):
        report = cut_and_judge(store, disk, tmp_path / f"cut-{seed}", seed=seed)
        assert report.harm == {}, f"seed {seed}"
        published += report.published
    assert published > 10 * CUTS[kind]
    print(f"{store} on {kind}: {CUTS[kind]} power cuts, {published} acknowledged, none lost")  # noqa: T201  for a soak


# Of the hybrid's bodies ext4 writes the names together with the commit that names them: only the missing flush of the
# files themselves can be seen here.
@pytest.mark.root
@pytest.mark.parametrize(
    ("store", "fault"), [("files", "no-dir-sync"), ("sqlite", "sqlite-normal"), ("hybrid", "no-body-sync")]
)
@pytest.mark.parametrize("kind", CUTS if SOAK else ["ext4"])
def test_the_same_cuts_find_what_a_careless_store_loses(store: str, fault: str, disk: Disk, tmp_path: Path) -> None:
    first = random.randrange(10**6)
    for seed in range(first, first + 20):
        try:
            lost = "lost" in cut_and_judge(store, disk, tmp_path / f"cut-{seed}", seed=seed, fault=fault).harm
        except AssertionError as exc:
            lost = str(exc).startswith(("damaged: ", "no message: "))
            assert lost, exc
        if lost:
            print(f"{store}, {fault}: cut {seed - first + 1} found a loss")  # noqa: T201  for a soak
            return
    pytest.fail(f"20 cuts from seed {first} on found no loss though {fault}")


URLS = {"files": "file:spool", "sqlite": "sqlite:pabal.db", "hybrid": "hybrid:hybrid"}


def pabal(place: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start a command in a folder."""
    command = [sys.executable, "-c", "from pabal.cli.main import main; main()", *arguments]
    return subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process: "subprocess.Popen[str]") -> str:
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out
    return out


def stored(url: str) -> dict[str, str]:
    """Return the state and, of what waits, the hash of the body of every message of a store, by id."""
    with connect(url, create=False) as mq:
        assert isinstance(mq.store, Checkable)
        assert [finding for finding in mq.store.check(repair=False) if not finding.ordinary] == []
        entries = [entry for name in mq.queues() for state in State for entry in mq.queue(name).entries(state)]
    return {entry.id: body_hash(entry.message.body) if entry.message else "" for entry in entries}


@pytest.mark.root
@pytest.mark.parametrize("store", URLS)
def test_a_backup_under_load_outlives_a_power_cut_with_every_message_published_before(
    store: str, disk: Disk, tmp_path: Path
) -> None:
    """From cron: on the second day the power fails while the backup is made, or after it."""
    first = random.randrange(10**6)
    for seed in range(first, first + (20 if SOAK else 2)):
        place, histories = disk.mount_point / f"cut-{seed}", tmp_path / f"histories-{seed}"
        place.mkdir()
        histories.mkdir()
        backup = ["--url", URLS[store], "backup", "nightly.tar"]
        crew = Crew(store, place, histories, seed=seed)
        try:
            crew.start(["publish", "publish", "consume"])
            crew.wait_until_busy()
            crew.work(0.2, 0.4)
            began = SystemClock().boot()
            ended(pabal(place, *backup, "--verify"))
            second = SystemClock().boot()
            tonight = pabal(place, *backup)
            if seed % 2:
                ended(tonight)
                began = second
            else:
                crew.work(0.2, 1.0)
            disk.cut()
        finally:
            crew.kill_all()
        tonight.communicate()
        disk.unmount()
        disk.mount()
        kept = place / "nightly.tar"
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        lost = place / "lost"
        lost.mkdir()
        for path in place.iterdir():  # the store, as an operator moves it away
            if path not in (kept, lost):
                path.rename(lost / path.name)
        ended(pabal(place, "--url", URLS[store], "restore", "nightly.tar"))
        scheme, _, name = URLS[store].partition(":")
        found = stored(f"{scheme}:{place / name}")
        before = [
            event
            for event in read_history(histories.glob("*.jsonl"))
            if event.op == "publish" and event.phase == "ok" and event.t < began
        ]
        hashes = {event.id: event.body_hash for event in read_history(histories.glob("*.jsonl")) if event.body_hash}
        assert len(before) > 10 and not [event.id for event in before if event.id not in found], f"seed {seed}"
        wrong = [id for id, hash in found.items() if hash and hash != hashes[id]]
        assert not wrong, f"seed {seed}"
        ended(pabal(place, *backup))  # the third day
        assert not [path for path in place.iterdir() if path.name.startswith(".")]
        shutil.rmtree(place)
