"""Fields that are mapped by position: Message, Envelope, the columns of SQL and what browse reads from them."""

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from pabal.envelope import Envelope, envelope_of, message_of
from pabal.message import Message
from pabal.sql.connection import connect
from pabal.store import Draft, Entry, Failure, State, Store, Terms
from pabal.stores.postgres import PostgresStore
from pabal.stores.sqlite import SqliteStore
from pabal.testing import ManualClock
from tests.services.postgres import PostgresServer

# Every field has a value of its own, so that two that change places are seen.
MESSAGE = Message(
    id="an-id",
    body={"a": "body"},
    type="a-type",
    version=7,
    sender="a-sender",
    target="a-target",
    attributes={"an": "attribute"},
    headers={"a": "header"},
    priority=5,
    group="a-group",
    dedup_key="a-key",
    thread_id="a-thread",
    trace_id="a-trace",
    reply_to="a-reply",
    created_at=1_700_000_000.25,
    expires_at=4_000_000_000.5,
    unique="a-unique",
)
OTHER_NAMES = {
    "id": "message_id",
    "body": "payload",
    "dedup_key": "deduplication_key",
    "created_at": "timestamp",
    "unique": "unique_key",
}


def test_every_field_of_a_message_has_a_value_of_its_own_here() -> None:
    values = [getattr(MESSAGE, name) for name in Message.__struct_fields__]
    assert all(values) and len({repr(value) for value in values}) == len(values)


def test_the_envelope_has_the_fields_of_a_message_and_two_more() -> None:
    names = {OTHER_NAMES.get(name, name) for name in Message.__struct_fields__}
    assert set(Envelope.__struct_fields__) == names | {"payload_encoding", "queue"}


def test_each_field_goes_to_its_own_place_in_the_envelope_and_back() -> None:
    envelope = envelope_of(MESSAGE, "a-queue")
    for name in Message.__struct_fields__:
        found = getattr(envelope, OTHER_NAMES.get(name, name))
        value = getattr(MESSAGE, name)
        assert (found.timestamp() if name in ("created_at", "expires_at") else found) == value, name
    assert (envelope.queue, envelope.payload_encoding) == ("a-queue", "")
    assert message_of(envelope) == MESSAGE
    binary = msgspec.structs.replace(MESSAGE, body=b"\0bytes")
    assert envelope_of(binary).payload_encoding == "base64"


# SQL


@dataclass
class Tables:
    """A store, and a look at its rows by the names of their columns."""

    store: Store
    rows: Any


@pytest.fixture(params=["sqlite", "postgres"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tables]:
    statement = "select queues.name, messages.* from {}messages join {}queues on queues.id = queue_id"
    if request.param == "sqlite":
        with (
            closing(SqliteStore(tmp_path / "a.db", clock=ManualClock())) as store,
            closing(connect(tmp_path / "a.db")) as db,
        ):

            def rows() -> dict[str, Any]:
                cursor = db.execute(statement.format("", ""))
                [row] = [dict(zip([name for name, *_ in cursor.get_description()], row, strict=True)) for row in cursor]
                return row

            yield Tables(store, rows)
        return
    postgres: PostgresServer = request.getfixturevalue("postgres")
    with postgres.schema() as schema, closing(PostgresStore(postgres.url, schema=schema)) as other:

        def found() -> dict[str, Any]:
            with psycopg.connect(postgres.url, row_factory=psycopg.rows.dict_row) as connection:
                [row] = connection.execute(statement.format(f"{schema}.", f"{schema}.")).fetchall()
                return {**row, "priority": -row["rank"]}

        yield Tables(other, found)


TERMS = Terms(dedup_window=90.0, max_bytes=12_345, max_waiting=9)
ALONE = msgspec.structs.replace(MESSAGE, group="", dedup_key="")


@pytest.mark.parametrize(
    "given", [MESSAGE, msgspec.structs.replace(MESSAGE, group="", dedup_key="")], ids=["all", "plain"]
)
def test_each_field_of_a_draft_goes_to_its_own_column(tables: Tables, given: Message) -> None:
    """With a group or a key a message takes another way through the statements than without."""
    tables.store.publish([Draft("a-queue", given, delay=40.0, terms=TERMS)])
    row = tables.rows()
    expected = {
        "name": "a-queue",
        "id": given.id,
        "target": given.target,
        "grp": given.group or None,
        "dedup_key": given.dedup_key or None,
        "priority": given.priority,
        "expires_at": given.expires_at,
        "state": 1,
        "attempt": 0,
        "failure": None,
    }
    row["expires_at"] = round(row["expires_at"], 1)  # a server adds the time of the call
    assert {name: row[name] for name in expected} == expected
    assert row["due_at"] - row["state_since"] == pytest.approx(40.0, abs=0.1)
    assert (row["dedup_until"] or 0) - row["state_since"] == (
        pytest.approx(90.0, abs=0.1) if given.dedup_key else -row["state_since"]
    )
    assert b"a-thread" in bytes(row["document"])


def test_each_column_goes_to_its_own_field_of_an_entry(tables: Tables) -> None:
    failure = Failure("A_CODE", "a reason", 12.5, 3, "a-consumer", 2)
    entry = Entry("a-queue", MESSAGE.id, State.DEAD, 6, 1_700_000_100.5, MESSAGE, failure)
    assert tables.store.carry("a-queue", [entry]) == [MESSAGE.id]  # type: ignore[attr-defined]  # both take entries in
    found = tables.store.find("a-queue", MESSAGE.id)
    assert found is not None
    assert found._replace(cursor="", due_at=round(found.due_at, 1)) == entry  # a server adds the time of the call
    assert tables.store.browse("a-queue", State.DEAD, after=found.cursor) == []


def test_the_statements_name_fields_of_the_terms() -> None:
    """Terms are passed whole, as JSON: what the functions look up must be in it."""
    folder = resources.files("pabal.stores.postgres")
    sql = "".join(file.read_text() for file in folder.iterdir() if file.name.endswith(".sql"))
    names = set(re.findall(r"\(t ->> '(\w+)'\)", sql))
    assert names == {"dedup_window", "max_waiting"} and names <= set(Terms._fields)
