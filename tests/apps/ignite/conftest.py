"""Teams that are taken down after each test, their mail in the folders or in a database."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pabal.stores.postgres import PostgresStore
from pabal.testing import ManualClock
from tests.apps.ignite.table import HOOKS, Place, Table
from tests.services.postgres import PostgresServer
from tests.services.postgres_clock import ServerClock

Lay = Callable[..., Table]


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Where the mail lies: in the folders, unless the test is marked with `tests.apps.ignite.table.everywhere`."""
    wanted = getattr(request, "param", "files")
    if wanted == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        with server.schema() as schema:
            yield Place(f"{server.url}?schema={schema}", server, schema)
    else:
        yield Place("sqlite:state/mail.db" if wanted == "sqlite" else "")


@pytest.fixture
def clock(kind: Place) -> Iterator[ManualClock]:
    """A clock that stands still, for the server too if the mail is there."""
    if kind.server is None:
        yield ManualClock()
        return
    PostgresStore(kind.server.url, schema=kind.schema).close()
    with closing(ServerClock(kind.server.url, kind.schema)) as clock:
        yield clock


@pytest.fixture
def lay(tmp_path: Path, kind: Place) -> Iterator[Lay]:
    """Return what makes a table, by the text of its team file."""
    made: list[Table] = []

    def lay(team: str = HOOKS, **more: Any) -> Table:
        made.append(Table(tmp_path, kind.team(team), **more))
        return made[-1]

    yield lay
    for table in made:
        table.close()
