"""G9: on a full disk publish says so and writes nothing, and everything taken in can still be worked off."""

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path

import pytest

from pabal.connect import back_up, connect, restore
from pabal.errors import StoreFull
from pabal.testing.history import History, check_history, read_history
from tests.crash.conftest import need
from tests.crash.harness import one_state_each
from tests.crash.power import SBIN, Disk
from tests.crash.recorder import AheadClock, Recorder, draft
from tests.openers import OPENERS

LEFT_BYTES = 4 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Disk]:
    need("root and mkfs.ext4 for a small disk", os.geteuid() == 0 and shutil.which("mkfs.ext4", path=SBIN) is not None)
    disk = Disk(tmp_path, megabytes=40)
    yield disk
    disk.close()


@pytest.mark.root
@pytest.mark.parametrize("store", OPENERS)
def test_g9_a_full_disk_takes_nothing_in_and_lets_everything_out(store: str, small_disk: Disk, tmp_path: Path) -> None:
    clock = AheadClock()
    place = small_disk.mount_point / "place"
    place.mkdir()
    with closing(OPENERS[store].open(place, clock)) as opened:
        recorder = Recorder(opened, History(tmp_path / "full.jsonl", clock=clock), clock)
        published = fill(recorder, small_disk)
        assert published > 100
        with pytest.raises(StoreFull):
            recorder.publish(draft("one-more", size=3000))
        assert work_off(recorder) == published
        one_state_each(opened)
        recorder.drain()
    assert check_history(read_history([tmp_path / "full.jsonl"])).harm == {}


@pytest.mark.root
@pytest.mark.parametrize("scheme", ["sqlite", "file", "hybrid"])
def test_a_backup_that_finds_no_room_names_its_own_disk_and_leaves_the_last_one(
    scheme: str, small_disk: Disk, tmp_path: Path
) -> None:
    url, copy = f"{scheme}:{tmp_path / 'store'}", small_disk.mount_point / "copy.tar"
    with connect(url) as mq:
        mq.queue("jobs").publish(1)
        back_up(url, copy)
        first = copy.read_bytes()
        mq.queue("jobs").publish_many(["x" * 500_000] * 20)
    (small_disk.mount_point / "other").write_bytes(bytes(26 << 20))
    with pytest.raises(StoreFull, match="while writing .*copy.tar"):
        back_up(url, copy)
    assert copy.read_bytes() == first and sorted(os.listdir(small_disk.mount_point)) == [
        "copy.tar",
        "lost+found",
        "other",
    ]
    with pytest.raises(StoreFull):
        restore(f"{scheme}:{small_disk.mount_point / 'new'}", _elsewhere(url, tmp_path))
    assert sorted(os.listdir(small_disk.mount_point)) == ["copy.tar", "lost+found", "other"]


def _elsewhere(url: str, folder: Path) -> Path:
    back_up(url, folder / "large.tar")
    return folder / "large.tar"


def work_off(recorder: Recorder) -> int:
    """Lease and settle everything in every way; return how many of the first queue it was."""
    done = 0
    while leases := recorder.lease(20):
        for lease in leases:
            if done % 3 == 0:
                recorder.ack(lease)
            elif done % 3 == 1:
                recorder.ack(lease, draft(f"{lease.receipt.id}-next", queue="next"))
            else:
                recorder.bury(lease)
            done += 1
    while leases := recorder.lease(20, queue="next"):
        for lease in leases:
            recorder.ack(lease)
    return done


def fill(recorder: Recorder, disk: Disk) -> int:
    """Publish until the store has no room, while somebody else takes all the rest; return how many went in."""
    chance = random.Random(1)
    room = os.statvfs(disk.mount_point)
    with (disk.mount_point / "others").open("wb", buffering=0) as others:
        os.posix_fallocate(others.fileno(), 0, room.f_bavail * room.f_frsize - LEFT_BYTES)
        for published in count():
            try:
                recorder.publish(draft(f"m-{published}", size=chance.choice((10, 3000, 9000))))
            except StoreFull:
                break
        for size in (1 << 20, 1 << 12):
            with suppress(OSError):
                while True:
                    others.write(b"\xa5" * size)
    return published
