"""A kingdom whose queues are on a server: it outlives the server's restarts."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pabal.clock import SystemClock
from tests.apps.kingdom.realm import Realm, eventually
from tests.services.postgres import PostgresServer, running


@pytest.fixture
def server(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A server of its own, to be killed; that of the others says whether there can be one."""
    with running() as own:
        yield own


def test_a_kingdom_goes_on_after_its_server_was_killed(tmp_path: Path, server: PostgresServer) -> None:
    with closing(Realm(tmp_path / "home", server.url, SystemClock())) as living:
        living.system(roles=["king"], lease_seconds=5)
        living.general()
        up = living.start("up")
        living.event("evt-1")
        eventually(lambda: "evt-1" in living.completed(), lambda: living.log)
        server.kill()
        server.start()
        living.event("evt-2")
        eventually(lambda: "evt-2" in living.completed(), lambda: living.log)
        up.terminate()
        assert up.wait(60) == 0, living.log
