"""`pabal backup`, `restore` and `takeover` killed where they change something: what is there is the old or the new."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pabal.connect import connect
from pabal.errors import StoreMissing, StoreRefused
from pabal.policy.policy import Policy
from pabal.store import State
from tests.crash.harness import SOAK, Commands, Point, scratch
from tests.stores.original_trees import FileTree, HybridTree, snapshot

STORES = ["sqlite", "file", "hybrid"]


def fill(url: str, *numbers: int) -> None:
    """Publish messages, the first of which dies."""
    with connect(url) as mq:
        jobs = mq.queue("jobs")
        jobs.configure(Policy(max_bytes=7000))
        jobs.publish_many(list(numbers))
        for delivery in jobs.lease():
            delivery.bury("broken")


def survey(url: str) -> dict[str, Any]:
    """Return what a store holds; an empty table if there is none. Raise StoreRefused where a restore has not ended."""
    with suppress(StoreMissing), connect(url, create=False) as mq:
        jobs = mq.queue("jobs")
        found = {
            str(state): sorted(str(entry.message.body) for entry in jobs.entries(state) if entry.message)
            for state in State
        }
        return {**found, "maxBytes": jobs.policy.max_bytes, "findings": mq.store.check(repair=False)}  # type: ignore[attr-defined]
    return {}


def copies(template: Path, points: list[Point], step: int) -> Iterator[tuple[Path, Point]]:
    """Yield each point where a name changes, and of the others some, with a copy of the template of its own."""
    for point in [point for n, point in enumerate(points) if SOAK or "rename" in point.call or n % step == 0]:
        with scratch() as folder:
            yield Path(shutil.copytree(template, Path(folder, "place"), symlinks=True)), point


@pytest.mark.parametrize("scheme", STORES)
def test_a_restore_killed_at_any_call_leaves_no_store_or_the_whole_one(commands: Commands, scheme: str) -> None:
    argv = ("--url", f"{scheme}:new", "restore", "copy.tar")
    with scratch() as folder:
        template = Path(folder, "template")
        template.mkdir()
        fill(f"{scheme}:{template}/store", 1, 2, 3)
        assert commands.run(template, "--url", f"{scheme}:store", "backup", "copy.tar") == 0
        whole = survey(f"{scheme}:{template}/store")
        assert whole["dead"] and not whole["findings"]
        with scratch() as other:
            points = commands.points(Path(shutil.copytree(template, Path(other, "place"))), *argv)
        refused = 0
        for place, point in copies(template, points, 3):
            url = f"{scheme}:{place}/new"
            assert commands.kill(place, point, *argv), f"never came to {point.told}"
            try:
                found = survey(url)
                assert found in ({}, whole), point.told
            except StoreRefused as exc:
                # Nobody may make a new store of the parts.
                refused += 1
                assert "repeat `pabal restore`" in str(exc), point.told
                with pytest.raises(StoreRefused):
                    connect(url)
                found = {}
            assert commands.run(place, *argv) == (6 if found else 0), point.told
            assert survey(url) == whole, point.told
            assert not list(place.rglob("*.restore")), point.told
        assert (refused > 0) == (scheme == "hybrid"), "the only store that appears in two steps"


@pytest.mark.parametrize("scheme", STORES)
def test_a_backup_killed_at_any_call_leaves_the_old_or_the_new_one(commands: Commands, scheme: str) -> None:
    argv = ("--url", f"{scheme}:store", "backup", "copy.tar")
    with scratch() as folder:
        template = Path(folder, "template")
        template.mkdir()
        fill(f"{scheme}:{template}/store", 1)
        assert commands.run(template, *argv) == 0
        old = survey(f"{scheme}:{template}/store")
        fill(f"{scheme}:{template}/store", 2, 3)
        whole = survey(f"{scheme}:{template}/store")
        with scratch() as other:
            points = commands.points(Path(shutil.copytree(template, Path(other, "place"))), *argv)
        for place, point in copies(template, points, 1 + len(points) // 12):
            commands.kill(place, point, *argv)
            assert survey(f"{scheme}:{place}/store") == whole, point.told
            assert commands.run(place, "--url", f"{scheme}:kept", "restore", "copy.tar") == 0
            assert survey(f"{scheme}:{place}/kept") in (old, whole), point.told
            assert commands.run(place, *argv) == 0
            assert commands.run(place, "--url", f"{scheme}:new", "restore", "copy.tar") == 0
            assert survey(f"{scheme}:{place}/new") == whole, point.told
            assert not [path.name for path in place.iterdir() if "tmp" in path.name], point.told


@pytest.mark.parametrize("scheme", STORES)
@pytest.mark.parametrize("source", ["files", "hybrid"])
def test_a_takeover_killed_at_any_call_leaves_no_store_or_the_whole_one(
    commands: Commands, scheme: str, source: str
) -> None:
    argv = ("--url", f"{scheme}:new", "takeover", "data/fs" if source == "files" else "data/yirangmq.db")
    with scratch() as folder:
        template = Path(folder, "template")
        template.mkdir()
        hybrid, tree = HybridTree(template / "data"), FileTree(template / "data" / "fs")
        for number in range(3):
            tree.message("inbox", f"ready-{number}", queue="jobs", payload=str(number))
            tree.message("dlq", f"dead-{number}", queue="jobs", payload=str(number))
            hybrid.message(f"ready-{number}", queue="jobs")
            hybrid.message(f"dead-{number}", "dlq", "dlq", queue="jobs")
        hybrid.seed.db.close()
        with scratch() as other:
            place = Path(shutil.copytree(template, Path(other, "place")))
            points = commands.points(place, *argv)
            whole = survey(f"{scheme}:{place}/new")
        assert len(whole["ready"]) == len(whole["dead"]) == 3
        for place, point in copies(template, points, 1 + len(points) // 6):
            before = snapshot(place / "data")
            commands.kill(place, point, *argv)
            found: dict[str, Any] = {}
            with suppress(StoreRefused):
                found = survey(f"{scheme}:{place}/new")
                assert found in ({}, whole), point.told
            assert commands.run(place, *argv) == (6 if found else 0), point.told
            assert survey(f"{scheme}:{place}/new") == whole, point.told
            assert snapshot(place / "data") == before, point.told
            assert sorted(path.name for path in place.iterdir() if path.name.startswith((".", "data"))) == ["data"]
