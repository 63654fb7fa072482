"""Somewhere to send to, and GitHub."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apps.ignite.watchers.github_server import GithubServer
from tests.apps.ignite.watchers.post import Post


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(tmp_path)


@pytest.fixture
def github() -> Iterator[GithubServer]:
    server = GithubServer()
    yield server
    server.close()
