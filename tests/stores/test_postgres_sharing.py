"""Connections to PostgreSQL: many threads share a few, one listens for all, and a pooler may stand between."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import psycopg
import pytest

from pabal.errors import StoreFailed, Uncertain
from pabal.queues.queue import Queue
from pabal.queues.waiter import Waiter
from pabal.sql import postgres as pool
from pabal.sql.postgres_link import Link
from pabal.store import Dead, Failure, Outcome, State
from pabal.stores.postgres import PostgresStore
from pabal.testing.store_place import QUEUE, ack, count, draft, drain, in_threads, publish, settle, take, take_one
from tests.services.pgbouncer import count_sessions
from tests.services.postgres import PostgresServer
from tests.waiting import until


@pytest.fixture
def store(postgres: PostgresServer, schema: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres.url, schema=schema, patience=5.0)) as store:
        yield store


def test_a_hundred_waiting_threads_hold_a_few_connections(
    store: PostgresStore, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = count_sessions(postgres) - 1  # of other tests, without the one that made the schema
    publish(store, 0)
    waiters = [Waiter(Queue(QUEUE, store)) for _ in range(100)]
    found: list[object] = []

    def wait(waiter: Waiter) -> None:
        with waiter:
            for delivery in waiter.lease(1, 60.0, float("inf")):
                found.append(delivery.body)
                delivery.ack()

    threads = [threading.Thread(target=wait, args=(waiter,)) for waiter in waiters]
    for thread in threads:
        thread.start()
    until(lambda: found == [0])
    assert count_sessions(postgres) - before <= pool.CONNECTIONS + 1
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.0)  # as if half a minute had passed
    until(lambda: count_sessions(postgres) - before <= 3)
    monkeypatch.undo()
    Queue(QUEUE, store).publish_many(list(range(1, 100)))
    for thread in threads:
        thread.join(60)
    assert sorted(found) == list(range(100))  # type: ignore[type-var]
    assert count_sessions(postgres) - before <= pool.CONNECTIONS + 1


def test_watches_share_one_connection_and_each_is_woken_for_its_own_queue(
    store: PostgresStore, postgres: PostgresServer
) -> None:
    before = count_sessions(postgres)
    watches = {name: store.watch([name]) for name in ("a", "b", "c")}
    assert count_sessions(postgres) == before + 1
    assert {watch.woken_by for watch in watches.values()} == {"notify"}
    store.publish([draft(1, queue="b")])
    assert watches["b"].wait(5)
    assert not watches["a"].wait(0.05) and not watches["c"].wait(0.05) and not watches["b"].wait(0)
    for watch in watches.values():
        watch.close()
    store.publish([draft(1, queue="b")])
    with closing(store.watch(["b"])) as again:
        assert not again.wait(0.05)  # nothing is heard while nobody watches
        store.publish([draft(1, queue="b")])
        assert again.wait(5)
    assert count_sessions(postgres) == before + 1


def test_where_all_connections_are_busy_a_call_waits_and_then_says_so(
    postgres: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "CONNECTIONS", 2)
    with closing(pool.Server(postgres.url, patience=0.3)) as server:
        go_on = threading.Event()
        started = threading.Barrier(3)

        def hold(link: object) -> None:
            started.wait()
            go_on.wait()

        threads = [threading.Thread(target=server.run, args=(hold,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        started.wait()
        with pytest.raises(StoreFailed, match="all 2 connections to .* were busy"):
            server.run(lambda link: None)
        go_on.set()
        for thread in threads:
            thread.join()
        assert server.run(lambda link: 7) == 7


def test_a_forked_child_makes_a_listener_of_its_own(store: PostgresStore) -> None:
    publish(store, 0)
    watch = store.watch([QUEUE])
    pid = os.fork()
    if pid == 0:
        try:
            watch.wait(0)  # joins the listener of the child
            publish(store, 1)
            os._exit(0 if watch.wait(5) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert watch.wait(5)
    publish(store, 2)
    assert watch.wait(5)
    watch.close()


# Behind PgBouncer


def test_everything_works_through_pgbouncer(pgbouncer: str, postgres: PostgresServer, schema: str) -> None:
    stores = [PostgresStore(pgbouncer, schema=schema, patience=10.0) for _ in range(2)]
    taken: list[object] = []

    def work(store: PostgresStore, name: str) -> None:
        for number in range(40):
            store.publish([draft(f"{name}-{number}", priority=number % 3)])
            store.publish([draft(f"{name}-k{number}", dedup_key=f"{name}-{number}", group=name)])
            for lease in take(store, 2):
                ack(store, lease, *([draft(f"{name}-then", queue="others")] if number % 10 == 0 else []))
                taken.append(lease.message.body)

    with closing(stores[0]), closing(stores[1]):
        in_threads(*[partial(work, store, f"{i}{j}") for i, store in enumerate(stores) for j in range(3)])
        taken += drain(stores[0])
        expected = [f"{i}{j}-{kind}{n}" for i in range(2) for j in range(3) for kind in ("", "k") for n in range(40)]
        assert sorted(map(str, taken)) == sorted(expected)
        publish(stores[0], "dead")
        settle(stores[1], take_one(stores[1]), Dead(Failure("X")))
        assert count(stores[1], State.DEAD) == 1 and stores[0].extend([], 1) == []
        lease = take_one(stores[0], queue="others")
        assert stores[1].extend([lease.receipt], 60) == [Outcome.APPLIED]


def test_a_connection_that_breaks_behind_a_pooler_is_a_broken_connection(pgbouncer: str) -> None:
    tries: list[int] = []

    def work(link: Link) -> object:
        tries.append(1)
        if len(tries) == 1:
            raise psycopg.errors.ProtocolViolation("server conn crashed?")  # as PgBouncer says it
        return link.execute("select 7").fetchone()

    with closing(pool.Server(pgbouncer, patience=10.0)) as server:
        assert server.run(work) == (7,) and len(tries) == 2
        tries.clear()
        with pytest.raises(Uncertain):
            server.run(work, repeatable=False)


def test_no_setting_and_no_statement_is_left_in_a_session_that_others_use(
    pgbouncer: str, postgres: PostgresServer, schema: str
) -> None:
    with closing(PostgresStore(pgbouncer, schema=schema)) as store:
        for number in range(20):
            publish(store, number)
        drain(store)
        if "session" in os.environ.get("PYTEST_CURRENT_TEST", ""):
            return  # PgBouncer resets a session before another client gets it
        with psycopg.connect(pgbouncer, autocommit=True, prepare_threshold=None) as other:
            for _ in range(8):
                rows = other.execute(
                    "select current_setting('enable_seqscan'), current_setting('statement_timeout'),"
                    " (select count(*) from pg_prepared_statements), (select count(*) from pg_listening_channels() c"
                    f" where c = '{schema}.bell')"
                ).fetchall()
                assert rows == [("on", "0", 0, 0)]


def test_commits_are_flushed_behind_a_pooler_too(pgbouncer: str, postgres: PostgresServer, schema: str) -> None:
    postgres.execute("alter role test set synchronous_commit = off")
    try:
        with closing(PostgresStore(pgbouncer, schema=schema)) as store:
            assert "synchronous_commit on" in store.facts()["server"]
    finally:
        postgres.execute("alter role test reset synchronous_commit")


def test_a_waiting_consumer_behind_a_pooler_gets_its_message(
    pgbouncer: str, postgres: PostgresServer, schema: str, request: pytest.FixtureRequest
) -> None:
    mode = request.node.callspec.params["pgbouncer"]
    with closing(PostgresStore(pgbouncer, schema=schema)) as store:
        assert store.facts()["woken by"] == ("notify" if mode == "session" else "poll")
        timer = threading.Timer(0.3, lambda: publish(store, "x"))
        timer.start()
        began = time.monotonic()
        [delivery] = Queue(QUEUE, store).lease(1, wait=30)
        assert delivery.body == "x" and time.monotonic() - began < 25
        timer.join()
