"""What is peculiar to the SQLite store: its plans, its files, its full disk, its many processes."""

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from pabal.errors import NameTaken, QueueFull, StoreFull, StoreRefused
from pabal.filesystem import require_local
from pabal.sql.connection import Connection, connect
from pabal.store import Done, Entry, Outcome, Receipt, Settlement, State, Terms
from pabal.stores.sqlite import SqliteStore, groups, maintain, read, settle
from pabal.stores.sqlite import lease as leasing
from pabal.stores.sqlite import publish as publishing
from pabal.stores.sqlite.lease import Leaser
from pabal.testing import ManualClock
from pabal.testing.store_place import QUEUE, Child, ack, bodies, count, draft, drain, publish, retry, take, take_one
from tests.steps import growth


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "pabal.db", clock=clock)
    yield store
    store.close()


@pytest.fixture
def db(store: SqliteStore, tmp_path: Path) -> Iterator[Connection]:
    connection = connect(tmp_path / "pabal.db")
    yield connection
    connection.close()


# Plans

_PLANS: list[tuple[str, str, int]] = [
    (leasing._DUE, "messages_delayed (queue_id=? AND due_at<?)", 3),
    (leasing._LAPSED, "messages_inflight (queue_id=? AND lease_until<?)", 3),
    (leasing._EXPIRED, "messages_expiring (queue_id=? AND expires_at<?)", 3),
    (groups._HEAD, "messages_group (queue_id=? AND grp=?)", 2),
    (groups._IN_FLIGHT, "messages_group_inflight (queue_id=? AND grp=?)", 2),
    (leasing._SUCCESSORS, "messages_group (queue_id=? AND grp=? AND rowid>?)", 6),
    (publishing._BY_ID, "messages_id (queue_id=? AND id=?)", 2),
    (publishing._BY_KEY, "messages_dedup (queue_id=? AND dedup_key=? AND dedup_until>?)", 3),
    (leasing._LEASE.one, "INTEGER PRIMARY KEY (rowid=?)", 5),
    (leasing._LEASE.many, "INTEGER PRIMARY KEY (rowid=?)", 24),
    (leasing._LEASE_HELD.many, "INTEGER PRIMARY KEY (rowid=?)", 24),
    (leasing._PROMOTE, "INTEGER PRIMARY KEY (rowid=?)", 4),
    (leasing._EXTEND, "messages_id (queue_id=? AND id=?)", 4),
    (settle._DONE, "messages_id (queue_id=? AND id=?)", 5),
    (settle._DONE_ALONE, "messages_id (queue_id=? AND id=?)", 5),
    (settle._ACKS, "messages_id (queue_id=? AND id=?)", 4 + settle._TOGETHER),
    (settle._ACKS_ALONE.one, "messages_id (queue_id=? AND id=?)", 5),
    (settle._ACKS_ALONE.many, "messages_id (queue_id=? AND id=?)", 24),
    (settle._RETRY, "messages_id (queue_id=? AND id=?)", 8),
    (settle._DEAD, "messages_id (queue_id=? AND id=?)", 5),
    (
        maintain._PURGEABLE.format("messages_aside", "state = 4 and state > 2"),
        "messages_aside (queue_id=? AND state=? AND state_since<?)",
        3,
    ),
    (
        maintain._PURGEABLE.format("messages_aside", "state = 5 and state > 2"),
        "messages_aside (queue_id=? AND state=? AND state_since<?)",
        3,
    ),
    (maintain._PURGEABLE.format("messages_ready", "state = 0"), "messages_ready (queue_id=?)", 3),
    (maintain._PURGEABLE.format("messages_delayed", "state = 1"), "messages_delayed (queue_id=?)", 3),
    (
        read._SAME_PRIORITY.format(*read._READY_PARTS[0]),
        "messages_ready (queue_id=? AND target=? AND priority=? AND (due_at,id)>(?,?))",
        5,
    ),
    (
        read._SAME_PRIORITY.format(*read._READY_PARTS[1]),
        "messages_targeted (queue_id=? AND priority=? AND (due_at,id)>(?,?))",
        5,
    ),
    (read._LOWER_PRIORITY.format(*read._READY_PARTS[0]), "messages_ready (queue_id=? AND target=? AND priority<?)", 3),
    (read._LOWER_PRIORITY.format(*read._READY_PARTS[1]), "messages_targeted (queue_id=? AND priority<?)", 3),
    (read._PRIORITY.format(*read._READY_PARTS[0]), "COVERING INDEX messages_ready (queue_id=? AND target=?", 2),
    (read._PRIORITY.format(*read._READY_PARTS[1]), "INDEX messages_targeted (queue_id=? AND priority<?)", 2),
    (read._FIRST_DUE.format(*read._READY_PARTS[0]), "COVERING INDEX messages_ready (queue_id=? AND target=?", 2),
    (read._FIRST_DUE.format(*read._READY_PARTS[1]), "INDEX messages_targeted (queue_id=? AND priority=?)", 2),
]


