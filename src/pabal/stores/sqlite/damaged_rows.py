"""Find damaged rows and restore them: messages from their documents, names and settings of queues.

The document of a message is the authority, since it has a checksum. Where it cannot be read either, the message is set
aside as corrupt. Only tables are read, never indexes, which may be damaged too.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar
from zlib import crc32

from pabal import jsontext
from pabal.clock import Clock
from pabal.codec import Codec
from pabal.errors import DecodeError, InvalidInput, StoreFailed
from pabal.ids import new_token
from pabal.message import MAX_SECONDS, Message
from pabal.names import check_id, check_name
from pabal.sql.connection import Conflict, Connection, SqliteError, damaged_index, open_reader
from pabal.sql.migrate import restore_version
from pabal.sql.repair import Fault, mend_faults
from pabal.store import Failure, FailureCode
from pabal.stores.rows import (
    CORRUPT,
    DEAD,
    DONE,
    HELD,
    INFLIGHT,
    STATES,
    DocumentGone,
    failure_text,
    is_failure,
    read_message,
    settings_fault,
    unreadable,
)
from pabal.stores.sqlite.bodies import Bodies

T = TypeVar("T")

_SLICE = 500

# The kinds of values that each column of a message may have, in the order of Row.
_KINDS = {
    "queue_id": ("integer",),
    "state": ("integer",),
    "attempt": ("integer",),
    "priority": ("integer",),
    "due_at": ("real",),
    "state_since": ("real",),
    "lease_until": ("real",),
    "token": ("text",),
    "id": ("text",),
    "target": ("text",),
    "grp": ("text", "null"),
    "dedup_key": ("text", "null"),
    "dedup_until": ("real", "null"),
    "expires_at": ("real", "null"),
    "failure": ("text", "null"),
    "crc": ("integer", "null"),
    "document": ("blob", "text", "null"),
}
# A damaged text need not be UTF-8, so texts are read as bytes, and a number that has become a text is not read.
# `not indexed`, so that nothing comes from a damaged index.
_COLUMNS = (
    f"cast({name} as blob)" if "text" in kinds else f"iif(typeof({name}) = 'text', null, {name})"
    for name, kinds in _KINDS.items()
)
_ROWS = f"""
select seq, {" || ' ' || ".join(f"typeof({name})" for name in _KINDS)}, {", ".join(_COLUMNS)}
from messages not indexed where seq > ? order by seq limit ?"""
_QUEUES = "select id, cast(name as blob), cast(settings as blob) from queues not indexed order by id"
_RESTORE = f"update messages set {', '.join(f'{name} = ?' for name in _KINDS)} where seq = ?"
_TWICE = """
select seq from messages as later where exists
(select 1 from messages where queue_id = later.queue_id and id = later.id and seq < later.seq)"""
_KEYS = """
select queue_id, cast(key as blob), id from unique_keys join messages using (queue_id, id) where state < 4"""
_LIVE = "select id, document, crc from messages where queue_id = ? and id = ? and state < 4"
_NO_TOKEN = "////////////////"
_PATIENCE = 1.0  # seconds
_MARGIN = 86_400.0  # seconds by which the clock of another machine may be ahead
# Indexes that say the state of a row, and which states other than done.
_STATED = {
    "messages_ready": "entry.state = 0",
    "messages_delayed": "entry.state = 1",
    "messages_inflight": "entry.state = 2",
    "messages_aside": "entry.state > 2 and entry.state <> 4",
}
_DOUBTED = """
select own.seq from messages as entry indexed by {} join messages as own not indexed on own.seq = entry.seq
where {} and own.state = 4 and own.document is not null and not exists
  (select 1 from messages as other indexed by messages_aside where other.queue_id = own.queue_id and other.state = 4
    and other.state > 2 and other.state_since = own.state_since and other.seq = own.seq)"""


class Row(NamedTuple):
    """A row of messages as it was found, and the names of the columns whose values cannot be right."""

    seq: int
    values: dict[str, Any]
    faults: tuple[str, ...]
    place: bytes | str | None  # the document or the name of its file


class Diagnosis(NamedTuple):
    """What is wrong with a row, and what it should be: new values of its columns. A queue that is not known is None."""

    where: str
    problem: str
    remedy: str
    values: dict[str, Any]


class Read(Protocol):
    def __call__(self, work: Callable[[Connection], T], /) -> T: ...


class Rows:
    """Finds damaged rows and says how to restore them. Reads only tables, never indexes."""

    def __init__(
        self, read: Read, codec: Codec, bodies: Bodies, clock: Clock, doubted: Collection[int] = frozenset()
    ) -> None:
        """Look at the rows through `read`, which calls its argument with a connection."""
        self._look = read
        self._codec = codec
        self._bodies = bodies
        self._now = clock.now()
        self._doubted = doubted
        latest = self._now + _MARGIN + MAX_SECONDS
        self._latest = dict.fromkeys(("due_at", "state_since", "dedup_until"), latest)
        self._latest["lease_until"] = clock.boot() + _MARGIN + MAX_SECONDS
        self._names = {row.number: row.name for row in read(queue_rows)}
        self._numbers = {name: number for number, name in self._names.items()}
        self._said: dict[int, Counter[str]] = {}  # the queues that documents name, for each number of a queue
        self._unique: dict[tuple[int, str], set[str]] = {}  # which live messages were published with which key

    def damaged(self, *, documents: bool) -> Iterator[tuple[Row, Diagnosis]]:
        """Yield the rows that are damaged; with `documents`, also those whose document is."""
        for row in self._all():
            suspect = row.faults or row.values["queue_id"] not in self._names
            if suspect or documents:
                diagnosis = self._judge(row, bool(suspect))
                if diagnosis is not None:
                    yield row, diagnosis

    def names(self) -> dict[int, str]:
        """Return the names, by number, of queues whose row is lost or has another name than all its documents.

        Call it after all of `damaged`.
        """
        found: dict[int, str] = {}
        for number, said in self._said.items():
            name = said.most_common(1)[0][0]
            if self._names.get(number) not in said and name not in self._numbers:
                found[number] = name
                self._numbers[name] = number
        return found

    def key_faults(self, db: Connection, *, lost: bool) -> list[Fault]:
        """Return the entries of unique keys that do not fit the documents. Call it after all of `damaged`.

        Missing ones too if some were `lost` or are damaged: otherwise those of revived messages may be missing.
        """
        faults, taken = [], set()
        entries: list[Any] = db.execute(_KEYS).fetchall()
        for number, stored, id in entries:
            key = stored.decode(errors="backslashreplace")
            if id in self._unique.get((number, key), ()) or self._key_of(db, number, id) in (None, key):
                taken.add((number, key))
                continue
            change = "delete from unique_keys where queue_id = ? and cast(key as blob) = ? and id = ?"
            where, problem = f"unique key {key}", f"message {id}, which has it, was published with another"
            faults.append(Fault(where, problem, "remove it", change, (number, stored, id)))
        for (number, key), ids in self._unique.items() if lost or faults else ():
            live = [id for id in sorted(ids) if db.execute(_LIVE, (number, id)).get is not None]
            if live and (number, key) not in taken:
                change = "insert or replace into unique_keys (queue_id, key, id) values (?, ?, ?)"
                where, problem = f"unique key {key}", f"message {live[0]} was published with it, and has it not"
                faults.append(Fault(where, problem, "give it back", change, (number, key, live[0])))
        return faults

    def _key_of(self, db: Connection, number: int, id: str) -> str | None:
        """Return the unique key with which a message was published, or None if its document cannot be read."""
        rows: list[Any] = db.execute(_LIVE, (number, id)).fetchall()
        for _, place, crc in rows:
            with suppress(DecodeError, StoreFailed, ValueError):
                data = place if isinstance(place, bytes) else self._bodies.get(place)
                return read_message(self._codec, data, crc).unique
        return None

    def _all(self) -> Iterator[Row]:
        seq = -1 << 63
        while found := self._look(partial(_slice_after, seq)):
            for each in found:
                seq = each[0]
                row = _row(each)
                yield row._replace(faults=(*row.faults, *self._impossible(row)))

    def _impossible(self, row: Row) -> Iterator[str]:
        """Yield the columns whose values are of the right kind, but cannot be."""
        values = {name: value for name, value in row.values.items() if name not in row.faults}
        if values.get("state") == HELD and values.get("grp", "") is None:
            yield "grp"
        if row.seq in self._doubted and values.get("state") == DONE and row.values["document"] is not None:
            yield "state"
        for name, latest in self._latest.items():
            if isinstance(values.get(name), float) and not values[name] <= latest:
                yield name

    def _judge(self, row: Row, suspect: bool) -> Diagnosis | None:
        state = row.values["state"]
        if not suspect and state in (DONE, CORRUPT):
            return None
        message, exc, queue = self._read(row)
        if message is not None and message.unique and not suspect and state < DONE:
            self._unique.setdefault((row.values["queue_id"], message.unique), set()).add(message.id)
        if message is None and not suspect and state == INFLIGHT:
            return None  # its holder may be settling it; if not, it is set aside when its lease ends
        if isinstance(exc, DocumentGone) and (found := self._usual_place(row)):
            row = row._replace(place=found)
            message, exc, queue = self._read(row)
        where = f"{self._names.get(row.values['queue_id'], queue or 'damaged')}/{_shown(row)}"
        if message is not None:
            return self._restored(row, message, queue, where)
        if isinstance(exc, StoreFailed):
            return Diagnosis(where, str(exc), "see to the disk", {})
        if not suspect and state == DEAD and isinstance(exc, DocumentGone):
            return None  # it was reported before, and can only be purged
        return self._aside(row, exc, suspect, where)

    def _read(self, row: Row) -> tuple[Message | None, Exception | None, str]:
        try:
            data = row.place if isinstance(row.place, bytes) else self._bodies.get(row.place)
            message = read_message(self._codec, data, row.values["crc"])
            document = jsontext.decode(data) if data else None
            queue = document.get("queue") if isinstance(document, dict) else ""
            if not isinstance(queue, str) or not is_legal(check_name, queue):
                queue = ""
            if queue and "queue_id" not in row.faults:
                self._said.setdefault(row.values["queue_id"], Counter())[queue] += 1
            return message, None, queue
        except (DecodeError, StoreFailed) as exc:
            return None, exc, ""
        except ValueError as exc:
            return None, DecodeError(str(exc), b""), ""

    def _usual_place(self, row: Row) -> str:
        """Return the usual name of the file of a message whose row names another, if its checksum is right."""
        queue, id, crc = self._names.get(row.values["queue_id"]), row.values["id"], row.values["crc"]
        place = f"{queue}/{id}.json"
        if not self._bodies.apart or queue is None or not is_legal(check_id, id):
            return ""
        try:
            data = self._bodies.get(place)
        except (DecodeError, StoreFailed):
            return ""
        return place if data is not None and crc32(data) == crc else ""

    def _restored(self, row: Row, message: Message, queue: str, where: str) -> Diagnosis | None:
        """Return what a row must be to fit its document."""
        values = _usable(row, self._now)
        number = self._numbers.get(queue, values["queue_id"])
        values |= {"queue_id": number, "id": message.id, "target": message.target, "priority": message.priority}
        values |= {"grp": message.group or None, "dedup_key": message.dedup_key or None, "document": row.place}
        if "expires_at" in row.faults:
            values["expires_at"] = message.expires_at
        if "state" in row.faults or values["state"] == HELD and values["grp"] is None:
            failure = Failure(FailureCode.CORRUPT, "its state was damaged", self._now)
            values |= {"state": DEAD, "failure": failure_text(failure)}
        changed = sorted({name for name in values if values[name] != row.values[name]} | set(row.faults))
        if not changed:
            return None
        return Diagnosis(where, f"its row is damaged: {', '.join(changed)}", "restore it from its document", values)

    def _aside(self, row: Row, exc: Exception | None, suspect: bool, where: str) -> Diagnosis:
        """Return how to set a message aside whose document cannot be read."""
        values = _usable(row, self._now)
        if isinstance(exc, DocumentGone) and "document" in row.faults:
            exc = DecodeError("the name of its file is damaged", b"")  # what is left of it is kept
        if values["queue_id"] not in self._names:
            values["queue_id"] = None
        if {"id", "queue_id"} & set(row.faults) or not is_legal(check_id, values["id"]):
            values["id"] = f"damaged-{row.seq}"
        problem = exc.reason if isinstance(exc, DecodeError) else str(exc)
        if row.values["state"] == DONE and "state" not in row.faults:
            return Diagnosis(where, f"its row is damaged: {', '.join(row.faults)}", "restore it", values)
        if suspect and row.faults:
            problem = f"{problem}; its row is damaged: {', '.join(row.faults)}"
        reason = exc if isinstance(exc, DecodeError) else DecodeError(problem, b"")
        state, _ = unreadable(reason, self._now, values["attempt"])
        code = FailureCode.MISSING_PAYLOAD if state == DEAD else FailureCode.CORRUPT
        failure = failure_text(Failure(code, problem, self._now, values["attempt"]))
        values |= {"state": state, "state_since": self._now, "failure": failure}
        return Diagnosis(where, problem, f"set it aside as {STATES[state]}", values)


def _slice_after(seq: int, db: Connection, many: int = _SLICE) -> list[Any]:
    found: list[Any] = db.execute(_ROWS, (seq, many)).fetchall()
    for row in found:
        if row[0] <= seq:  # it would be found again for ever
            raise damaged_index(db)
        seq = row[0]
    return found


def _row(found: Any) -> Row:
    seq, kinds, *columns = found
    values = dict(zip(_KINDS, columns, strict=True))
    faults = []
    for name, kind in zip(_KINDS, kinds.split(" "), strict=True):
        if kind not in _KINDS[name]:
            faults.append(name)
        elif kind == "text":
            try:
                values[name] = values[name].decode()
            except UnicodeDecodeError:
                faults.append(name)
    if "state" not in faults and not 0 <= values["state"] <= CORRUPT:
        faults.append("state")
    if "id" not in faults and not is_legal(check_id, values["id"]):
        faults.append("id")
    if "failure" not in faults and values["failure"] is not None and not is_failure(values["failure"]):
        faults.append("failure")
    place = None if "document" in faults else values["document"]
    return Row(seq, values, tuple(faults), place)


def _usable(row: Row, now: float) -> dict[str, Any]:
    """Return the columns of a row, with a value that does no harm for each that is damaged."""
    harmless: dict[str, Any] = {"queue_id": None, "state": CORRUPT, "attempt": 0, "priority": 0, "due_at": now}
    harmless |= {"state_since": now}
    harmless |= {"lease_until": 0.0, "token": _NO_TOKEN, "id": f"damaged-{row.seq}", "target": ""}
    harmless["failure"] = failure_text(Failure(FailureCode.CORRUPT, "the failure in its row was damaged", now))
    harmless["document"] = row.values["document"]  # as bytes: nothing can be read from it, and nothing is lost
    return {name: harmless.get(name) if name in row.faults else value for name, value in row.values.items()}


def is_legal(check: Callable[[str], str], value: Any) -> bool:
    """Return whether `check` accepts a name or an id that may be damaged."""
    try:
        check(value)
    except InvalidInput:
        return False
    return True


def _shown(row: Row) -> str:
    id = row.values["id"]
    return id if isinstance(id, str) else f"row {row.seq}, id {id!r:.60}"


class QueueRow(NamedTuple):
    """A row of queues as it was found, and a name for the queue if its own cannot be read."""

    number: int
    found: Any
    name: str
    settings: bytes | None


def queue_rows(db: Connection) -> list[QueueRow]:
    """Return all rows of queues."""
    rows = []
    for number, found, settings in db.execute(_QUEUES):
        try:
            name = check_name(found.decode())
        except (UnicodeDecodeError, AttributeError, InvalidInput):
            name = f"damaged-{number}"
        rows.append(QueueRow(number, found, name, settings))
    return rows


def queue_faults(db: Connection) -> list[Fault]:
    """Return the names and the settings of queues that cannot be read."""
    faults = []
    for number, found, name, settings in queue_rows(db):
        if found != name.encode():
            problem = f"its name {found!r:.60} cannot be read"
            change = "update queues set name = ? where id = ?"
            faults.append(Fault(name, problem, f"name it {name}", change, (name, number)))
        if fault := settings_fault(settings):
            problem = f"its settings cannot be used: {fault}"
            change = "update queues set settings = null where id = ?"
            kept = f"set_aside.{name}.{new_token()}", settings
            faults.append(Fault(name, problem, "set them aside", change, (number,), kept))
    return faults


# Restoring


def restore(db: Connection, row: Row, diagnosis: Diagnosis) -> None:
    """Give a damaged row the values that it should have; a second row of one id is set aside."""
    if not diagnosis.values:
        return
    values = dict(diagnosis.values)
    if values["queue_id"] is None:
        values["queue_id"] = _queue_of_lost(db)
    try:
        db.execute(_RESTORE, (*values.values(), row.seq)).fetchall()
    except Conflict:
        reason = Failure(FailureCode.CORRUPT, f"another message has its id {values['id']}")
        values |= {"id": f"damaged-{row.seq}", "state": CORRUPT, "failure": failure_text(reason), "grp": None}
        db.execute(_RESTORE, (*values.values(), row.seq)).fetchall()


def _queue_of_lost(db: Connection) -> int:
    """Return the number of the queue for messages whose queue is not known; it is made if it is missing."""
    found: int | None = db.execute("select id from queues where name = 'damaged'").get
    return found or db.execute("insert into queues (name) values ('damaged') returning id").get


def name_queues(connection: Connection, names: Mapping[int, str]) -> None:
    """Give queues the names that their documents say; the row of a queue that is lost is made again."""
    for number, name in names.items():
        connection.execute(
            "insert into queues (id, name) values (?1, ?2) on conflict (id) do update set name = ?2", (number, name)
        ).fetchall()


def mend(
    connection: Connection, codec: Codec, bodies: Bodies, clock: Clock, doubted: Collection[int] = frozenset()
) -> int:
    """Restore or set aside every row and every setting that cannot be read; return how many.

    `doubted` has the numbers of rows whose state cannot be believed.
    """
    rows = Rows(lambda work: work(connection), codec, bodies, clock)
    deque(rows.damaged(documents=False), 0)
    names = rows.names()
    name_queues(connection, names)
    changed = len(names) + len(mend_faults(connection, queue_faults(connection)))
    rows = Rows(lambda work: work(connection), codec, bodies, clock, doubted)
    for row, diagnosis in list(rows.damaged(documents=False)):
        restore(connection, row, diagnosis)
        changed += 1
    return changed


def mend_copy(
    connection: Connection, codec: Codec, bodies: Bodies, clock: Clock, doubted: Collection[int] = frozenset()
) -> int:
    """Mend tables whose indexes may be missing, and set second rows of one id aside; return how many rows."""
    if not connection.execute("select 1 from sqlite_schema where name = 'messages'").fetchall():
        return 0
    connection.execute("create index temporary_id on messages (queue_id, id)").fetchall()
    changed = mend(connection, codec, bodies, clock, doubted)
    reason = failure_text(Failure(FailureCode.CORRUPT, "another message has its id", clock.now()))
    twice = connection.execute(_TWICE).fetchall()
    for (seq,) in twice:
        connection.execute(
            "update messages set id = ?, state = 6, grp = null, failure = ? where seq = ?",
            (f"damaged-{seq}", reason, seq),
        ).fetchall()
    connection.execute("drop index temporary_id").fetchall()
    restore_version(connection, "queues", __package__)
    return changed + len(twice)


def doubted_states(path: Path) -> set[int]:
    """Return the numbers of rows that are done with a document, while an index has them in another state.

    One of both is damaged. If it is the row, retention would remove a message that was never handled.
    """
    found: set[int] = set()
    with suppress(SqliteError, TypeError):  # nothing is known of an index that cannot be read
        connection, _ = open_reader(path, _PATIENCE)
        try:
            for index, term in _STATED.items():
                found.update(int(row[0]) for row in connection.execute(_DOUBTED.format(index, term)))
        finally:
            connection.close()
    return found


def is_unchanged(row: Row, db: Connection) -> bool:
    """Say whether a row is as it was found: neither settled nor leased again since."""
    return [_row(found)._replace(faults=row.faults) for found in _slice_after(row.seq - 1, db, 1)] == [row]
