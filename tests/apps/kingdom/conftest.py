"""A kingdom for each test, on every kind of queues that the test asks for: files and sqlite, unless it says more."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from pabal.clock import SystemClock
from pabal.stores.postgres import PostgresStore
from pabal.testing import ManualClock
from tests.apps.kingdom.realm import URLS, Realm, git
from tests.services.postgres import PostgresServer
from tests.services.postgres_clock import ServerClock


class Place(NamedTuple):
    """Where the queues of a kingdom are; on a server in a schema of their own."""

    queues: str
    server: PostgresServer | None = None
    schema: str = ""


@pytest.fixture(params=list(URLS))
def kind(request: pytest.FixtureRequest) -> Iterator[Place]:
    """The kind of queues; `tests.apps.kingdom.realm.everywhere` adds a server to the list."""
    if request.param != "postgres":
        yield Place(URLS[request.param])
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.schema() as schema:
        yield Place(f"{server.url}?schema={schema}", server, schema)


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> Iterator[ManualClock]:
    """A clock that stands still, for the server too if the test's queues are there."""
    place: Place = request.getfixturevalue("kind") if "kind" in request.fixturenames else Place("")
    if place.server is None:
        yield ManualClock()
        return
    PostgresStore(place.server.url, schema=place.schema).close()
    with closing(ServerClock(place.server.url, place.schema)) as clock:
        yield clock


@pytest.fixture
def realm(tmp_path: Path, clock: ManualClock, kind: Place) -> Iterator[Realm]:
    """A kingdom whose time stands still."""
    found = Realm(tmp_path / "home", kind.queues, clock)
    yield found
    found.close()


@pytest.fixture
def living(tmp_path: Path, kind: Place) -> Iterator[Realm]:
    """A kingdom in real time, for processes."""
    found = Realm(tmp_path / "home", kind.queues, SystemClock())
    yield found
    found.close()


@pytest.fixture
def upstream(realm: Realm, tmp_path: Path) -> Path:
    """The repository our/repo, from which the soldiers of the kingdom clone."""
    found = tmp_path / "upstream/our/repo"
    found.mkdir(parents=True)
    git(found, "init", "-q", "-b", "main")
    (found / "one").write_text("one")
    git(found, "add", ".")
    git(found, "commit", "-q", "-m", "one")
    realm.system(repositories=f"{tmp_path}/upstream/{{repo}}", stop_seconds=1)
    return found
