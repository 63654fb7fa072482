"""What several tests of stores use. `store` is the file store; modules about another store have their own."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pabal.stores.files import FileStore
from pabal.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def store(root: Path, clock: ManualClock) -> Iterator[FileStore]:
    with closing(FileStore(root, clock=clock)) as store:
        yield store


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every directory that is listed from here on."""
    found: list[str] = []
    whole = os.listdir

    def listdir(path: str) -> list[str]:
        found.append(path)
        return whole(path)

    monkeypatch.setattr(os, "listdir", listdir)
    return found
