"""A place has one holder, which the kernel forgets with its process."""

import os
from pathlib import Path

import pytest

from pabal.errors import AlreadyRunning
from pabal.runtime.role_lock import RoleLock, holder
from pabal.testing.store_place import Child


def test_the_second_is_told_who_holds_the_place(tmp_path: Path) -> None:
    path = tmp_path / "state" / "lock"
    assert holder(path) is None
    lock = RoleLock(path, 0.0, "taken", advice="go away")
    assert holder(path) == os.getpid()
    with pytest.raises(AlreadyRunning, match=f"taken: pid {os.getpid()} since 1970-01-01T00:00:00Z; go away"):
        RoleLock(path, 0.0, "taken", advice="go away")
    lock.close()
    assert holder(path) is None


def test_a_place_is_free_when_its_holder_has_died(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert Child(lambda: bool(RoleLock(path, 0.0, "taken"))).result()
    assert holder(path) is None
    RoleLock(path, 0.0, "taken").close()
