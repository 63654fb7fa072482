"""A command with a store of its own, and a team at a table, for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apps.ignite.conftest import clock, kind, lay
from tests.cli.command import Pabal

__all__ = ["clock", "kind", "lay", "pabal"]


@pytest.fixture
def pabal(tmp_path: Path) -> Iterator[Pabal]:
    command = Pabal(f"sqlite:{tmp_path / 'store.db'}", tmp_path)
    yield command
    command.end()
