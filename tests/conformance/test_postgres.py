"""The store contract on PostgreSQL, with a real server whose clock the tests move."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pabal.store import Outcome, Store
from pabal.stores.postgres import PostgresStore
from pabal.testing import ManualClock, StoreSuite
from pabal.testing.store_place import QUEUE, Damage, Reopen, ack, publish, take, take_one
from tests.conformance import test_many_processes as many_processes
from tests.openers import Opener, flipped
from tests.services.postgres import PostgresServer
from tests.services.postgres_clock import ServerClock

YEAR = 365 * 86_400.0


class TestPostgresStore(StoreSuite):
    @pytest.fixture
    def clock(self, postgres: PostgresServer, schema: str) -> Iterator[ManualClock]:
        PostgresStore(postgres.url, schema=schema).close()
        clock = ServerClock(postgres.url, schema)
        yield clock
        clock.close()

    @pytest.fixture
    def reopen(self, postgres: PostgresServer, schema: str, clock: ManualClock) -> Reopen:
        return lambda: PostgresStore(postgres.url, schema=schema, clock=clock, patience=5.0)

    @pytest.fixture
    def damage(self, postgres: PostgresServer, schema: str) -> Damage:
        def flip(queue: str, id: str) -> None:
            with psycopg.connect(postgres.url) as connection:
                table = f"{schema}.messages"
                found = connection.execute(f"select document from {table} where id = %s", (id,)).fetchone()
                assert found is not None
                connection.execute(f"update {table} set document = %s where id = %s", (flipped(found[0]), id))

        return flip

    # Here leases are counted on the server's clock: no boot of any machine ends one.

    def test_g11_a_lease_of_another_boot_has_run_out(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1)
        lease = take_one(store, seconds=YEAR)
        clock.reboot()
        assert store.expired(QUEUE, 10) == [] and take(store) == []
        assert ack(store, lease) is Outcome.APPLIED

    def test_next_due_forgets_what_is_settled(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1)
        lease = take_one(store, seconds=30)
        clock.advance(31)
        assert store.next_due(QUEUE) == 0
        ack(store, lease)
        assert store.next_due(QUEUE) is None


@pytest.mark.timeout(600)
def test_every_message_of_many_processes_is_acknowledged_once(postgres: PostgresServer, tmp_path: Path) -> None:
    with postgres.schema() as schema:
        opener = Opener(lambda place, clock: PostgresStore(postgres.url, schema=schema), lambda *where: None)
        many_processes.check(opener, tmp_path)
