"""A command with a store of its own, for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import Pabal


@pytest.fixture
def pabal(tmp_path: Path) -> Iterator[Pabal]:
    command = Pabal(f"sqlite:{tmp_path / 'store.db'}", tmp_path)
    yield command
    command.end()


@pytest.fixture(params=["sqlite", "file", "hybrid"])
def any_pabal(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pabal]:
    command = Pabal(f"{request.param}:{tmp_path / 'store'}", tmp_path)
    yield command
    command.end()
