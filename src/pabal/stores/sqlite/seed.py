"""Databases of the original system: opening one takes over its tables `kv` and `msg_index`, in one transaction.

Nothing is dropped: an envelope that cannot be read becomes corrupt, and rows that are no messages stay in `seed_kv`.
The index of a hybrid store is refused, since its payloads are files: `takeover.py` reads it with them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from zlib import crc32

from pabal import jsontext
from pabal.clock import Clock
from pabal.codec import Codec
from pabal.errors import DecodeError, InvalidInput, StoreRefused
from pabal.message import Message
from pabal.sql.connection import Connection
from pabal.store import Failure, FailureCode
from pabal.stores.original import envelope_in, failure_of, id_of, message_in, refuse_names
from pabal.stores.rows import CORRUPT, DEAD, DELAYED, DONE, INFLIGHT, READY, failure_text
from pabal.stores.sqlite.bodies import Bodies, Document

_WORDS = {"ready": READY, "delayed": DELAYED, "inflight": INFLIGHT, "dlq": DEAD, "archived": DONE}
_INSERT = """
insert into messages (queue_id, state, attempt, priority, due_at, state_since, id, target, grp, dedup_key, dedup_until,
expires_at, failure, crc, document) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""


class Tables(NamedTuple):
    """The names of the tables of the original system."""

    kv: str = "kv"
    msg_index: str = "msg_index"


class Found(NamedTuple):
    """A message of the two tables; times in seconds."""

    key: str
    queue: str
    state: str
    priority: int
    due_at: float
    attempt: int
    value: str | None
    reason: str
    died_at: float
    target: str
    expires_at: float | None


def rename_tables(connection: Connection, named: Tables) -> None:
    """Rename tables of other names, so that they are taken over."""
    found = {row[0] for row in connection.execute("select name from sqlite_schema where type = 'table'")}
    for name, ours in ((named.kv, "kv"), (named.msg_index, "msg_index")):
        if name != ours and name in found:
            connection.execute(f'alter table "{name}" rename to {ours}')


def show_tables(connection: Connection, named: Tables) -> None:
    """Make the views under the given names too."""
    for name, ours in ((named.kv, "kv"), (named.msg_index, "msg_index")):
        if name != ours:
            connection.execute(f'create view if not exists "{name}" as select * from {ours}')


def set_tables_aside(connection: Connection) -> bool:
    """Rename the two tables, because the views have their names; return whether there are any."""
    tables = {
        row[0]
        for row in connection.execute(
            "select name from sqlite_schema where type = 'table' and name in ('kv', 'msg_index')"
        )
    }
    if tables != {"kv", "msg_index"}:
        if tables:
            raise StoreRefused(
                f"the database has a table {tables.pop()!r}, which is not this program's: give another path"
            )
        return False
    connection.execute("alter table msg_index rename to seed_index; alter table kv rename to seed_kv")
    return True


def adopt(connection: Connection, codec: Codec, bodies: Bodies, clock: Clock) -> None:
    """Take over messages and policies from the tables set aside."""
    now = clock.now()
    try:
        numbers = _queues(connection)
        rows = [_row(found, numbers[found.queue], codec, now) for found in messages_in(connection)]
        rows += [_unindexed_row(key, value, numbers, now) for key, value in unindexed_in(connection)]
    except (TypeError, ValueError, AttributeError, OverflowError, KeyError) as exc:
        if isinstance(exc, InvalidInput):
            raise
        raise StoreRefused(
            f"a row of kv or msg_index has a value of a wrong type ({exc}). Nothing was changed"
        ) from exc
    names = {number: queue for queue, number in numbers.items()}
    places = bodies.put([Document(names[row[0]], row[6], row[-1]) for row in rows if row[-1] is not None])
    place = iter(places)
    connection.executemany(_INSERT, [row if row[-1] is None else (*row[:-1], next(place)) for row in rows])
    connection.execute("drop table seed_index; delete from seed_kv where key like 'msg:%' or key like 'policy:%'")
    if not connection.execute("select exists (select 1 from seed_kv)").get:
        connection.execute("drop table seed_kv")


def _queues(connection: Connection) -> dict[str, int]:
    policies = {
        key.removeprefix("policy:"): value
        for key, value in connection.execute("select key, value from seed_kv where key like 'policy:%'")
    }
    names = {row[0] for row in connection.execute("select distinct queue from seed_index")}
    names.update(parts_of(key)[0] for key, _ in unindexed_in(connection))
    names.update(policies)
    refuse_names(names)
    return {name: _queue(connection, name, policies.get(name)) for name in sorted(names)}


