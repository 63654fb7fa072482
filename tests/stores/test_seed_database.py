"""A database of the original system is taken over when opened, and its readers still find their words."""

import json
from pathlib import Path
from typing import Any

import pytest

from pabal.errors import StoreRefused
from pabal.policy.policy import policy_from
from pabal.sql.connection import Connection, connect
from pabal.store import State
from pabal.stores.hybrid import HybridStore
from pabal.stores.sqlite import SqliteStore
from pabal.testing import ManualClock
from pabal.testing.store_place import ack, bodies, draft, drain, publish, take

SCHEMA = """
CREATE TABLE kv (
  key TEXT PRIMARY KEY, value TEXT NOT NULL, value_type TEXT NOT NULL,
  created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, expires_at INTEGER
);
CREATE INDEX idx_kv_type ON kv(value_type);
CREATE INDEX idx_kv_expires ON kv(expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE msg_index (
  queue TEXT NOT NULL, state TEXT NOT NULL, priority INTEGER NOT NULL DEFAULT 0, available_at INTEGER NOT NULL,
  lease_until INTEGER, attempt INTEGER NOT NULL DEFAULT 0,
  message_key TEXT NOT NULL REFERENCES kv(key) ON DELETE CASCADE, {more} PRIMARY KEY (message_key)
);
CREATE INDEX idx_msg_ready ON msg_index(queue, state, available_at, priority DESC);
CREATE INDEX idx_msg_lease ON msg_index(state, lease_until) WHERE state = 'inflight';
CREATE INDEX idx_msg_delayed ON msg_index(state, available_at) WHERE state = 'delayed';
CREATE INDEX idx_msg_dlq ON msg_index(queue, state) WHERE state = 'dlq';
"""
MORE = "dlq_reason TEXT, dlq_at INTEGER, target_consumer_id TEXT DEFAULT '', expired_at INTEGER,"
AT = 1_700_000_000_000


class Seed:
    """Writes a database as the original did."""

    def __init__(self, path: Path, more: str = MORE) -> None:
        self.path = path
        self.db = connect(path)
        self.db.execute(SCHEMA.format(more=more))

    def message(
        self, id: str, state: str = "ready", *, queue: str = "telemetry", payload: Any = None, **more: Any
    ) -> None:
        envelope = {
            "messageId": id,
            "queue": queue,
            "payload": json.dumps({"id": id}) if payload is None else payload,
            "attributes": more.pop("attributes", "{}"),
            "priority": more.get("priority", 0),
            "attempt": more.get("attempt", 0),
            "createdAt": AT,
        }
        self.kv(f"msg:{queue}:{id}", more.pop("value", json.dumps(envelope)), "message")
        self.row(f"msg:{queue}:{id}", state, queue=queue, **more)

    def kv(self, key: str, value: str, kind: str) -> None:
        self.db.execute("insert into kv values (?, ?, ?, ?, ?, null)", (key, value, kind, AT, AT))

    def row(self, key: str, state: str, *, queue: str = "telemetry", **more: Any) -> None:
        columns = {"queue": queue, "state": state, "available_at": AT, "message_key": key, **more}
        names = ", ".join(columns)
        marks = ", ".join("?" * len(columns))
        self.db.execute(f"insert into msg_index ({names}) values ({marks})", tuple(columns.values()))

    def open(self, clock: ManualClock) -> SqliteStore:
        self.db.close()
        return SqliteStore(self.path, clock=clock)


@pytest.fixture
def seed(tmp_path: Path) -> Seed:
    return Seed(tmp_path / "seed.db")


def test_messages_are_leased_like_any_other(seed: Seed, clock: ManualClock) -> None:
    seed.message("low", priority=0, payload='{"temp": 36.5, "rpm": 1200}', attributes='{"deviceId": "device-001"}')
    seed.message("high", priority=5, payload="not json", attempt=2)
    store = seed.open(clock)
    high, low = take(store, 10, queue="telemetry")
    assert (high.message.id, high.message.body, high.attempt) == ("high", "not json", 3)
    assert low.message.body == {"temp": 36.5, "rpm": 1200}
    assert low.message.attributes == {"deviceId": "device-001"}
    assert low.message.created_at == AT / 1000
    ack(store, high)
    ack(store, low)
    assert store.counts("telemetry")[State.DONE] == 2
    store.close()


