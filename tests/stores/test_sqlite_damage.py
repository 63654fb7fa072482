"""What damage to a SQLite store costs: the message or queue that was hit, never its neighbours. Every call ends."""

import errno
import random
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from pabal.errors import InvalidPolicy, StoreFailed, StoreRefused
from pabal.queues.queue import Queue
from pabal.sql import repair
from pabal.sql.connection import Connection, connect
from pabal.store import Dead, Done, Finding, Lease, Outcome, Retry, Settlement, State, Verdict
from pabal.stores.sqlite import SqliteStore, lease
from pabal.testing import ManualClock
from pabal.testing.store_place import FAILED, ack, bodies, bury, draft, drain, publish, retry, settle, take
from pabal.topic_store import NewRecord, Shape
from pabal.topic_stores.sqlite import SqliteTopics

PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pabal.db"


@pytest.fixture
def opened(path: Path) -> Iterator[Callable[[], SqliteStore]]:
    stores: list[SqliteStore] = []

    def open() -> SqliteStore:
        while stores:
            stores.pop().close()
        stores.append(SqliteStore(path, clock=ManualClock()))
        return stores[0]

    yield open
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: Callable[[], SqliteStore]) -> SqliteStore:
    return opened()


def publish_numbers(store: SqliteStore, many: int, name: str = "m") -> None:
    for number in range(many):
        publish(store, number, id=f"{name}{number}")


def damage(path: Path, *statements: str) -> None:
    connection = connect(path)
    for statement in statements:
        connection.execute(statement).fetchall()
    connection.close()


