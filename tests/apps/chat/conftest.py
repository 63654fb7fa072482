"""Each test of the chat on two sets: embedded, all in SQLite files; servers, Kafka and PostgreSQL."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pabal.apps.chat.ledger import Ledger, open_ledger
from pabal.testing import ManualClock
from tests.apps.chat.place import Place

if TYPE_CHECKING:
    from tests.apps.chat.gateways import Site
    from tests.services.kafka import KafkaServer
    from tests.services.postgres import PostgresServer


@pytest.fixture(params=["embedded", "servers"])
def db_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of its own for each test."""
    if request.param == "embedded":
        yield f"sqlite:{tmp_path / 'chat.db'}"
        return
    postgres = request.getfixturevalue("postgres")
    with postgres.schema() as schema:
        yield f"{postgres.url}?schema={schema}"


@pytest.fixture
def place(db_url: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Topics and a database of the same set."""
    if db_url.startswith("sqlite:"):
        return Place("embedded", f"sqlite:{tmp_path / 'topics.db'}", db_url)
    return Place("servers", request.getfixturevalue("kafka").url, db_url)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ledger(db_url: str, clock: ManualClock) -> Iterator[Ledger]:
    found = open_ledger(db_url, clock=clock)
    yield found
    found.close()


@pytest.fixture(scope="session")
def servers_site(kafka: "KafkaServer", postgres: "PostgresServer") -> "Iterator[Site]":
    """One chat on servers for all tests of gateways: each has people and rooms of its own."""
    from tests.apps.chat.gateways import Site

    folder = Path(tempfile.mkdtemp(prefix="pabal-chat-"))
    with postgres.schema() as schema:
        site = Site(kafka.url, f"{postgres.url}?schema={schema}", folder)
        yield site
        site.close()
    shutil.rmtree(folder)


@pytest.fixture
def embedded_site(tmp_path: Path) -> "Iterator[Site]":
    """A chat in SQLite files: for what has nothing to do with where messages are kept."""
    from tests.apps.chat.gateways import Site

    made = Site(f"sqlite:{tmp_path / 'topics.db'}", f"sqlite:{tmp_path / 'chat.db'}", tmp_path)
    with made.worker():
        yield made
    made.close()


@pytest.fixture(params=["embedded", "servers"])
def site(request: pytest.FixtureRequest) -> "Iterator[Site]":
    """A chat with a worker at work, and without a gateway."""
    if request.param == "embedded":
        yield request.getfixturevalue("embedded_site")
        return
    shared: Site = request.getfixturevalue("servers_site")
    with shared.worker():
        yield shared