@pytest.mark.parametrize(("statement", "index", "values"), _PLANS)
def test_every_statement_finds_its_rows_by_an_index_and_sorts_nothing(
    db: Connection, statement: str, index: str, values: int
) -> None:
    plan = [row[3] for row in db.execute("explain query plan " + statement, (1,) * values)]
    assert len(plan) == 1 and index in plan[0], plan
    assert "SCAN" not in plan[0] and "TEMP B-TREE" not in plan[0]


@pytest.mark.parametrize("statement", [leasing._ANYTHING, leasing._ANY_LAPSED, leasing._NEXT])
def test_looking_before_locking_scans_nothing(db: Connection, statement: str) -> None:
    values = {leasing._ANYTHING: 3, leasing._ANY_LAPSED: 3, leasing._NEXT: 4}[statement]
    plan = [row[3] for row in db.execute("explain query plan " + statement, (1,) * values)]
    assert not [step for step in plan if "SCAN messages" in step or "TEMP" in step], plan


def test_leasing_finds_its_rows_and_what_is_due_by_indexes(db: Connection) -> None:
    plan = [row[3] for row in db.execute("explain query plan " + leasing._READY, (1, "", 1, 1, "a"))]
    assert "messages_ready (queue_id=? AND target=?)" in plan[0]
    assert any("messages_delayed (queue_id=? AND due_at<?)" in step for step in plan)
    assert "COVERING INDEX messages_ready (queue_id=? AND target=?)" in plan[-1]
    assert not [step for step in plan if step.startswith("SCAN messages") or "TEMP" in step], plan


def test_what_a_token_holds_is_found_among_the_messages_in_flight(db: Connection) -> None:
    plan = [row[3] for row in db.execute("explain query plan " + leasing._HELD_BY, (1, "t"))]
    assert "messages_inflight (queue_id=?)" in plan[0]


# Opening


def test_a_stranger_with_our_view_names_is_refused(tmp_path: Path) -> None:
    connection = connect(tmp_path / "x.db")
    connection.execute("create table kv (k, v)")
    connection.close()
    with pytest.raises(StoreRefused, match="'kv'"):
        SqliteStore(tmp_path / "x.db")


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pabal.filesystem.file_system", lambda path: "nfs4")
    with pytest.raises(StoreRefused, match="nfs4"):
        require_local(tmp_path)


def test_a_name_that_differs_only_in_case_is_taken(store: SqliteStore) -> None:
    publish(store, 1, queue="Jobs")
    with pytest.raises(NameTaken, match="'Jobs'"):
        publish(store, 1, queue="jobs")
    with pytest.raises(NameTaken):
        store.configure("JOBS", {})
    assert store.queues() == ["Jobs"]
    assert take(store, queue="jobs") == []


def test_a_queue_whose_first_publish_failed_is_not_remembered(store: SqliteStore) -> None:
    with pytest.raises(QueueFull):
        store.publish([draft(1, terms=Terms(max_waiting=1)), draft(2, terms=Terms(max_waiting=1))])
    assert store.queues() == []
    publish(store, 3, queue="other")
    publish(store, 4)
    assert drain(store) == [4]
    assert drain(store, queue="other") == [3]


# Rows


def test_a_document_that_does_not_decode_is_set_aside(store: SqliteStore, db: Connection) -> None:
    (bad, good) = publish(store, "bad", "good")
    data = b'{"messageId": 7}'
    db.execute("update messages set document = ?, crc = ? where id = ?", (data, crc32(data), bad))
    assert bodies(take(store, 5)) == ["good"]
    entry = store.find("jobs", bad)
    assert entry is not None and entry.state is State.CORRUPT and entry.data == data
    assert entry.failure is not None and entry.failure.code == "CORRUPT"
    assert good != bad


def test_a_damaged_row_is_not_decoded_by_browse(store: SqliteStore, db: Connection) -> None:
    (id,) = publish(store, "fine")
    db.execute("update messages set document = ? where id = ?", (b"garbage", id))
    (entry,) = store.browse("jobs", State.READY)
    assert entry.message is None and entry.data == b"garbage"


def test_an_acked_message_leaves_only_a_tombstone(store: SqliteStore, db: Connection) -> None:
    publish(store, "x" * 1000)
    ack(store, take_one(store))
    assert db.execute("select document from messages").get is None


def test_ids_may_be_generated_twice_after_an_uncertain_publish(store: SqliteStore) -> None:
    first = draft("once")
    assert not store.publish([first])[0].duplicate
    again = store.publish([first, draft("more")])
    assert [answer.duplicate for answer in again] == [True, False]
    assert drain(store) == ["once", "more"]


