"""A coordinator for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apps.ignite.coordinator.office import Office


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    office = Office(tmp_path)
    yield office
    office.close()
