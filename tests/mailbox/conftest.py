"""A mailbox over each store, stepped by hand under a clock moved by hand, or served by a thread."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pabal.clock import SystemClock
from pabal.testing import ManualClock
from tests.mailbox.room import Room
from tests.openers import OPENERS


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def room(tmp_path: Path, clock: ManualClock) -> Iterator[Room]:
    made = Room(tmp_path / "ipc", OPENERS["sqlite"].open(tmp_path, clock), clock=clock)
    yield made
    made.close()


@pytest.fixture
def strict(tmp_path: Path, clock: ManualClock) -> Iterator[Room]:
    """Return a room whose configuration names its queues."""
    store = OPENERS["sqlite"].open(tmp_path, clock)
    made = Room(tmp_path / "ipc", store, clock=clock, queues=frozenset({"jobs"}))
    yield made
    made.close()


@pytest.fixture(params=OPENERS)
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path / "ipc", OPENERS[request.param].open(tmp_path, SystemClock())).serve()
    yield made
    made.close()
