"""Teams that are taken down after each test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pabal.testing import ManualClock
from tests.ignite.table import Table

Lay = Callable[..., Table]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def lay(tmp_path: Path) -> Iterator[Lay]:
    """Return what makes a table, by the text of its team file."""
    made: list[Table] = []

    def lay(*arguments: Any, **more: Any) -> Table:
        made.append(Table(tmp_path, *arguments, **more))
        return made[-1]

    yield lay
    for table in made:
        table.close()