def _queue(connection: Connection, name: str, policy: str | None) -> int:
    if policy is not None:
        try:
            jsontext.read(bytes_of(policy))
        except InvalidInput as exc:
            raise StoreRefused(f"policy:{name} cannot be taken over: {exc}. Nothing was changed") from exc
    statement = "insert into queues (name, settings) values (?, ?) returning id"
    number: int = connection.execute(statement, (name, policy)).get
    return number


def messages_in(connection: Connection, only: str | None = None) -> Iterator[Found]:
    """Yield the messages of the index in the order of their times; of one queue if it is given."""
    columns = {row[1] for row in connection.execute("pragma table_info(seed_index)")}
    more = [
        name if name in columns else "null" for name in ("dlq_reason", "dlq_at", "target_consumer_id", "expired_at")
    ]
    query = f"""
select message_key, queue, state, priority, available_at, attempt, seed_kv.value, {", ".join(more)}
from seed_index left join seed_kv on seed_kv.key = message_key
where ?1 is null or queue = ?1 order by coalesce(created_at, available_at), message_key"""
    seen: set[str] = set()
    for key, queue, state, priority, due, attempt, value, reason, died, target, expired in connection.execute(
        query, (only,)
    ):
        if key in seen:
            continue  # later versions of the original have no primary key here
        seen.add(key)
        yield Found(
            key, queue, state, priority, due / 1000, attempt, value, reason or "", (died or 0) / 1000, target or "",
            expired / 1000 if expired else None,
        )  # fmt: skip


def unindexed_in(connection: Connection) -> list[tuple[str, str]]:
    """Return envelopes that no index row names: the original system could not see them."""
    statement = (
        "select key, value from seed_kv where key like 'msg:%' and key not in (select message_key from seed_index)"
    )
    rows: Any = connection.execute(statement)
    return list(rows)


def _row(found: Found, number: int, codec: Codec, now: float) -> tuple[Any, ...]:
    id = id_in(found.key, found.queue)
    state = _WORDS.get(found.state)
    failure: Failure | None = None
    message, document = None, None
    if found.value is None:
        state, failure = DEAD, Failure(FailureCode.MISSING_PAYLOAD, "there was no envelope", now, found.attempt)
    else:
        data = bytes_of(found.value)
        try:
            envelope = envelope_in(data)
            _require_payload(envelope)
            if state is None:
                raise DecodeError(f"unknown state {found.state!r:.40}", b"")
            message = message_at(found, envelope, data, id)
            document = codec.encode(message, queue=found.queue)
            if state == DEAD:
                failure = failure_of(envelope, found.attempt, found.died_at or now, found.reason)
        except DecodeError as exc:
            state, document = CORRUPT, data
            failure = Failure(FailureCode.CORRUPT, exc.reason, now, found.attempt)
    # A lease of the original system has no token, so nobody can settle it: its end is left in the past.
    state_since = failure.at if state == DEAD and failure else now
    plain = message or Message(id=id, body=None)
    return (
        number, state, found.attempt, plain.priority, found.due_at, state_since, plain.id, plain.target, None,
        plain.dedup_key or None, now if plain.dedup_key else None, plain.expires_at,
        failure_text(failure), None if document is None else crc32(document), document,
    )  # fmt: skip


def _require_payload(envelope: Mapping[str, Any]) -> None:
    """Raise StoreRefused for the row of a hybrid store, whose payload is a file that this database does not show."""
    if "payload" not in envelope and "payloadPath" in envelope:
        raise StoreRefused(
            f"the database is the index of a hybrid store of the original system, whose payloads are files "
            f"({envelope['payloadPath']!r:.200}): take it over into a new store with `pabal --url URL takeover "
            f"DATABASE --payloads FOLDER`. Nothing was changed"
        )


def message_at(found: Found, envelope: Mapping[str, Any], data: bytes, id: str) -> Message:
    """Read an envelope; fields of the index come first."""
    return message_in(
        envelope, data, id=id, at=found.due_at,
        priority=found.priority, target=found.target, expires_at=found.expires_at,
    )  # fmt: skip


def _unindexed_row(key: str, value: str, numbers: dict[str, int], now: float) -> tuple[Any, ...]:
    queue, id = parts_of(key)
    failure = failure_text(Failure(FailureCode.CORRUPT, "no row of msg_index named it", now))
    data = bytes_of(value)
    return (
        numbers[queue], CORRUPT, 0, 0, now, now, id_in(key, queue) if id else key, "", None, None, None, None,
        failure, crc32(data), data,
    )  # fmt: skip


def bytes_of(value: object) -> bytes:
    """Return a value of the original table as bytes: SQLite lets a column of text hold anything."""
    return value if isinstance(value, bytes) else str(value).encode()


def parts_of(key: str) -> tuple[str, str]:
    _, queue, id = (key.split(":", 2) + [""])[:3]
    return queue, id


def id_in(key: str, queue: str) -> str:
    return id_of(key.removeprefix(f"msg:{queue}:"), key)