def page_of(path: Path, name: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        [(page,)] = connection.execute("select rootpage from sqlite_schema where name = ?", (name,))
    return int(page)


def flip(path: Path, page: int, text: bytes, after: int, bit: int) -> None:
    """Flip a bit behind a text in a page."""
    data = bytearray(path.read_bytes())
    at = data.index(text, (page - 1) * PAGE) + len(text) + after
    data[at] ^= bit
    path.write_bytes(data)


def problems(findings: list[Finding]) -> list[str]:
    return [finding.problem for finding in findings]


# Indexes


def damaged_index(opened: Callable[[], SqliteStore], path: Path) -> SqliteStore:
    """Let an entry of the index of ready messages lead to a message that is done."""
    store = opened()
    publish_numbers(store, 5, "done-")
    for found in take(store, 5):
        assert ack(store, found)
    publish_numbers(store, 5, "ready-")
    store.close()
    flip(path, page_of(path, "messages_ready"), b"ready-0", 0, 4)
    return opened()


def test_g10_a_lease_ends_where_an_index_leads_to_a_settled_message(
    opened: Callable[[], SqliteStore], path: Path
) -> None:
    store = damaged_index(opened, path)
    with pytest.raises(StoreFailed, match="doctor --repair"):
        store.lease("jobs", 1, 30.0)
    found = store.check(repair=False)
    assert found and not any(finding.repaired for finding in found)
    found = store.check(repair=True)
    assert found and all(finding.repaired for finding in found)
    assert store.check(repair=False) == []
    assert bodies(store.lease("jobs", 9, 30.0)) == [0, 1, 2, 3, 4]


def test_an_entry_of_an_index_for_another_message_delivers_no_wrong_body(
    opened: Callable[[], SqliteStore], path: Path
) -> None:
    store = opened()
    publish_numbers(store, 4)
    store.close()
    flip(path, page_of(path, "messages_ready"), b"m1", 0, 1)  # the row of m1 is 2: it becomes 3
    store = opened()
    with pytest.raises(StoreFailed, match="doctor --repair"):
        drain(store)
    assert all(finding.repaired for finding in store.check(repair=True))
    assert not store.check(repair=False)


REPEATS: dict[str, tuple[str, bytes, dict[str, Any], dict[str, Any]]] = {
    "id": ("messages_id", b"m", {"id": "m2"}, {"id": "m3"}),
    "dedup key": ("messages_dedup", b"key", {"dedup_key": "key2"}, {"dedup_key": "key3"}),
}


@pytest.mark.parametrize("what", REPEATS)
def test_g1_a_damaged_index_makes_no_new_message_a_duplicate(
    opened: Callable[[], SqliteStore], path: Path, what: str
) -> None:
    index, text, stored, new = REPEATS[what]
    store = opened()
    publish(store, "two", **stored)
    store.close()
    flip(path, page_of(path, index), text, 0, 1)  # 2 becomes 3
    store = opened()
    with pytest.raises(StoreFailed, match="doctor --repair"):
        store.publish([draft("three", **new)])
    assert all(finding.repaired for finding in store.check(repair=True))
    [published] = store.publish([draft("three", **new)])
    assert not published.duplicate
    assert store.publish([draft("two", **stored)])[0].duplicate
    assert drain(store) == ["two", "three"]


def test_a_unique_key_is_not_taken_by_a_message_that_another_entry_leads_to(
    opened: Callable[[], SqliteStore], path: Path
) -> None:
    store = opened()
    publish(store, "other", id="other")
    publish(store, "old", id="old", unique="key")
    [old, _] = take(store, 2)
    assert ack(store, old)
    store.close()
    flip(path, page_of(path, "messages_id"), b"old", 0, 3)  # its row is 2: it becomes 1
    store = opened()
    with pytest.raises(StoreFailed, match="doctor --repair"):
        publish(store, "new", unique="key")


@pytest.mark.parametrize(
    "text, bit, key", [(b"u-4", 1, "u-5"), (b"u-4old-4", 1, "u-4")], ids=["its key", "its message"]
)
def test_g12_a_damaged_unique_key_makes_no_new_message_a_duplicate(
    text: bytes, bit: int, key: str, opened: Callable[[], SqliteStore], path: Path
) -> None:
    store = opened()
    for number in range(6):
        publish(store, number, id=f"old-{number}", unique=f"u-{number}")
    for held in take(store, 6):
        if held.receipt.id == f"old-{key[-1]}":
            assert ack(store, held)
    store.close()
    flip(path, page_of(path, "unique_keys"), text, -1, bit)  # u-4 becomes u-5, or old-4 becomes old-5
    store = opened()
    try:
        [published] = store.publish([draft("new", unique=key)])
    except StoreFailed as exc:
        assert "doctor --repair" in str(exc)
        assert all(finding.repaired for finding in store.check(repair=True))
        [published] = store.publish([draft("new", unique=key)])
    assert not published.duplicate
    assert store.check(repair=False) == []


def test_g12_keys_of_lost_pages_are_restored_from_the_documents(opened: Callable[[], SqliteStore], path: Path) -> None:
    store = opened()
    publish_numbers(store, 3)
    publish(store, "old", id="old", unique="key")
    store.close()
    for name in ("unique_keys_id", "unique_keys"):
        page, data = page_of(path, name), bytearray(path.read_bytes())
        data[(page - 1) * PAGE : page * PAGE] = bytes(PAGE)
        path.write_bytes(data)
    store = opened()
    assert all(finding.repaired for finding in store.check(repair=True))
    assert store.check(repair=False) == []
    [published] = store.publish([draft("new", unique="key")])
    assert published.duplicate and published.id == "old"


def rows_of(path: Path) -> dict[str, tuple[object, ...]]:
    """Return state, token and end of the lease of each row by its id, without any index."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        columns = "queue_id || '/' || id, state, token, lease_until, document"
        return {row[0]: row[1:] for row in connection.execute(f"select {columns} from messages not indexed")}


def settled(*verdicts: Verdict, many: bool = False) -> Callable[[SqliteStore, list[Lease]], object]:
    """Settle m4, and with `many` also m1 and m2, which are of the same lease."""

    def work(store: SqliteStore, held: list[Lease]) -> object:
        chosen = [lease for lease in held if lease.receipt.id in (("m1", "m2", "m4") if many else ("m4",))]
        return [store.settle([Settlement(lease.receipt, verdict) for lease in chosen]) for verdict in verdicts]

    return work


BY_ID: dict[str, tuple[str, Callable[[SqliteStore, list[Lease]], object]]] = {
    "ack": ("leased", settled(Done())),
    "acks": ("leased", settled(Done(), many=True)),
    "ack and keep": ("leased", settled(Done(keep=True))),
    "retry": ("leased", settled(Retry(0.0, FAILED))),
    "bury": ("leased", settled(Dead(FAILED))),
    "extend": (
        "leased",
        lambda store, held: store.extend([each.receipt for each in held if each.message.body == 4], 9),
    ),
    "cancel": ("ready", lambda store, _: store.cancel("jobs", ["m4"])),
    "cancel in flight": ("leased", lambda store, _: store.cancel("jobs", ["m4"], inflight=True)),
    "purge": ("ready", lambda store, _: store.purge("jobs", State.READY, ids=["m4"])),
    "revive": ("dead", lambda store, _: store.revive("jobs", ["m4"])),
}


@pytest.mark.parametrize("what", BY_ID)
def test_g10_a_damaged_index_of_ids_lets_no_call_change_another_message(
    opened: Callable[[], SqliteStore], path: Path, what: str
) -> None:
    state, work = BY_ID[what]
    store = opened()
    publish_numbers(store, 8)
    held = [] if state == "ready" else take(store, 8)
    if state == "dead":
        assert all(bury(store, lease) for lease in held)
    store.close()
    flip(path, page_of(path, "messages_id"), b"m4", 0, 3)  # its row is 5: it becomes 6, that of m5
    store = opened()
    before = rows_of(path)
    with pytest.raises(StoreFailed, match="doctor --repair"):
        work(store, held)
    assert rows_of(path) == before
    assert all(finding.repaired for finding in store.check(repair=True))
    work(store, held)
    after = rows_of(path)
    assert after.get("1/m4") != before["1/m4"] and after["1/m5"] == before["1/m5"]


def test_a_repeated_ack_of_another_message_is_no_repeat(opened: Callable[[], SqliteStore], path: Path) -> None:
    store = opened()
    publish_numbers(store, 8)
    held = {lease.receipt.id: lease for lease in take(store, 8)}
    assert ack(store, held["m5"]) is Outcome.APPLIED
    store.close()
    flip(path, page_of(path, "messages_id"), b"m4", 0, 3)  # leads to m5
    store = opened()
    with pytest.raises(StoreFailed, match="doctor --repair"):
        ack(store, held["m4"])


def two_queues(store: SqliteStore, **options: Any) -> None:
    """Publish messages with the same id in rows 6 and 7 of two queues."""
    publish_numbers(store, 5, "pad")
    publish(store, "of jobs", id="order", **options)
    publish(store, "of others", id="order", queue="others", **options)


def test_g2_a_lease_takes_no_message_of_another_queue(opened: Callable[[], SqliteStore], path: Path) -> None:
    store = opened()
    two_queues(store, priority=9)
    store.close()
    flip(path, page_of(path, "messages_ready"), b"order\x06", -1, 1)
    store = opened()
    with pytest.raises(StoreFailed, match="doctor --repair"):
        take(store)
    assert all(finding.repaired for finding in store.check(repair=True))
    assert bodies(take(store)) == ["of jobs"] and bodies(take(store, queue="others")) == ["of others"]


def test_a_delayed_message_of_another_queue_is_not_made_ready(path: Path) -> None:
    clock = ManualClock()
    clock.advance(0.123)
    with closing(SqliteStore(path, clock=clock)) as store:
        publish_numbers(store, 5, "pad")
        assert len(drain(store)) == 5
        publish(store, "soon", id="soon", delay=5.0)  # row 6
        publish(store, "late", id="late", delay=5000.0, queue="others")  # row 7
    flip(path, page_of(path, "messages_delayed"), struct.pack(">d", clock.now() + 5.0), 0, 1)
    clock.advance(6.0)
    with closing(SqliteStore(path, clock=clock)) as store:
        before = rows_of(path)
        with pytest.raises(StoreFailed, match="doctor --repair"):
            take(store)
        assert rows_of(path) == before


def test_a_message_of_another_queue_is_not_shown(opened: Callable[[], SqliteStore], path: Path) -> None:
    store = opened()
    two_queues(store, priority=9)
    [lease] = take(store)
    assert lease.message.body == "of jobs"
    store.close()
    flip(path, page_of(path, "messages_inflight"), lease.receipt.token.encode(), 0, 1)  # row 6 becomes 7
    store = opened()
    with pytest.raises(StoreFailed, match="doctor --repair"):
        store.browse("jobs", State.INFLIGHT)


@pytest.mark.parametrize(
    "call",
    [
        lambda store: publish(store, "new"),
        lambda store: take(store),
        lambda store: store.settings("jobs"),
        lambda store: store.configure("jobs", {"maxBytes": 5}),
        lambda store: store.delete("jobs", force=True),
        lambda store: store.counts("jobs"),
    ],
    ids=["publish", "lease", "settings", "configure", "delete", "counts"],
)
def test_g10_a_damaged_index_of_names_leads_no_call_to_another_queue(
    call: Callable[[SqliteStore], object], opened: Callable[[], SqliteStore], path: Path
) -> None:
    store = opened()
    for queue in ("pad", "jobs", "jobt"):
        publish(store, queue, id=f"of-{queue}", queue=queue)
        store.configure(queue, {"maxBytes": 999})
    store.close()
    flip(path, page_of(path, "sqlite_autoindex_queues_1"), b"jobs", 0, 1)  # row 2 becomes 3
    store, before = opened(), all_rows(path)
    with pytest.raises(StoreFailed, match="doctor --repair"):
        call(store)
    assert all_rows(path) == before
    assert bodies(take(store, queue="jobt")) == ["jobt"]
    assert all(finding.repaired for finding in store.check(repair=True))
    assert bodies(take(store)) == ["jobs"]


def test_a_message_with_another_id_is_not_found(opened: Callable[[], SqliteStore], path: Path) -> None:
    store = opened()
    publish_numbers(store, 8)
    store.close()
    flip(path, page_of(path, "messages_id"), b"m4", 0, 3)  # leads to m5
    with pytest.raises(StoreFailed, match="doctor --repair"):
        opened().find("jobs", "m4")


def test_a_sweep_takes_over_no_lease_that_has_not_run_out(path: Path) -> None:
    clock = ManualClock()
    with closing(SqliteStore(path, clock=clock)) as store:
        two_queues(store, priority=9)
        [short] = take(store, seconds=1.0)
        [long] = take(store, seconds=3600.0, queue="others")
    flip(path, page_of(path, "messages_inflight"), short.receipt.token.encode(), 0, 1)  # row 6 becomes 7
    clock.advance(2.0)
    with closing(SqliteStore(path, clock=clock)) as store:
        before = rows_of(path)
        with pytest.raises(StoreFailed, match="doctor --repair"):
            store.expired("jobs", 9)
        assert rows_of(path) == before
        assert ack(store, long) is Outcome.APPLIED


def test_a_check_drops_no_lock_of_another_handle_in_this_process(opened: Callable[[], SqliteStore], path: Path) -> None:
    """To open and close the file once more would: POSIX locks belong to the process."""
    first = opened()
    publish_numbers(first, 50)
    assert first.purge("jobs", State.READY) == 50  # a list of free pages, which the check reads

    def locks() -> list[str]:
        number = f":{path.stat().st_ino} "
        return sorted(line.split(":", 1)[1] for line in Path("/proc/locks").read_text().splitlines() if number in line)

    held = locks()
    second = SqliteStore(path)
    assert held and second.check(repair=False) == first.check(repair=False) == []
    second.close()
    assert locks() == held


# Rows

TEXTS = {
    "id": "update messages set id = cast(x'6d33ff' as text) where id = 'm3'",
    "group": "update messages set grp = cast(x'ff' as text) where id = 'm3'",
    "target": "update messages set target = cast(x'ff' as text) where id = 'm3'",
    "kind": "update messages set priority = 'high' where id = 'm3'",
    "state": "update messages set state = 77 where id = 'm3'",
    "time": "update messages set due_at = x'00' where id = 'm3'",
    "queue": "update messages set queue_id = 99 where id = 'm3'",
    **{
        f"{column} no UTF-8": f"update messages set {column} = cast(x'61ff' as text) where id = 'm3'"
        for column in ("queue_id", "state", "attempt", "priority", "due_at", "state_since", "lease_until", "expires_at")
    },
}


@pytest.mark.parametrize("statement", TEXTS.values(), ids=TEXTS)
def test_g10_a_damaged_row_holds_up_no_neighbour_and_is_restored(
    store: SqliteStore, opened: Callable[[], SqliteStore], path: Path, statement: str
) -> None:
    publish_numbers(store, 6)
    damage(path, statement)
    store = opened()
    assert store.check(repair=False)
    assert store.browse("jobs", State.READY) and store.counts("jobs") and store.queues()
    leased = bodies(store.lease("jobs", 9, 30.0))
    assert set(leased) >= {0, 1, 2, 4, 5}
    store.check(repair=True)
    assert not store.check(repair=False)
    left = [entry.message.body for state in State for entry in store.browse("jobs", state) if entry.message]
    assert left.count(3) == 1


def damage_table(path: Path, statement: str) -> None:
    """Change rows as damage does: the indexes stay as they were."""
    copy = path.with_name("changed.db")
    shutil.copy(path, copy)
    damage(copy, statement)
    at = (page_of(path, "messages") - 1) * PAGE
    data = bytearray(path.read_bytes())
    data[at : at + PAGE] = copy.read_bytes()[at : at + PAGE]
    path.write_bytes(data)


def kept_copies(path: Path) -> list[Path]:
    return [found for found in path.parent.glob(f"{path.name}.damaged-*") if not found.name.endswith("-wal")]


@pytest.mark.parametrize("state", ["ready", "delayed", "in flight", "dead"])
def test_g1_a_state_that_became_done_costs_no_message(
    state: str, opened: Callable[[], SqliteStore], path: Path
) -> None:
    store = opened()
    publish_numbers(store, 2, "done-")
    assert all(settle(store, lease, Done(keep=True)) for lease in take(store, 2))
    for number in range(3):
        publish(store, f"precious {number}", id=f"m{number}", delay=60.0 if state == "delayed" else 0.0)
    held = take(store, 3) if state in ("in flight", "dead") else []
    if state == "dead":
        assert all(bury(store, lease) for lease in held)
    store.close()
    damage_table(path, "update messages set state = 4 where id = 'm1'")
    store = opened()
    found = store.check(repair=True)
    assert found and all(finding.repaired for finding in found)
    [kept] = kept_copies(path)
    assert any(kept.name in finding.remedy for finding in found)
    assert store.check(repair=False) == []
    dead = [entry for entry in store.browse("jobs", State.DEAD) if entry.id == "m1"]
    assert dead[0].message is not None and dead[0].message.body == "precious 1"
    assert dead[0].failure is not None and "state was damaged" in dead[0].failure.reason
    assert [entry.id for entry in store.browse("jobs", State.DONE)] == ["done-0", "done-1"]


def test_a_kept_message_to_which_a_damaged_index_leads_stays_done(
    opened: Callable[[], SqliteStore], path: Path
) -> None:
    store = opened()
    publish_numbers(store, 3, "done-")
    for found in take(store, 3):
        assert settle(store, found, Done(keep=True))
    publish_numbers(store, 3, "ready-")
    store.close()
    flip(path, page_of(path, "messages_ready"), b"ready-0", 0, 6)  # its row is 4: it becomes 2
    store = opened()
    assert all(finding.repaired for finding in store.check(repair=True))
    assert not kept_copies(path)
    assert len(store.browse("jobs", State.DONE)) == 3 and drain(store) == [0, 1, 2]


@pytest.mark.parametrize("number", [0, 3, 9, -1])
def test_a_damaged_number_of_a_queue_hides_no_member_of_a_group(
    number: int, opened: Callable[[], SqliteStore], path: Path
) -> None:
    store = opened()
    publish_numbers(store, 2)
    publish(store, "first", "second", "third", group="g")
    publish(store, "other", queue="others")
    store.close()
    damage(path, f"update queues set id = {number} where id = 1")
    store = opened()
    assert all(finding.repaired for finding in store.check(repair=True))
    assert opened().check(repair=False) == []
    store = opened()
    assert sorted(map(str, bodies(take(store, 9)))) == ["0", "1", "first"]
    assert store.counts("jobs")[State.READY] == 2 and drain(store, "others") == ["other"]


def test_a_held_message_without_a_group_is_found(opened: Callable[[], SqliteStore], path: Path) -> None:
    store = opened()
    publish_numbers(store, 3)
    publish(store, "first", "second", group="g")
    store.close()
    damage(path, "update messages set state = 3 where id = 'm1'", "update messages set grp = null where state = 3")
    store = opened()
    assert len(store.check(repair=False)) == 2
    assert all(finding.repaired for finding in store.check(repair=True))
    assert store.check(repair=False) == []
    assert [entry.id for entry in store.browse("jobs", State.DEAD)] == ["m1"]
    assert drain(store) == ["first", "second", 0, 2]


@pytest.mark.parametrize("column", ["due_at", "state_since", "lease_until", "dedup_until"])
def test_a_time_that_cannot_be_is_restored(column: str, opened: Callable[[], SqliteStore], path: Path) -> None:
    clock = ManualClock()
    with closing(SqliteStore(path, clock=clock)) as store:
        if column == "due_at":
            publish(store, 1, id="m1", delay=60.0)
        else:
            publish(store, 1, id="m1", dedup_key="key")
            assert take(store, seconds=60.0)
    damage(path, f"update messages set {column} = 1e18")
    clock.advance(61.0)
    with closing(SqliteStore(path, clock=clock)) as store:
        [finding] = store.check(repair=True)
        assert finding.repaired and column in finding.problem
        assert store.check(repair=False) == []
        clock.advance(61.0)
        for found in store.expired("jobs", 9):
            assert retry(store, found)
        assert drain(store) == [1]


@pytest.mark.parametrize("value", ["'text'", "x'00'", "1.5", "null"])
def test_a_checksum_of_a_wrong_kind_sets_its_message_aside_for_good(
    store: SqliteStore, opened: Callable[[], SqliteStore], path: Path, value: str
) -> None:
    publish_numbers(store, 2)
    damage(path, f"update messages set crc = {value} where id = 'm1'")
    store = opened()
    assert all(finding.repaired for finding in store.check(repair=True))
    assert not store.check(repair=False)
    (entry,) = store.browse("jobs", State.CORRUPT)
    assert entry.id == "m1" and b'"payload":1' in entry.data
    assert bodies(take(store)) == [0]


def test_a_name_of_a_queue_that_is_not_text_is_restored_from_its_documents(
    store: SqliteStore, opened: Callable[[], SqliteStore], path: Path
) -> None:
    publish(store, 1)
    publish(store, 2, queue="other")
    damage(path, "update queues set name = cast(x'ff' as text) where name = 'jobs'")
    store = opened()
    assert "its name" in problems(store.check(repair=False))[0]
    assert all(finding.repaired for finding in store.check(repair=True))
    assert "other" in store.queues()
    assert bodies(store.lease("other", 9, 30.0)) == [2]
    assert not store.check(repair=False)
    assert store.queues() == ["jobs", "other"]
    assert bodies(store.lease("jobs", 9, 30.0)) == [1]


def test_a_failure_that_is_no_json_costs_only_its_reason(store: SqliteStore, path: Path) -> None:
    publish(store, 1)
    [found] = take(store)
    bury(store, found)
    damage(path, "update messages set failure = '{no'")
    [entry] = store.browse("jobs", State.DEAD)
    assert entry.message is not None and entry.failure is not None and "{no" in entry.failure.reason
    assert "failure" in problems(store.check(repair=True))[0]
    assert not store.check(repair=False)
    assert store.revive("jobs", [found.message.id])
    assert bodies(take(store)) == [1]


@pytest.mark.parametrize("settings", ["{no", '"text"', '{"retry": 5}'])
def test_settings_that_cannot_be_read_stop_one_queue_and_are_set_aside(
    store: SqliteStore, path: Path, settings: str
) -> None:
    publish(store, 1)
    publish(store, 2, queue="other")
    store.configure("jobs", {})
    damage(path, f"update queues set settings = '{settings}' where name = 'jobs'")
    with pytest.raises(InvalidPolicy, match="jobs"):
        Queue("jobs", store).policy  # noqa: B018
    assert Queue("other", store).policy
    assert "its settings cannot be used" in problems(store.check(repair=False))[0]
    assert all(finding.repaired for finding in store.check(repair=True))
    assert store.settings("jobs") is None and not store.check(repair=False)
    connection = connect(path)
    assert connection.execute("select value from meta where key like 'set_aside.jobs.%'").get == settings.encode()
    connection.close()


# Pages


@pytest.mark.parametrize("seed", range(8))
def test_what_lies_before_and_behind_a_lost_page_is_saved(
    store: SqliteStore, opened: Callable[[], SqliteStore], path: Path, seed: int
) -> None:
    publish(store, *range(600))
    store.close()
    pages = path.stat().st_size // PAGE
    data = bytearray(path.read_bytes())
    page = random.Random(seed).randrange(20, pages)  # behind the roots
    data[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    path.write_bytes(data)
    store = opened()
    found = store.check(repair=True)
    assert found and all(finding.repaired for finding in found if finding.where == str(path))
    assert store.check(repair=False) == []
    left = bodies(store.lease("jobs", 1000, 30.0))
    assert len(left) > 500 and sorted(left) == left
    if len(left) < 600:
        [kept] = [file for file in path.parent.glob("*.damaged-*") if not file.name.endswith("-wal")]
        assert kept.read_bytes() == data


def test_a_lost_version_of_the_tables_is_noted_again(
    store: SqliteStore, opened: Callable[[], SqliteStore], path: Path
) -> None:
    publish(store, 1)
    damage(path, "delete from meta where key = 'schema.queues'")
    store = opened()
    with pytest.raises(StoreFailed, match="doctor --repair"):
        take(store)
    assert all(finding.repaired for finding in store.check(repair=True))
    assert bodies(take(store)) == [1]


@pytest.mark.parametrize("version", [2, 6, 1 << 40])
def test_a_version_that_is_higher_than_its_tables_is_noted_again(
    store: SqliteStore, opened: Callable[[], SqliteStore], path: Path, version: int
) -> None:
    publish(store, 1)
    damage(path, f"update meta set value = {version} where key = 'schema.queues'")
    store = opened()
    with pytest.raises(StoreFailed, match="doctor --repair"):
        take(store)
    assert problems(store.check(repair=False))
    assert all(finding.repaired for finding in store.check(repair=True))
    assert bodies(take(store)) == [1]
    assert opened().check(repair=False) == []


@pytest.mark.parametrize(
    "step", ["create table more (x)", "create index more on messages (token)", "alter table messages add more"]
)
def test_a_version_of_a_newer_release_is_refused(
    store: SqliteStore, opened: Callable[[], SqliteStore], path: Path, step: str
) -> None:
    publish(store, 1)
    damage(path, step, "update meta set value = 2 where key = 'schema.queues'")
    with pytest.raises(StoreRefused, match="schema 2 of queues; this release knows 1: upgrade pabal"):
        opened()


@pytest.mark.parametrize("key", ["boot_id", "schema.queues"])
def test_a_fact_of_the_store_that_is_no_utf_8_costs_no_message(
    store: SqliteStore, opened: Callable[[], SqliteStore], path: Path, key: str
) -> None:
    publish(store, 1)
    damage(path, f"insert or replace into meta values ('{key}', cast(x'61ff' as text))")
    store = opened()
    store.check(repair=True)
    assert store.expired("jobs", 10) == [] and bodies(take(store)) == [1]
    assert store.check(repair=False) == []


# Order


def test_g4_holds_for_more_due_messages_than_one_commit_promotes(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_PROMOTED_AT_ONCE", 100)
    store.publish([draft(number, delay=1.0 + number / 1000) for number in range(250)])
    store.publish([draft("urgent", delay=2.0, priority=9)])
    clock = store._clock
    assert isinstance(clock, ManualClock)
    clock.advance(60)
    assert bodies(take(store, 3)) == ["urgent", 0, 1]
    assert store.counts("jobs")[State.DELAYED] == 0


def test_a_message_in_flight_whose_row_has_another_id_is_restored(store: SqliteStore, path: Path) -> None:
    publish(store, "held", id="held")
    [lease] = take(store)
    damage(path, "update messages set id = 'heme'")
    assert [found for found in problems(store.check(repair=True)) if found == "its row is damaged: id"]
    assert ack(store, lease) is Outcome.APPLIED


def test_what_is_found_in_pages_is_added_though_another_message_has_its_number(
    opened: Callable[[], SqliteStore], path: Path, tmp_path: Path
) -> None:
    publish_numbers(opened(), 2)
    opened().close()
    other = SqliteStore(tmp_path / "other.db", clock=ManualClock())
    publish(other, "x", id="x")
    publish(other, "m1", id="m1")  # this one is there
    assert other.rescue(path) == 1
    assert sorted(entry.id for entry in other.browse("jobs", State.READY)) == ["m0", "m1", "x"]
    other.close()


@pytest.mark.parametrize(
    ("name", "text", "damaged"),
    [
        ("messages", "seq integer", "seq intager"),  # still SQL, with another meaning
        ("messages", "due_at real", "due_bt real"),
        ("messages_ready", "state = 0", "state = 1"),
        ("meta", "value", "valux"),
        ("queues", "create table", "create tabe"),  # no SQL: SQLite refuses the whole file
        ("kv", "union all", "unionall"),
    ],
)
def test_a_damaged_text_of_the_schema_is_found_and_written_again(
    name: str, text: str, damaged: str, opened: Callable[[], SqliteStore], path: Path
) -> None:
    store = opened()
    publish_numbers(store, 3)
    publish(store, "done", id="done")
    drain(store)
    publish_numbers(store, 3, "later")
    topics = SqliteTopics(path)
    topics.create("chat", Shape())
    topics.close()
    store.close()
    change = "update sqlite_schema set sql = replace(replace(sql, upper(?1), ?1), ?1, ?2) where name = ?3 returning sql"
    connection = connect(path)
    connection.execute("pragma writable_schema = on").fetchall()
    [(sql,)] = connection.execute(change, (text, damaged, name)).fetchall()
    assert damaged in str(sql)
    connection.close()
    store = opened()
    assert [finding for finding in store.check(repair=False) if not finding.ordinary]
    findings = [finding for finding in opened().check(repair=True) if not finding.ordinary]
    assert findings and all(finding.repaired for finding in findings), findings
    assert opened().check(repair=False) == []
    assert bodies(opened().lease("jobs", 10, 60.0)) == [0, 1, 2], "nothing is lost, and nothing comes again"
    assert opened().publish([draft("done", id="done")])[0].duplicate, "what was done is remembered"
    topics = SqliteTopics(path)
    assert topics.topics() == ["chat"]
    topics.close()


def test_a_column_that_became_null_costs_nothing(opened: Callable[[], SqliteStore], path: Path) -> None:
    """One bit in the head of a row: SQLite reads the state as null, and would not copy the row."""
    publish_numbers(opened(), 3)
    opened().close()
    schema = (
        "update sqlite_schema set sql = replace(sql, 'state integer {}', 'state integer {}') where name = 'messages'"
    )
    damage(path, "pragma writable_schema = on", schema.format("not null", ""))
    damage(path, "update messages set state = null where id = 'm1'")
    damage(path, "pragma writable_schema = on", schema.format("", "not null"))
    store = opened()
    assert all(finding.repaired or finding.ordinary for finding in store.check(repair=True))
    [dead] = store.browse("jobs", State.DEAD)
    assert dead.message is not None and dead.message.body == 1 and dead.failure is not None
    assert bodies(store.lease("jobs", 5, 60.0)) == [0, 2]


def pages_of_schema(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("select pageno from dbstat where name = 'sqlite_schema'").fetchall()
    return [row[0] for row in rows]


def test_a_file_whose_schema_is_destroyed_is_repaired_in_place(opened: Callable[[], SqliteStore], path: Path) -> None:
    publish_numbers(opened(), 3)
    opened().close()
    good = path.read_bytes()
    pages = pages_of_schema(path)
    assert len(pages) > 2
    for page in pages:
        for bad in (bytes(PAGE), random.Random(page).randbytes(PAGE)):
            path.write_bytes(good[: (page - 1) * PAGE] + bad + good[page * PAGE :])
            findings = [finding for finding in opened().check(repair=True) if not finding.ordinary]
            assert findings and all(finding.repaired for finding in findings), (page, findings)
            store = opened()
            found = [*store.browse("jobs", State.READY), *store.browse("jobs", State.DEAD)]
            assert sorted(entry.message.body for entry in found if entry.message) == [0, 1, 2], page  # type: ignore[type-var]
            assert publish(store, "new") and take(store) and store.check(repair=False) == []
            store.close()
            [kept] = path.parent.glob("pabal.db.damaged-*")
            assert kept.read_bytes()[(page - 1) * PAGE : page * PAGE] == bad
            kept.unlink()


NOTES = ("create table notes (text)", "insert into notes values ('keep me')")  # of another program


def notes(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("select text from notes")]


@pytest.mark.parametrize("index", ["messages_group_inflight", "messages_id", "messages_targeted"])
def test_a_missing_index_is_made_in_place_and_the_tables_of_others_stay(
    index: str, opened: Callable[[], SqliteStore], path: Path
) -> None:
    publish_numbers(opened(), 3)
    opened().close()
    damage(path, *NOTES, f"drop index {index}")
    assert problems(opened().check(repair=False)) == [f"the index {index} is missing"]
    [finding] = opened().check(repair=True)
    assert finding.repaired and finding.remedy == "its indexes were built again"
    assert opened().check(repair=False) == [] and not [*path.parent.glob("*damaged*")]
    assert bodies(opened().lease("jobs", 5, 60.0)) == [0, 1, 2]
    assert notes(path) == ["keep me"]


@pytest.mark.parametrize(
    "how", ["drop table orphaned_files", "delete from sqlite_schema where name = 'orphaned_files'"]
)
def test_a_missing_table_costs_no_table_of_others(how: str, opened: Callable[[], SqliteStore], path: Path) -> None:
    publish_numbers(opened(), 3)
    opened().close()
    damage(path, *NOTES, "pragma writable_schema = on", how)
    assert "the table orphaned_files is missing" in problems(opened().check(repair=False))
    findings = opened().check(repair=True)
    assert findings and all(finding.repaired for finding in findings)
    assert opened().check(repair=False) == []
    assert bodies(opened().lease("jobs", 5, 60.0)) == [0, 1, 2]
    assert notes(path) == ["keep me"]


def test_an_index_whose_name_and_text_are_damaged_is_told_from_a_table_of_others(
    opened: Callable[[], SqliteStore], path: Path
) -> None:
    publish_numbers(opened(), 3)
    opened().close()
    rename = "update sqlite_schema set name = 'messages_reapy', sql = replace(sql, 'messages_ready', 'messages_reapy')"
    damage(path, *NOTES, "pragma writable_schema = on", f"{rename} where name = 'messages_ready'")
    assert problems(opened().check(repair=False)) == ["the definition of index messages_ready in the schema is damaged"]
    findings = opened().check(repair=True)
    assert findings and all(finding.repaired for finding in findings)
    assert opened().check(repair=False) == []
    assert bodies(opened().lease("jobs", 5, 60.0)) == [0, 1, 2]
    assert notes(path) == ["keep me"]


@pytest.mark.parametrize("also", ["a hole in an index", "a lost page", ""])
def test_a_column_that_another_program_added_is_no_damage_and_stays(
    also: str, opened: Callable[[], SqliteStore], path: Path
) -> None:
    publish_numbers(opened(), 3)
    opened().close()
    damage(path, "alter table messages add column note text default 'keep me'")
    publish(opened(), 3)
    assert opened().check(repair=False) == []
    opened().close()
    if also == "a hole in an index":
        damage(path, "drop index messages_id")
    elif also:
        page, data = page_of(path, "unique_keys"), bytearray(path.read_bytes())
        data[(page - 1) * PAGE : page * PAGE] = b"\xff" * PAGE
        path.write_bytes(data)
    findings = opened().check(repair=True)
    assert bool(findings) == bool(also) and all(finding.repaired for finding in findings)
    assert sorted(bodies(opened().lease("jobs", 5, 60.0))) == [0, 1, 2, 3]
    opened().close()
    with closing(sqlite3.connect(path)) as connection:
        assert {row[0] for row in connection.execute("select note from messages")} == {"keep me"}


def all_rows(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("select * from messages").fetchall()


def test_g10_a_repair_refuses_tables_that_another_program_changed(
    opened: Callable[[], SqliteStore], path: Path
) -> None:
    publish_numbers(opened(), 3)
    opened().close()
    damage(path, "alter table messages drop column crc")
    rows = all_rows(path)
    findings = opened().check(repair=True)
    assert findings and not any(finding.repaired for finding in findings)
    assert "has 17 columns; expected 18: seq, queue_id, state" in findings[0].remedy
    opened().close()
    assert all_rows(path) == rows and not [*path.parent.glob("*.damaged-*")]


def test_a_repair_whose_first_way_fails_keeps_one_copy_of_the_damaged_file(
    opened: Callable[[], SqliteStore], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_numbers(opened(), 3)
    opened().close()
    change = "update sqlite_schema set sql = replace(sql, 'desc', 'Desc') where name = 'messages_ready'"
    damage(path, "pragma writable_schema = on", change)

    class Torn:
        """A connection that cannot write the schema."""

        def __init__(self, connection: Connection) -> None:
            self._connection = connection

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

        def execute(self, statement: str, *values: Any) -> Any:
            if statement.startswith("update sqlite_schema"):
                raise apsw.CorruptError("database disk image is malformed")
            return self._connection.execute(statement, *values)

    despite = repair._connect_despite
    with monkeypatch.context() as patch:
        patch.setattr(repair, "_connect_despite", lambda path, busy: Torn(despite(path, busy)))
        findings = opened().check(repair=True)
    assert findings and all(finding.repaired for finding in findings)
    assert bodies(opened().lease("jobs", 5, 60.0)) == [0, 1, 2]
    assert len({each.name.removesuffix("-wal") for each in path.parent.glob("*.damaged-*")}) == 1


def test_the_copy_of_a_damaged_file_stays_if_its_header_was_overwritten(
    opened: Callable[[], SqliteStore], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_numbers(opened(), 3)
    opened().close()
    path.write_bytes(bad := b"\xff" * PAGE + path.read_bytes()[PAGE:])

    def fail(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(repair, "sync", fail)
        findings = opened().check(repair=True)
    [kept] = path.parent.glob("*.damaged-*")
    assert kept.read_bytes() == bad != path.read_bytes()
    assert findings and not any(finding.repaired for finding in findings) and str(kept) in findings[0].remedy
    findings = opened().check(repair=True)
    assert all(finding.repaired or finding.ordinary for finding in findings)
    assert sorted(bodies(opened().lease("jobs", 5, 60.0))) == [0, 1, 2]


def test_a_repair_that_would_lose_topics_is_refused(
    opened: Callable[[], SqliteStore], path: Path, tmp_path: Path
) -> None:
    publish_numbers(opened(), 3)
    topics = SqliteTopics(path)
    topics.create("chat", Shape())
    topics.append("chat", [NewRecord(b"x")])
    topics.close()
    opened().close()
    good = path.read_bytes()
    for page in pages_of_schema(path):
        path.write_bytes(bad := good[: (page - 1) * PAGE] + bytes(PAGE) + good[page * PAGE :])
        findings = opened().check(repair=True)
        assert findings and not any(finding.repaired for finding in findings)
        opened().close()
        assert path.read_bytes() == bad and not [*path.parent.glob("*damaged*")]
        other = SqliteStore(tmp_path / f"other-{page}.db", clock=ManualClock())
        assert other.rescue(path) == 3
        other.close()