def test_every_state_is_kept(seed: Seed, clock: ManualClock) -> None:
    due = int(clock.now() + 50) * 1000
    seed.message("delayed", "delayed", available_at=due)
    seed.message("inflight", "inflight", lease_until=due, attempt=1)
    seed.message("dead", "dlq", attempt=5, dlq_reason="retry limit exceeded (attempt 5)", dlq_at=AT + 5000)
    seed.message("archived", "archived")
    store = seed.open(clock)
    assert {state: n for state, n in store.counts("telemetry").items() if n} == {
        State.DELAYED: 1,
        State.INFLIGHT: 1,
        State.DEAD: 1,
        State.DONE: 1,
    }
    (lapsed,) = store.expired("telemetry", 10)
    assert (lapsed.message.id, lapsed.attempt) == ("inflight", 1)
    (dead,) = store.browse("telemetry", State.DEAD)
    assert dead.failure is not None
    assert (dead.failure.reason, dead.failure.at) == ("retry limit exceeded (attempt 5)", AT / 1000 + 5)
    assert take(store, 10, queue="telemetry") == []
    clock.advance(51)
    assert [lease.message.id for lease in take(store, 10, queue="telemetry")] == ["delayed"]
    assert store.revive("telemetry", ["dead"]) == ["dead"]
    store.close()


def test_target_and_expiry_are_kept(seed: Seed, clock: ManualClock) -> None:
    seed.message("mine", target_consumer_id="consumer-01")
    seed.message("brief", expired_at=int(clock.now() + 5) * 1000)
    store = seed.open(clock)
    assert [lease.message.id for lease in take(store, 10, queue="telemetry")] == ["brief"]
    assert [lease.message.id for lease in take(store, 10, queue="telemetry", consumer="consumer-01")] == ["mine"]
    store.close()


def test_a_database_without_the_later_columns_is_taken_over(tmp_path: Path, clock: ManualClock) -> None:
    seed = Seed(tmp_path / "old.db", more="")
    seed.message("m1", "dlq")
    seed.message("m2")
    store = seed.open(clock)
    assert drain(store, queue="telemetry") == [{"id": "m2"}]
    assert store.counts("telemetry")[State.DEAD] == 1
    store.close()


def test_policies_become_settings(seed: Seed, clock: ManualClock) -> None:
    policy = {"visibilityTimeoutSec": 12, "retry": {"limit": 3}, "dlq": {"enabled": True, "queue": "telemetry-dlq"}}
    seed.kv("policy:telemetry", json.dumps(policy), "policy")
    store = seed.open(clock)
    settings = store.settings("telemetry")
    assert settings == policy
    assert policy_from(settings).retry.limit == 3
    store.close()


def test_broken_envelopes_become_corrupt_and_nothing_is_thrown_away(seed: Seed, clock: ManualClock) -> None:
    seed.message("torn", value='{"messageId": "torn", "payl')
    seed.message("odd", "paused")
    seed.message("fine")
    seed.kv("msg:telemetry:stray", '{"payload": "1"}', "message")
    seed.kv("note:somebody", "hello", "text")
    seed.row("msg:telemetry:gone", "ready")
    store = seed.open(clock)
    assert drain(store, queue="telemetry") == [{"id": "fine"}]
    assert {entry.id: entry.data for entry in store.browse("telemetry", State.CORRUPT)}.keys() == {
        "torn",
        "odd",
        "stray",
    }
    (gone,) = store.browse("telemetry", State.DEAD)
    assert gone.failure is not None and gone.failure.code == "MISSING_PAYLOAD"
    store.close()
    db = connect(seed.path)
    assert db.execute("select key, value from seed_kv").fetchall() == [("note:somebody", "hello")]
    db.close()


@pytest.mark.parametrize("name", ["-odd", "with space", "x" * 201])
def test_illegal_queue_names_are_named_and_nothing_is_changed(seed: Seed, clock: ManualClock, name: str) -> None:
    seed.message("m1", queue=name)
    with pytest.raises(StoreRefused, match="Nothing was changed") as refused:
        seed.open(clock)
    assert name[:70] in str(refused.value)
    db = connect(seed.path)
    assert db.execute("select count(*) from msg_index join kv on key = message_key").get == 1
    assert db.execute("select count(*) from sqlite_schema where name in ('messages', 'queues')").get == 0
    db.close()


def test_names_that_differ_only_in_case_are_refused(seed: Seed, clock: ManualClock) -> None:
    seed.message("m1", queue="jobs")
    seed.message("m2", queue="Jobs")
    with pytest.raises(StoreRefused, match="only in case"):
        seed.open(clock)


