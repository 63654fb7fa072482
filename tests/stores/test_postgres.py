"""What is peculiar to the store on PostgreSQL: the application's transaction, broken links, the schema, URLs."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest

from pabal.clock import SystemClock
from pabal.connect import connect
from pabal.errors import (
    InvalidInput,
    InvalidPolicy,
    InvalidUrl,
    QueueFull,
    StoreFailed,
    StoreMissing,
    StoreRefused,
    Uncertain,
)
from pabal.message import Message
from pabal.queues.queue import Queue
from pabal.sql.postgres import Server
from pabal.sql.postgres_link import Link, place_of
from pabal.store import Dead, Done, Entry, Failure, Movable, Outcome, Retry, Settlement, State, Terms, Transactional
from pabal.stores.postgres import PostgresStore
from pabal.testing.store_place import QUEUE, ack, count, draft, drain, publish, state_of, take, take_one
from tests.services.cutting_proxy import CuttingProxy
from tests.services.postgres import PostgresServer, running
from tests.steps import growth
from tests.waiting import until


@pytest.fixture
def store(postgres: PostgresServer, schema: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres.url, schema=schema, patience=5.0)) as store:
        yield store


@pytest.fixture
def theirs(postgres: PostgresServer) -> Iterator["psycopg.Connection[tuple[object, ...]]"]:
    """A connection of the application's own."""
    with psycopg.connect(postgres.url) as connection:
        yield connection


# The application's own transaction


def test_a_message_published_in_a_transaction_is_there_when_it_commits(
    store: PostgresStore, theirs: "psycopg.Connection[tuple[object, ...]]", schema: str
) -> None:
    theirs.execute(f"create table {schema}.orders (id int)")
    theirs.execute(f"insert into {schema}.orders values (1)")
    assert isinstance(store, Transactional)
    store.publish_in(theirs, [draft("order 1", group="g", dedup_key="k")])
    assert take(store) == [] and count(store, State.READY) == 0
    theirs.commit()
    assert drain(store) == ["order 1"]


def test_a_message_published_in_a_transaction_is_gone_when_it_rolls_back(
    store: PostgresStore, theirs: "psycopg.Connection[tuple[object, ...]]"
) -> None:
    store.publish_in(theirs, [draft("order 1"), draft("order 2", dedup_key="k")])
    theirs.rollback()
    assert count(store, State.READY) == 0
    assert not store.publish([draft("again", dedup_key="k")])[0].duplicate


def test_a_watch_rings_when_the_transaction_commits_and_not_before(
    store: PostgresStore, theirs: "psycopg.Connection[tuple[object, ...]]"
) -> None:
    publish(store, "first")
    with closing(store.watch([QUEUE])) as watch:
        store.publish_in(theirs, [draft(1)])
        assert not watch.wait(0.1)
        theirs.commit()
        assert watch.wait(5)


def test_what_is_refused_leaves_the_rest_of_the_transaction_whole(
    store: PostgresStore, theirs: "psycopg.Connection[tuple[object, ...]]"
) -> None:
    terms = Terms(max_waiting=1)
    store.publish_in(theirs, [draft(1, terms=terms)])
    with pytest.raises(QueueFull, match="jobs"):
        store.publish_in(theirs, [draft(2, terms=terms)])
    theirs.commit()
    assert drain(store) == [1]


