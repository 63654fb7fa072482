"""Databases of the original system: their `kv` and `msg_index` tables are taken over when opened, in one transaction.

Nothing is thrown away: an envelope that cannot be read becomes corrupt, rows that are no messages stay in `seed_kv`.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple
from zlib import crc32

from pabal import jsontext
from pabal.clock import Clock
from pabal.codec import Codec
from pabal.errors import DecodeError, InvalidInput, StoreRefused
from pabal.message import MAX_PRIORITY, MIN_PRIORITY, Message
from pabal.names import check_id, check_name
from pabal.sql.connection import Connection
from pabal.store import Failure, FailureCode
from pabal.stores.sqlite.bodies import Bodies, Document
from pabal.stores.sqlite.rows import CORRUPT, DEAD, DELAYED, DONE, INFLIGHT, READY, text_of

_WORDS = {"ready": READY, "delayed": DELAYED, "inflight": INFLIGHT, "dlq": DEAD, "archived": DONE}
_INSERT = """
insert into messages (queue_id, state, attempt, priority, due_at, moment, id, target, grp, dedup_key, dedup_until,
expires_at, failure, crc, document) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""


class Tables(NamedTuple):
    """What the original's tables are called, and SQL that makes them in a new database, with their names left open."""

    kv: str = "kv"
    msg_index: str = "msg_index"
    template: str = ""


class Found(NamedTuple):
    """A message as the two tables tell it; times in seconds."""

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


def prepare_tables(connection: Connection, named: Tables) -> None:
    """Run the template in a new database, and give tables of other names those that are taken over."""
    found = {row[0] for row in connection.execute("select name from sqlite_schema where type = 'table'")}
    if named.template and not found:
        sql = named.template.replace("{{kv_table}}", named.kv).replace("{{msg_index_table}}", named.msg_index)
        connection.execute(sql).fetchall()
        found = {named.kv, named.msg_index}
    for name, ours in ((named.kv, "kv"), (named.msg_index, "msg_index")):
        if name != ours and name in found:
            connection.execute(f'alter table "{name}" rename to {ours}')


def show_tables(connection: Connection, named: Tables) -> None:
    """Offer the views under the names that are asked for too."""
    for name, ours in ((named.kv, "kv"), (named.msg_index, "msg_index")):
        if name != ours:
            connection.execute(f'create view if not exists "{name}" as select * from {ours}')


def set_tables_aside(connection: Connection) -> bool:
    """Free the two names for the views; say whether there is anything to take over."""
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
    numbers = _queues(connection)
    now = clock.now()
    rows = [_row(found, numbers[found.queue], codec, now) for found in _messages(connection)]
    rows += [_stray(key, value, numbers, now) for key, value in _strays(connection)]
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
    names.update(_parts(key)[0] for key, _ in _strays(connection))
    names.update(policies)
    _refuse_names(names)
    return {name: _queue(connection, name, policies.get(name)) for name in sorted(names)}


def _refuse_names(names: set[str]) -> None:
    illegal = []
    for name in names:
        try:
            check_name(name)
        except InvalidInput:
            illegal.append(name)
    folded: dict[str, str] = {}
    illegal += [name for name in sorted(names) if folded.setdefault(name.lower(), name) != name]
    if illegal:
        raise StoreRefused(
            f"queue names that cannot be taken over: {', '.join(repr(name)[:80] for name in sorted(illegal))}."
            " A name is 1-200 of letters, digits, '-', '_' and inner dots, and no two differ only in case."
            " Nothing was changed"
        )


def _queue(connection: Connection, name: str, policy: str | None) -> int:
    if policy is not None:
        try:
            jsontext.read(policy.encode())
        except InvalidInput as exc:
            raise StoreRefused(f"policy:{name} cannot be taken over: {exc}. Nothing was changed") from exc
    statement = "insert into queues (name, settings) values (?, ?) returning id"
    number: int = connection.execute(statement, (name, policy)).get
    return number


