"""A kingdom for each test, on both kinds of queues."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pabal.clock import SystemClock
from pabal.testing import ManualClock
from tests.kingdom.realm import URLS, Realm


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=list(URLS))
def realm(tmp_path: Path, clock: ManualClock, request: pytest.FixtureRequest) -> Iterator[Realm]:
    """A kingdom whose time stands still."""
    found = Realm(tmp_path / "home", request.param, clock)
    yield found
    found.close()


@pytest.fixture(params=list(URLS))
def living(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Realm]:
    """A kingdom in real time, for processes."""
    found = Realm(tmp_path / "home", request.param, SystemClock())
    yield found
    found.close()