def test_without_a_transaction_nothing_is_published(store: PostgresStore, postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as theirs:
        with pytest.raises(InvalidInput, match="no transaction is open"):
            store.publish_in(theirs, [draft(1)])
        with theirs.transaction():
            store.publish_in(theirs, [draft(2)])
    assert drain(store) == [2]


def test_only_a_psycopg_connection_will_do(store: PostgresStore) -> None:
    with pytest.raises(StoreRefused, match="psycopg connection"):
        store.publish_in("postgresql://", [draft(1)])


# Links that break


def test_an_idle_link_that_broke_is_noticed_before_it_is_used(postgres: PostgresServer, schema: str) -> None:
    with closing(CuttingProxy(postgres.port)) as proxy:
        with closing(PostgresStore(postgres.url_at(proxy.port), schema=schema, patience=5.0)) as store:
            for n in range(5):
                publish(store, n)
                proxy.cut()
            assert len(take(store, 10)) == 5


def test_a_publish_cut_off_is_uncertain_and_can_be_repeated(postgres: PostgresServer, schema: str) -> None:
    with closing(CuttingProxy(postgres.port)) as proxy:
        with closing(PostgresStore(postgres.url_at(proxy.port), schema=schema, patience=5.0)) as store:
            publish(store, "first")
            held = _hold_up(postgres, schema)
            timer = threading.Timer(0.3, proxy.cut)
            timer.start()
            once = draft("second")
            with pytest.raises(Uncertain) as caught:
                store.publish([once])
            assert caught.value.ids == (once.message.id,)
            timer.join()
            held.close()
            store.publish([once])
            assert drain(store) == ["first", "second"]


def test_a_lease_and_an_ack_cut_off_are_repeated_by_the_store(postgres: PostgresServer, schema: str) -> None:
    with closing(CuttingProxy(postgres.port)) as proxy:
        with closing(PostgresStore(postgres.url_at(proxy.port), schema=schema, patience=10.0)) as store:
            publish(store, 1, id="m")
            with _held_up(postgres, schema, proxy):
                (lease,) = take(store, 1)
            assert lease.attempt == 1
            with _held_up(postgres, schema, proxy):
                assert ack(store, lease) in (Outcome.APPLIED, Outcome.REPEATED)
            assert state_of(store, "m") is State.DONE


@contextmanager
def _held_up(postgres: PostgresServer, schema: str, proxy: CuttingProxy) -> Iterator[None]:
    """Let the next statement wait at the server until its link was cut."""
    held = _hold_up(postgres, schema)
    timers = [threading.Timer(0.2, proxy.cut), threading.Timer(0.4, held.close)]
    for timer in timers:
        timer.start()
    yield
    for timer in timers:
        timer.join()


def _hold_up(postgres: PostgresServer, schema: str) -> "psycopg.Connection[tuple[object, ...]]":
    """Lock the table, so that whoever comes waits until the connection is closed."""
    connection = psycopg.connect(postgres.url)
    connection.execute(f"lock table {schema}.messages in access exclusive mode")
    return connection


def test_what_may_still_be_under_way_is_not_run_again(postgres: PostgresServer) -> None:
    server = Server(postgres.url, patience=1.0, answer=1.0)
    stopped: list[int] = []

    def work(link: Link) -> None:
        stopped.append(link.pid)
        os.kill(link.pid, signal.SIGSTOP)  # whoever is asked to end it waits in vain
        link.close()
        raise psycopg.OperationalError("cut")

    try:
        with closing(server), pytest.raises(Uncertain):
            server.run(work)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert len(stopped) == 1


def test_a_server_that_is_away_is_waited_for_and_then_given_up(schema: str) -> None:
    with running() as server:
        with closing(PostgresStore(server.url, patience=20.0)) as store:
            publish(store, 1)
            server.stop()
            restart = threading.Timer(0.5, server.start)
            restart.start()
            assert take_one(store).message.body == 1  # made again while the server was away
            restart.join()
        with closing(PostgresStore(server.url, patience=0.3)) as hasty:
            server.kill()
            with pytest.raises(StoreFailed, match="repeat"):
                hasty.counts(QUEUE)
            with pytest.raises(StoreFailed, match="127.0.0.1"):
                publish(hasty, 2)
            server.start()
            publish(hasty, 3)


def test_the_first_try_to_reach_a_server_that_says_nothing_counts_as_patience() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(StoreFailed, match="timeout expired"):
            PostgresStore(f"postgresql://test@127.0.0.1:{silent.getsockname()[1]}/postgres", patience=1.0)
    assert time.monotonic() - began < 9  # one try is given up after 5 seconds


def test_a_watch_outlives_its_link(postgres: PostgresServer, schema: str) -> None:
    with closing(CuttingProxy(postgres.port)) as proxy:
        url = postgres.url_at(proxy.port)
        with (
            closing(PostgresStore(url, schema=schema)) as store,
            closing(store.watch([QUEUE])) as watch,
        ):
            assert watch.woken_by == "notify"
            proxy.cut()
            assert watch.wait(5)  # what was rung meanwhile was not heard
            while watch.woken_by == "poll":
                watch.wait(0.1)
            while watch.wait(0.05):
                pass
            publish(store, 1)
            assert watch.wait(5)


# The schema


def test_many_may_open_a_new_place_at_once(postgres: PostgresServer, schema: str) -> None:
    opened: list[PostgresStore] = []
    threads = [
        threading.Thread(target=lambda: opened.append(PostgresStore(postgres.url, schema=schema))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 6
    publish(opened[0], 1)
    assert count(opened[5], State.READY) == 1
    for store in opened:
        store.close()


def test_a_newer_schema_is_refused_by_name(store: PostgresStore, postgres: PostgresServer, schema: str) -> None:
    postgres.execute(f"update {schema}.meta set value = '99' where key = 'schema.queues'")
    with pytest.raises(StoreRefused, match="schema 99 of queues"):
        PostgresStore(postgres.url, schema=schema)


def test_two_schemas_are_two_stores(store: PostgresStore, postgres: PostgresServer) -> None:
    with postgres.schema() as other_schema, closing(PostgresStore(postgres.url, schema=other_schema)) as other:
        publish(store, 1)
        assert other.queues() == [] and store.queues() == [QUEUE]


def test_the_facts_say_what_wakes_its_readers(store: PostgresStore) -> None:
    assert store.facts()["woken by"] == "notify"


@pytest.mark.parametrize("settings", ["{no", '"text"', '{"retry": 5}'])
def test_settings_that_cannot_be_read_stop_one_queue_and_are_set_aside(
    store: PostgresStore, theirs: "psycopg.Connection[tuple[object, ...]]", schema: str, settings: str
) -> None:
    store.configure(QUEUE, {})
    store.configure("other", {})
    theirs.execute(f"update {schema}.queues set settings = %s where name = %s", (settings, QUEUE))
    theirs.commit()
    with pytest.raises(InvalidPolicy, match=QUEUE):
        Queue(QUEUE, store).policy  # noqa: B018
    assert Queue("other", store).policy
    (finding,) = store.check(repair=False)
    assert finding.where == QUEUE and "its settings cannot be used" in finding.problem and not finding.repaired
    assert [finding.repaired for finding in store.check(repair=True)] == [True]
    assert store.settings(QUEUE) is None and not store.check(repair=False)
    kept = f"select value from {schema}.meta where key like 'set_aside.{QUEUE}.%%'"
    assert theirs.execute(kept).fetchall() == [(settings,)]


def test_the_scheme_may_be_in_capitals(postgres: PostgresServer, schema: str) -> None:
    url = postgres.url.replace("postgresql:", "POSTGRESQL:")
    with connect(f"{url}{'&' if '?' in url else '?'}schema={schema}") as mq:
        mq.queue(QUEUE).publish(1)


def test_a_place_is_told_as_the_environment_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "127.0.0.1")
    monkeypatch.setenv("PGPORT", "55999")
    monkeypatch.setenv("PGDATABASE", "work")
    assert place_of("postgresql:///") == "postgresql://127.0.0.1:55999/work"
    assert place_of("postgresql://there/own") == "postgresql://there:55999/own"


def test_every_commit_is_flushed_even_where_the_server_would_not(store: PostgresStore) -> None:
    assert "fsync on, synchronous_commit on" in store.facts()["server"]


def test_commits_are_flushed_for_a_role_that_does_not_ask_for_it(postgres: PostgresServer, schema: str) -> None:
    url = f"{postgres.url}?options=-c%20synchronous_commit%3Doff"
    with closing(PostgresStore(url, schema=schema)) as store:
        assert "synchronous_commit on" in store.facts()["server"]


def test_a_session_that_planned_for_empty_tables_does_not_read_whole_queues_later(
    store: PostgresStore, theirs: "psycopg.Connection[tuple[object, ...]]", schema: str
) -> None:
    _everything_once(store)
    for _ in range(10):
        publish(store, *range(300))
        store.settle([Settlement(lease.receipt, Done()) for lease in take(store, 300)])
    publish(store, *range(1000))
    before = _rows_read(store, theirs, schema)
    _everything_once(store)
    assert _rows_read(store, theirs, schema) - before < 1000


def _everything_once(store: PostgresStore) -> None:
    publish(store, "a", "b", "c", "d")
    done, again, dead, longer = take(store, 4)
    store.settle([Settlement(done.receipt, Done()), Settlement(again.receipt, Retry())])
    store.settle([Settlement(dead.receipt, Dead(Failure("NACKED")))])
    store.extend([longer.receipt], 60)
    ack(store, longer)
    assert store.revive(QUEUE, [dead.receipt.id]) == [dead.receipt.id]
    assert store.purge(QUEUE, State.READY, ids=[dead.receipt.id, again.receipt.id]) == 2
    assert store.purge(QUEUE, State.DONE, ids=[done.receipt.id, longer.receipt.id]) == 2
    assert store.find(QUEUE, done.receipt.id) is None and store.expired(QUEUE, 10) == []


def _rows_read(store: PostgresStore, theirs: "psycopg.Connection[tuple[object, ...]]", schema: str) -> int:
    store._server.run(lambda link: link.execute("select pg_stat_force_next_flush()"))  # of the session that did it
    found = theirs.execute(
        "select seq_tup_read + idx_tup_fetch from pg_stat_user_tables where schemaname = %s and relname = 'messages'",
        (schema,),
    ).fetchone()
    theirs.rollback()
    assert found is not None and isinstance(found[0], int)
    return found[0]


def test_check_finds_and_mends_damage_and_a_stuck_group(
    store: PostgresStore, postgres: PostgresServer, schema: str
) -> None:
    publish(store, "bad", id="bad")
    publish(store, 1, 2, group="g")
    postgres.execute(f"update {schema}.messages set document = 'x' where id = 'bad'")
    postgres.execute(f"update {schema}.messages set state = 3 where grp = 'g'")
    assert [finding.repaired for finding in store.check(repair=False)] == [False, False]
    assert [finding.repaired for finding in store.check(repair=True)] == [True, True]
    assert store.check(repair=False) == []
    assert drain(store) == [1, 2] and count(store, State.CORRUPT) == 1


# URLs


def test_a_url_opens_the_store(postgres: PostgresServer, schema: str) -> None:
    url = f"{postgres.url}?schema={schema}&patience=3"
    with pytest.raises(StoreMissing):
        connect(url, create=False)
    with connect(url) as mq:
        mq.queue("jobs").publish({"a": 1})
        assert isinstance(mq.store, Movable)
    with connect(url, create=False) as mq:
        assert [delivery.body for delivery in mq.queue("jobs").consume(wait=0)] == [{"a": 1}]


@pytest.mark.parametrize("options", ["schema=A-b", "schema=x;y", "patience=soon", "patience=-1", "nonsense=1"])
def test_options_that_are_none_are_refused_without_showing_the_password(options: str) -> None:
    with pytest.raises((InvalidUrl, StoreRefused)) as caught:
        connect(f"postgresql://me:s3cret@127.0.0.1:1/x?{options}")
    assert "s3cret" not in str(caught.value)


def test_a_database_that_is_not_there_is_refused_at_once(postgres: PostgresServer) -> None:
    with pytest.raises(StoreRefused, match="does not exist"):
        PostgresStore(postgres.url.replace("/postgres", "/nowhere"))


def test_no_error_shows_the_password(postgres: PostgresServer) -> None:
    url = f"postgresql://nobody:s3cret@127.0.0.1:{postgres.port}/postgres"
    with pytest.raises(StoreRefused) as caught:
        PostgresStore(url)
    assert "s3cret" not in str(caught.value)


def test_a_forked_child_leaves_the_parents_links_alone(store: PostgresStore) -> None:
    publish(store, 1)
    watch = store.watch([QUEUE])
    watch.close()
    pid = os.fork()
    if pid == 0:
        store.close()
        os._exit(0)
    os.waitpid(pid, 0)
    publish(store, 2)
    assert drain(store) == [1, 2]


def test_options_of_libpq_are_passed_on_as_they_are(postgres: PostgresServer, schema: str) -> None:
    with connect(f"{postgres.url}?options=-c%20synchronous_commit%3Dremote_apply&schema={schema}") as mq:
        assert "synchronous_commit remote_apply" in mq.store.facts()["server"]


def test_without_psycopg_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['psycopg'] = None; import pabal; pabal.connect('postgresql://here/x')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ExtraMissing" in done.stderr and "its extra 'postgres'" in done.stderr


# Clocks of clients, and many delayed messages


class _Skewed(SystemClock):
    """The clock of a client that is wrong by some seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def now(self) -> float:
        return time.time() + self._seconds


@pytest.mark.parametrize("skew", [-600.0, 600.0])
def test_a_time_to_live_is_counted_on_the_servers_clock(postgres: PostgresServer, schema: str, skew: float) -> None:
    theirs = _Skewed(skew)
    with closing(PostgresStore(postgres.url, schema=schema, clock=theirs)) as store:
        queue = Queue(QUEUE, store, clock=theirs)
        queue.publish("for five minutes", ttl=300, id="m")
        queue.publish("over", ttl=0.001, id="over")
        [(left,)] = postgres.execute(f"select expires_at - {schema}.wall() from {schema}.messages where id = 'm'")
        assert isinstance(left, float) and 290 < left <= 300
        assert store.next_due(QUEUE) == 0
        [delivery] = queue.lease(5)  # judges the message whose time is over
        assert delivery.body == "for five minutes"
        delivery.ack(then=[queue.draft("follow-up", ttl=300, id="then")])
        [(left,)] = postgres.execute(f"select expires_at - {schema}.wall() from {schema}.messages where id = 'then'")
        assert isinstance(left, float) and 290 < left <= 300
        over = queue.find("over")
        assert over is not None and over.failure is not None and over.failure.code == "EXPIRED"


def test_a_lease_that_ran_out_is_not_taken_for_a_time_to_live_that_ended(postgres: PostgresServer, schema: str) -> None:
    theirs = _Skewed(600)
    with closing(PostgresStore(postgres.url, schema=schema, clock=theirs)) as store:
        queue = Queue(QUEUE, store, clock=theirs)
        with closing(PostgresStore(postgres.url, schema=schema)) as right:
            Queue(QUEUE, right).publish(1, ttl=300, id="m")  # by the other clock the five minutes are over
        take_one(store, seconds=0.001)
        until(lambda: queue.settler.judge_expired() == 1)
        found = queue.find("m")
        assert found is not None and found.failure is not None and found.failure.code == "LEASE_EXPIRED"


def test_a_delayed_message_moved_in_is_due_as_soon_as_before(postgres: PostgresServer, schema: str) -> None:
    theirs = _Skewed(-600)
    with closing(PostgresStore(postgres.url, schema=schema, clock=theirs)) as store:
        message = Message("m", 1, created_at=theirs.now(), expires_at=theirs.now() + 500)
        store.carry(QUEUE, [Entry(QUEUE, "m", State.DELAYED, 0, theirs.now() + 100, message)])
        [(due, ends)] = postgres.execute(
            f"select due_at - {schema}.wall(), expires_at - {schema}.wall() from {schema}.messages"
        )
        assert isinstance(due, float) and isinstance(ends, float)
        assert 90 < due <= 100 and 490 < ends <= 500


def test_g4_the_most_urgent_of_very_many_that_come_due_at_once_is_first(
    store: PostgresStore, postgres: PostgresServer, schema: str
) -> None:
    publish(store, 0, delay=3600, group="")
    # 25,000 more of priority 0 before one of priority 9: all are due at once, the urgent one last.
    postgres.execute(
        f"insert into {schema}.messages (queue_id, state, rank, due_at, state_since, id, crc, document)"
        f" select queue_id, 1, 0, 1000 + n * 0.001, 1000, 'm' || n, crc, document"
        f" from {schema}.messages, generate_series(1, 25000) as n"
    )
    postgres.execute(f"update {schema}.messages set rank = -9, due_at = 2000 where id = 'm25000'")
    # And members of groups, of which a call takes fewer.
    store.publish([draft(0, group="g0", delay=3600, id="g0"), draft(1, group="g1", delay=3600, id="g1", priority=8)])
    postgres.execute(
        f"insert into {schema}.messages (queue_id, state, rank, due_at, state_since, id, grp, crc, document)"
        f" select queue_id, 1, 0, 1000 + n * 0.001, 1000, 'x' || n, 'x' || n, crc, document"
        f" from {schema}.messages, generate_series(1, 1500) as n where id = 'g0'"
    )
    postgres.execute(f"update {schema}.messages set due_at = 3000 where id = 'g1'")
    assert [lease.receipt.id for lease in take(store, 3)] == ["m25000", "g1", "m1"]
    assert count(store, State.READY) == 24_999 - 1 + 1500


def test_pages_do_not_grow_with_the_number_of_targets(store: PostgresStore) -> None:
    def work(many: int) -> Callable[[], object]:
        queue = f"q{many}"
        store.publish([draft(number, queue=queue, target=f"w{number}") for number in range(many)])
        store.publish([draft(number, queue=queue) for number in range(many)])
        return lambda: (store.browse(queue, State.READY, limit=5), store.oldest(queue, State.READY))

    assert growth(work, 50) < 1.5


def test_pages_are_in_lease_order_with_and_without_targets(store: PostgresStore) -> None:
    store.publish([draft(n, target=f"w{n}" if n % 2 else "", priority=n % 3, id=f"m{n:03}") for n in range(30)])
    page = store.browse(QUEUE, State.READY, limit=7)
    found = page
    while page:
        page = store.browse(QUEUE, State.READY, after=page[-1].cursor, limit=7)
        found += page
    assert [entry.id for entry in found] == sorted(
        (f"m{n:03}" for n in range(30)), key=lambda id: (-(int(id[1:]) % 3), id)
    )