def _messages(connection: Connection) -> Iterator[Found]:
    columns = {row[1] for row in connection.execute("pragma table_info(seed_index)")}
    more = [
        name if name in columns else "null" for name in ("dlq_reason", "dlq_at", "target_consumer_id", "expired_at")
    ]
    query = f"""
select message_key, queue, state, priority, available_at, attempt, seed_kv.value, {", ".join(more)}
from seed_index left join seed_kv on seed_kv.key = message_key
order by coalesce(created_at, available_at), message_key"""
    for key, queue, state, priority, due, attempt, value, reason, died, target, expired in connection.execute(query):
        yield Found(
            key, queue, state, priority, due / 1000, attempt, value, reason or "", (died or 0) / 1000, target or "",
            expired / 1000 if expired else None,
        )  # fmt: skip


def _strays(connection: Connection) -> list[tuple[str, str]]:
    """Envelopes that no index row names: the original system could not see them."""
    statement = (
        "select key, value from seed_kv where key like 'msg:%' and key not in (select message_key from seed_index)"
    )
    rows: Any = connection.execute(statement)
    return list(rows)


def _row(found: Found, number: int, codec: Codec, now: float) -> tuple[Any, ...]:
    id = _id_of(found.key, found.queue)
    state = _WORDS.get(found.state)
    failure: Failure | None = None
    message, document = None, None
    if found.value is None:
        state, failure = DEAD, Failure(FailureCode.MISSING_PAYLOAD, "there was no envelope", now, found.attempt)
    else:
        try:
            if state is None:
                raise DecodeError(f"unknown state {found.state!r:.40}", b"")
            message = _message(found, id, codec)
            document = codec.encode(message, queue=found.queue)
        except DecodeError as exc:
            state, document = CORRUPT, found.value.encode()
            failure = Failure(FailureCode.CORRUPT, exc.reason, now, found.attempt)
    if state == DEAD and failure is None:
        failure = Failure(FailureCode.NACKED, found.reason, found.died_at or now, found.attempt)
    # A lease of the original carries no token that anybody could show: it has run out.
    moment = 0.0 if state == INFLIGHT else (found.died_at or now) if state == DEAD else now
    plain = message or Message(id=id, body=None)
    return (
        number, state, found.attempt, plain.priority, found.due_at, moment, plain.id, plain.target, None,
        plain.dedup_key or None, now if plain.dedup_key else None, plain.expires_at,
        None if failure is None else text_of(failure), None if document is None else crc32(document), document,
    )  # fmt: skip


def _message(found: Found, id: str, codec: Codec) -> Message:
    """Read a minimal envelope, whose payload and attributes are JSON text; the index knows better where both speak."""
    assert found.value is not None
    try:
        envelope = jsontext.read(found.value.encode())
    except InvalidInput as exc:
        raise DecodeError(f"{exc.code}: {exc}", found.value.encode()) from exc
    if not isinstance(envelope, dict):
        raise DecodeError("InvalidEnvelope: not an object", found.value.encode())
    if isinstance(envelope.get("payload"), str):
        envelope["payload"] = _parsed(envelope["payload"])
    if envelope.get("attributes") == "":
        del envelope["attributes"]
    envelope["priority"] = max(MIN_PRIORITY, min(MAX_PRIORITY, found.priority))
    envelope["messageId"] = id
    for name, value in (("targetConsumerId", found.target), ("expiredAt", (found.expires_at or 0) * 1000)):
        envelope[name] = value or envelope.get(name) or None
    return codec.decode(jsontext.encode(envelope), id=id, at=found.due_at)


def _parsed(payload: str) -> Any:
    try:
        return jsontext.read(payload.encode())
    except InvalidInput:
        return payload


def _stray(key: str, value: str, numbers: dict[str, int], now: float) -> tuple[Any, ...]:
    queue, id = _parts(key)
    failure = text_of(Failure(FailureCode.CORRUPT, "no row of msg_index named it", now))
    data = value.encode()
    return (
        numbers[queue], CORRUPT, 0, 0, now, now, _id_of(key, queue) if id else key, "", None, None, None, None,
        failure, crc32(data), data,
    )  # fmt: skip


def _parts(key: str) -> tuple[str, str]:
    _, queue, id = (key.split(":", 2) + [""])[:3]
    return queue, id


def _id_of(key: str, queue: str) -> str:
    id = key.removeprefix(f"msg:{queue}:")
    try:
        return check_id(id)
    except InvalidInput:
        return f"seed-{crc32(key.encode()):08x}"
