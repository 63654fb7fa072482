"""What several tests of stores watch."""

import os

import pytest


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
