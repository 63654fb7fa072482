"""Check and repair: what damage, crashes and strangers leave in a database and its body folder.

Never revives what is dead, and touches no message that somebody holds.
"""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from pabal.clock import Clock
from pabal.codec import Codec
from pabal.errors import DecodeError, StoreFailed
from pabal.sql.connection import Connection
from pabal.sql.sqlite import Database
from pabal.sql.writer import Transaction
from pabal.store import Finding
from pabal.stores.sqlite.bodies import Bodies, BodyFolder
from pabal.stores.sqlite.groups import release
from pabal.stores.sqlite.moves import take_spent
from pabal.stores.sqlite.rows import DEAD, HELD, STATES, DocumentGone, fault, read_message

_SLICE = 500
_LEFTOVER_SECONDS = 60.0  # a younger file may belong to a publish that has not committed yet

_DOCUMENTS = """
select messages.seq, queues.name, messages.queue_id, messages.id, state, attempt, crc, document
from messages join queues on queues.id = messages.queue_id
where messages.seq > ? and state <> 2 and state not in (4, 6) order by messages.seq limit ?"""
_SET_ASIDE = (
    "update messages set state = ?, moment = ?, failure = ? where seq = ? and id = ? and state = ? returning grp"
)
_HELD_GROUPS = """
select distinct queues.name, queue_id, grp from messages join queues on queues.id = queue_id
where state = 3 and state > 2"""
_NAMED = """
select exists (select 1 from messages join queues on queues.id = queue_id
  where queues.name = ?1 and messages.id = ?2 and document = ?3) or exists (select 1 from spent where name = ?3)"""


def check(db: Database, bodies: Bodies, codec: Codec, clock: Clock, *, repair: bool) -> list[Finding]:
    """Return everything found, in the order of its weight."""
    findings = list(_check_file(db))
    if findings:
        return findings  # nothing in a damaged file can be relied on
    findings += _check_documents(db, bodies, codec, clock, repair)
    findings += _check_groups(db, repair)
    if isinstance(bodies, BodyFolder):
        findings += _check_leftovers(db, bodies, repair)
    if not db.room.ballast.present:
        if repair:
            db.room.ballast.restore()
        findings.append(
            Finding(f"{db.path}.ballast", "there is no ballast", "make it when there is room", db.room.ballast.present)
        )
    return findings


def _check_file(db: Database) -> Iterator[Finding]:
    for (answer,) in db.read(lambda connection: connection.execute("pragma quick_check").fetchall()):
        if answer != "ok":
            yield Finding(str(db.path), str(answer), "restore a copy, or save what can be read with sqlite3 .recover")


def _check_documents(db: Database, bodies: Bodies, codec: Codec, clock: Clock, repair: bool) -> Iterator[Finding]:
    seq = 0
    while rows := db.read(_slice_after(seq)):
        seq = rows[-1][0]
        for row in rows:
            try:
                exc = _fault(row, bodies, codec)
            except StoreFailed as failed:
                yield Finding(f"{row[1]}/{row[3]}", str(failed), "see to the disk")
                continue
            if exc is not None:
                yield _mend(db, clock, row, exc, repair=repair)


def _slice_after(seq: int) -> Any:
    def work(connection: Connection) -> list[tuple[Any, ...]]:
        return connection.execute(_DOCUMENTS, (seq, _SLICE)).fetchall()

    return work


def _fault(row: tuple[Any, ...], bodies: Bodies, codec: Codec) -> DecodeError | None:
    *_, state, _, crc, place = row
    try:
        read_message(codec, bodies, place, crc)
    except DocumentGone as exc:
        # A dead one without its document has been told of already, and can only be purged.
        return None if state == DEAD else exc
    except DecodeError as exc:
        return exc
    return None


def _mend(db: Database, clock: Clock, row: tuple[Any, ...], exc: DecodeError, *, repair: bool) -> Finding:
    seq, queue, number, id, was, attempt, *_ = row
    state, failure = fault(exc, clock.now(), attempt)

    def work(tx: Transaction) -> bool:
        found = tx.run(_SET_ASIDE, (state, clock.now(), failure, seq, id, was)).fetchall()
        for changed in found:
            release(tx, number, queue, changed)
        return bool(found)

    done = db.write(work, durable=True, essential=True) if repair else False
    return Finding(f"{queue}/{id}", exc.reason, f"set it aside as {STATES[state]}", done)


def _check_groups(db: Database, repair: bool) -> Iterator[Finding]:
    groups: Any = db.read(lambda connection: connection.execute(_HELD_GROUPS).fetchall())
    for queue, number, group in groups:

        def work(tx: Transaction, queue: str = queue, number: int = number, group: str = group) -> bool:
            release(tx, number, queue, [group])
            return queue in tx.rings

        if db.read(_stuck(number, group)):
            done = db.write(work, durable=True, essential=True) if repair else False
            yield Finding(
                f"{queue}, group {group}", "it waits for a message that has left", "let the next come up", done
            )


def _stuck(number: int, group: str) -> Any:
    statement = "select state from messages where queue_id = ? and grp = ? and state < 4 order by seq limit 1"
    return lambda connection: connection.execute(statement, (number, group)).get == HELD


def _check_leftovers(db: Database, bodies: BodyFolder, repair: bool) -> Iterator[Finding]:
    while repair and (names := db.write(partial(take_spent, _SLICE), durable=True, essential=True)):
        bodies.drop(names)
    # Time of change, as the file system tells it: both readings come from the same clock.
    oldest = time.time() - _LEFTOVER_SECONDS
    leftovers = [
        name
        for name, stat in bodies.files()
        if max(stat.st_mtime, stat.st_ctime) <= oldest and not db.read(_named(name))
    ]
    if repair and leftovers:
        db.write(lambda tx: None, durable=True)  # on the disk too no message names them, before they go
    for name in leftovers:
        done = db.write(partial(_remove, bodies, name), durable=False) if repair else False
        yield Finding(f"bodies/{name}", "no message names this file", "remove it", done)


def _named(name: str) -> Any:
    queue, file = name.split("/", 1)
    id = file.removesuffix(".json").split("~")[0]
    return lambda connection: connection.execute(_NAMED, (queue, id, name)).get


def _remove(bodies: BodyFolder, name: str, tx: Transaction) -> bool:
    # Inside a transaction: whoever wants to name this file has to wait, and then finds it gone.
    if _named(name)(tx.connection):
        return False
    bodies.drop([name])
    return True
