"""A file whose order was kept with it need not be read again by those who come later."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from pabal.apps.ignite.layout import IgniteLayout
from pabal.codecs.mime.fields import edited
from pabal.message import Message
from pabal.store import Draft, State
from pabal.stores.files import FileStore


@pytest.fixture(autouse=True)
def attributes(tmp_path: Path) -> None:
    try:
        os.setxattr(tmp_path, "user.pabal.test", b"1")
    except OSError:
        if os.environ.get("CI") == "true":
            pytest.fail("CI must have a file system with attributes")
        pytest.skip("needs a file system with attributes")


def publish(place: Path, *priorities: int) -> list[Path]:
    """Publish one message of each priority from a process that then ends; return their files."""
    store, paths = FileStore(place, layout=IgniteLayout()), []
    for number, priority in enumerate(priorities, 1):
        at = 1_770_000_000 + number + 1e-6
        message = Message(id=f"m{number}", body={"goal": "g"}, type="user_goal", sender="user", created_at=at)
        store.publish([Draft("q", msgspec.structs.replace(message, priority=priority), given_id=False)])
        paths.append(next(place.glob(f"queue/q/*{1_770_000_000 + number}*.mime")))
    store.close()
    return paths


def leased(place: Path) -> list[str]:
    """Lease all there is from a process that knows nothing yet."""
    store = FileStore(place, layout=IgniteLayout())
    found = []
    while leases := store.lease("q", 1, 60.0):
        found += [lease.receipt.id for lease in leases]
    store.close()
    return found


def test_what_waits_is_not_read_before_its_turn(tmp_path: Path) -> None:
    _, low, _ = publish(tmp_path, 3, 1, 6)
    about = low.stat()
    low.write_bytes(b"?" * about.st_size)  # nobody can read this, and nobody needs to yet
    os.utime(low, ns=(about.st_atime_ns, about.st_mtime_ns))
    store = FileStore(tmp_path, layout=IgniteLayout())
    assert [store.lease("q", 1, 60.0)[0].receipt.id for _ in range(2)] == ["m3", "m1"]
    assert low.exists() and store.counts("q")[State.CORRUPT] == 0
    assert store.lease("q", 1, 60.0) == [] and store.counts("q")[State.CORRUPT] == 1
    store.close()


def test_a_file_that_was_changed_is_read_again(tmp_path: Path) -> None:
    _, second = publish(tmp_path, 3, 3)
    second.write_bytes(edited(second.read_bytes(), {"X-IGNITE-Priority": "critical"}))
    assert leased(tmp_path) == ["m2", "m1"]


def test_a_copy_of_a_file_is_the_same_message_whichever_comes_first(tmp_path: Path) -> None:
    (path,) = publish(tmp_path, 3)
    shutil.copy2(path, path.with_name("a_copy.mime"))  # with its times and attributes
    assert leased(tmp_path) == ["m1"]
    store = FileStore(tmp_path, layout=IgniteLayout())
    assert store.counts("q")[State.DONE] == 1
    store.close()


def test_a_copy_that_comes_after_the_lease_is_the_same_message(tmp_path: Path) -> None:
    (path,) = publish(tmp_path, 3)
    data = path.read_bytes()
    assert leased(tmp_path) == ["m1"]
    (path.parent / "later.mime").write_bytes(data)
    assert leased(tmp_path) == []