def test_it_is_taken_over_once(seed: Seed, clock: ManualClock) -> None:
    seed.message("m1")
    seed.open(clock).close()
    store = SqliteStore(seed.path, clock=clock)
    assert bodies(take(store, 10, queue="telemetry")) == [{"id": "m1"}]
    store.close()


# The views


def rows(path: Path, query: str) -> list[dict[str, Any]]:
    db = connect(path)
    cursor = db.execute(query)
    found = [dict(zip((column[0] for column in cursor.get_description()), row, strict=True)) for row in cursor]
    db.close()
    return found


def test_the_old_names_show_the_old_words(tmp_path: Path, clock: ManualClock) -> None:
    store = SqliteStore(tmp_path / "pabal.db", clock=clock)
    now = clock.now()
    publish(store, {"temp": 1}, queue="telemetry", id="m1", priority=3, attributes={"a": 1}, created_at=now)
    store.publish([draft("later", queue="telemetry", id="m2", delay=10.0, target="c1", expires_at=now + 60)])
    store.configure("telemetry", {"visibilityTimeoutSec": 5})
    take(store, 1, 30.0, queue="telemetry")
    store.close()
    first, second = rows(tmp_path / "pabal.db", "select * from msg_index order by message_key")
    assert first["message_key"] == "msg:telemetry:m1"
    assert (first["state"], first["priority"], first["attempt"]) == ("inflight", 3, 1)
    assert first["lease_until"] == pytest.approx((now + 30) * 1000, abs=2)
    assert (second["state"], second["available_at"]) == ("delayed", (now + 10) * 1000)
    assert (second["target_consumer_id"], second["expired_at"]) == ("c1", (now + 60) * 1000)
    values = {row["key"]: json.loads(row["value"]) for row in rows(tmp_path / "pabal.db", "select * from kv")}
    assert values["policy:telemetry"] == {"visibilityTimeoutSec": 5}
    assert values["msg:telemetry:m1"] == {
        "messageId": "m1",
        "queue": "telemetry",
        "payload": '{"temp":1}',
        "attributes": '{"a":1}',
        "priority": 3,
        "attempt": 1,
        "createdAt": now * 1000,
    }


def test_dead_is_dlq_with_its_reason_in_the_view(seed: Seed, clock: ManualClock) -> None:
    seed.message("dead", "dlq", attempt=5, dlq_reason="worn out", dlq_at=AT + 5000)
    seed.message("torn", value="{")
    seed.open(clock).close()
    found = {row["message_key"]: row for row in rows(seed.path, "select * from msg_index")}
    dead = found["msg:telemetry:dead"]
    assert (dead["state"], dead["dlq_reason"], dead["dlq_at"]) == ("dlq", "worn out", AT + 5000)
    assert found["msg:telemetry:torn"]["state"] == "corrupt"
    assert len(rows(seed.path, "select * from kv")) == 2


@pytest.mark.parametrize("statement", ["delete from kv", "insert into msg_index (queue) values ('x')"])
def test_the_views_are_read_only(tmp_path: Path, statement: str) -> None:
    SqliteStore(tmp_path / "pabal.db").close()
    db: Connection = connect(tmp_path / "pabal.db")
    with pytest.raises(Exception, match="is a view"):
        db.execute(statement)
    db.close()


def test_a_seed_database_under_a_hybrid_root_gets_body_files(tmp_path: Path, clock: ManualClock) -> None:
    root = tmp_path / "root"
    root.mkdir()
    seed = Seed(root / "pabal.db")
    seed.message("m1")
    seed.db.close()
    store = HybridStore(root, clock=clock)
    assert b'"payload":{"id":"m1"}' in (root / "bodies" / "telemetry" / "m1.json").read_bytes()
    assert drain(store, queue="telemetry") == [{"id": "m1"}]
    store.close()
    assert len(rows(root / "pabal.db", "select * from kv")) == 1


def test_a_damaged_schema_of_the_original_is_left_as_it_is(seed: Seed) -> None:
    """A repair would drop the table that cannot be read, and keep the other one."""
    seed.message("a")
    seed.db.execute("pragma writable_schema = on").fetchall()
    seed.db.execute("update sqlite_schema set sql = 'create nothing' where name = 'msg_index'").fetchall()
    seed.db.close()
    before = seed.path.read_bytes()
    store = SqliteStore(seed.path, clock=ManualClock())
    findings = store.check(repair=True)
    store.close()
    assert findings and not any(finding.repaired for finding in findings)
    assert seed.path.read_bytes() == before and not [*seed.path.parent.glob("*damaged*")]