@pytest.mark.parametrize("size", [1, 19, 20, 21, 40, 59])
def test_a_batch_of_any_size_is_stored_whole_and_in_order(store: SqliteStore, size: int) -> None:
    publish(store, *range(size))
    assert bodies(take(store, 100)) == list(range(size))


def test_a_batch_of_which_some_are_there_already_stores_the_others(store: SqliteStore) -> None:
    drafts = [draft(n) for n in range(50)]
    store.publish(drafts[20:30])
    answers = store.publish(drafts)
    assert [answer.duplicate for answer in answers] == [20 <= n < 30 for n in range(50)]
    assert sorted(drain(store)) == list(range(50))


def test_an_empty_queue_is_probed_without_the_write_lock(store: SqliteStore, db: Connection) -> None:
    publish(store, 1)
    ack(store, take_one(store))
    assert take(store) == take(store) == []
    db.execute("begin immediate")  # whoever wants to write now waits ten seconds
    assert take(store) == []
    assert store.expired("jobs", 10) == []
    assert store.purge("jobs", State.DEAD) == 0
    db.execute("rollback")


def test_who_came_in_vain_once_does_not_look_first(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sleeps now, and is woken when there is something to take."""
    monkeypatch.setattr(Leaser, "_anything", lambda *args: pytest.fail("it looked"))
    assert take(store) == []
    for body in (1, 2):
        publish(store, body)
        assert take_one(store).message.body == body
        assert take(store) == []


def test_a_group_left_stuck_is_found_and_mended(store: SqliteStore, db: Connection) -> None:
    publish(store, 1, 2, group="g")
    db.execute("delete from messages where seq = (select min(seq) from messages)")
    assert take(store) == []
    (finding,) = store.check(repair=True)
    assert finding.repaired and "group g" in finding.where
    assert drain(store) == [2]


def test_check_sets_damaged_messages_aside(store: SqliteStore, db: Connection) -> None:
    (id,) = publish(store, "fine")
    db.execute("update messages set document = ? where id = ?", (b"{}", id))
    assert [finding.repaired for finding in store.check(repair=False)] == [False]
    assert [finding.repaired for finding in store.check(repair=True)] == [True]
    assert store.check(repair=False) == []
    assert store.counts("jobs")[State.CORRUPT] == 1


def test_a_reboot_ends_every_lease(store: SqliteStore, clock: ManualClock) -> None:
    publish(store, 1)
    lease = take_one(store, 3600)
    clock.reboot()
    (again,) = store.expired("jobs", 10)
    assert again.receipt.id == lease.receipt.id
    assert ack(store, lease) is Outcome.LOST


def test_settling_across_queues_where_only_some_have_groups(store: SqliteStore) -> None:
    publish(store, 1, 2, group="g", queue="grouped")
    publish(store, 3, queue="plain")
    leases = take(store, 5, queue="grouped") + take(store, 5, queue="plain")
    assert bodies(leases) == [1, 3]
    store.settle([Settlement(lease.receipt, Done()) for lease in reversed(leases)])
    assert drain(store, queue="grouped") == [2]


def test_a_retried_head_keeps_its_group_waiting(store: SqliteStore, clock: ManualClock) -> None:
    publish(store, 1, 2, group="g")
    retry(store, take_one(store), 10.0)
    assert take(store) == []
    clock.advance(11)
    assert drain(store) == [1, 2]


# Bells


def test_each_commit_rings_each_queue_once(store: SqliteStore, tmp_path: Path) -> None:
    watch = store.watch(["jobs", "other"])
    publish(store, 1)
    assert watch.wait(0)
    assert not watch.wait(0)
    store.publish([draft(1), draft(2), draft(3, queue="other")])
    assert watch.wait(0)
    ack(store, take_one(store))
    assert not watch.wait(0)
    assert sorted(path.name for path in (tmp_path / "pabal.db.bells").iterdir()) == ["jobs", "other"]
    watch.close()


def test_more_queues_than_files_may_be_open_have_their_bells(store: SqliteStore, tmp_path: Path) -> None:
    queues = [f"queue-{number}" for number in range(100)]
    with closing(store.watch(queues)) as watch:
        for queue in queues * 2:
            publish(store, 1, queue=queue)
            assert watch.wait(0)
    links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert 0 < sum("pabal.db.bells" in link for link in links) <= 64


# Threads and processes


def test_sixteen_threads_share_commits_and_lose_nothing(store: SqliteStore) -> None:
    def run(number: int) -> None:
        for turn in range(20):
            publish(store, [number, turn])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(drain(store)) == [[number, turn] for number in range(16) for turn in range(20)]


def test_many_processes_open_write_and_close_at_once_and_nobody_meets_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "fresh.db"

    def child(number: int) -> Any:
        def run() -> int:
            for turn in range(8):
                store = SqliteStore(path)
                publish(store, [number, turn])
                for lease in take(store, 1):
                    ack(store, lease)
                store.close()
            return number

        return run

    children = [Child(child(number)) for number in range(6)]
    assert [one.result() for one in children] == list(range(6))
    store = SqliteStore(path)
    assert store.counts("jobs")[State.DONE] + len(drain(store)) == 48
    assert store.check(repair=False) == []
    store.close()


# Full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        reason = f"a small disk needs root: {mounted.stderr.decode().strip()}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.root
def test_g9_a_full_disk_refuses_publish_and_is_drained_to_empty_while_full(small_disk: Path) -> None:
    store = SqliteStore(small_disk / "pabal.db")
    filler = small_disk / "filler"
    filler.write_bytes(bytes(12 << 20))
    published = 0
    with pytest.raises(StoreFull):
        while True:
            store.publish([draft("x" * 900) for _ in range(50)])
            published += 50
    _fill(small_disk / "rest")
    assert store.counts("jobs")[State.READY] == published
    assert len(drain(store)) == published
    assert store.facts()["ballast"] == "missing"
    with pytest.raises(StoreFull):
        store.carry("jobs", [Entry("jobs", "moved", State.READY, message=draft("x", id="moved").message)])
    filler.unlink()
    store.purge("jobs", State.DONE)
    publish(store, "room again")
    assert drain(store) == ["room again"]
    assert store.check(repair=False) == []
    store.close()


@pytest.mark.root
def test_g9_a_store_that_was_drained_takes_in_again_without_a_larger_disk(small_disk: Path) -> None:
    store = SqliteStore(small_disk / "pabal.db")
    for _ in range(3):
        published = 0
        with pytest.raises(StoreFull):
            while True:
                store.publish([draft("x" * 900) for _ in range(50)])
                published += 50
        assert published >= 50
        assert len(drain(store)) == published
        while store.purge("jobs", State.DONE):
            pass
    store.close()


def _fill(path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def test_many_acks_have_the_right_outcomes_whatever_is_among_them(store: SqliteStore) -> None:
    publish(store, *range(60))
    leases = store.lease(QUEUE, 60, 60.0)
    acks = [Settlement(lease.receipt, Done()) for lease in leases]
    assert store.settle(acks[:25]) == [Outcome.APPLIED] * 25
    found = store.settle(
        [acks[0], *acks[25:50], acks[30], Settlement(Receipt(QUEUE, acks[55].receipt.id, "x"), Done())]
    )
    assert found == [Outcome.REPEATED, *[Outcome.APPLIED] * 25, Outcome.REPEATED, Outcome.LOST]
    assert store.settle(acks[50:]) == [Outcome.APPLIED] * 10  # looked at one by one, after those
    publish(store, *"abc", group="g")
    for body in "abc":
        publish(store, 1)
        two = store.lease(QUEUE, 5, 60.0)
        assert {lease.message.body for lease in two} == {body, 1}
        store._mixed_left = 0
        assert store.settle([Settlement(lease.receipt, Done()) for lease in two]) == [Outcome.APPLIED] * 2
    assert count(store, State.DONE) == 66


# Targets


def with_targets(tmp_path: Path, many: int) -> SqliteStore:
    """Return a store with so many ready messages, each with a target of its own."""
    store = SqliteStore(tmp_path / f"{many}.db", clock=ManualClock())
    store.publish([draft(number, target=f"w{number}", priority=number % 3) for number in range(many)])
    return store


@pytest.mark.parametrize("what", ["browse", "oldest"])
def test_what_is_asked_does_not_grow_with_the_number_of_targets(tmp_path: Path, what: str) -> None:
    def work(many: int) -> Callable[[], object]:
        store = with_targets(tmp_path, many)
        return partial(browse_all, store) if what == "browse" else partial(store.oldest, QUEUE, State.READY)

    assert growth(work, 200) < (6 if what == "browse" else 1.5)


def browse_all(store: SqliteStore) -> list[Entry]:
    found = page = store.browse(QUEUE, State.READY, limit=50)
    while page:
        page = store.browse(QUEUE, State.READY, after=page[-1].cursor, limit=50)
        found += page
    return found


def test_messages_with_and_without_targets_are_browsed_in_lease_order(tmp_path: Path) -> None:
    with closing(with_targets(tmp_path, 100)) as store:
        store.publish([draft(number, priority=number % 4) for number in range(100, 200)])
        found = [entry.message for entry in browse_all(store) if entry.message]
        order = sorted(found, key=lambda message: (-message.priority, message.body))
        assert [message.body for message in found] == [message.body for message in order] and len(found) == 200
