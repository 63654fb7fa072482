"""The table of queues: numbers, which never change and are therefore cached, and settings."""

from collections.abc import Mapping
from typing import Any

from pabal import jsontext
from pabal.clock import Clock
from pabal.codec import Codec
from pabal.errors import InvalidName, NameTaken, QueueUnknown
from pabal.names import check_name, no_queue
from pabal.sql.connection import Conflict, Connection, check_text, damaged_index
from pabal.sql.sqlite import Database
from pabal.sql.writer import Transaction
from pabal.store import Counters, KnownSettings
from pabal.stores.consumers import FileRegister
from pabal.stores.counters import FileCounters
from pabal.stores.rows import read_settings
from pabal.stores.sqlite.bodies import Bodies

_NEW = "insert into queues (name) values (?) returning id"
_LISTED = """
select name from queues where not exists (select 1 from meta where key = 'deleted.' || queues.id)
or exists (select 1 from messages where queue_id = queues.id) order by name collate binary"""
_UNDELETE = "delete from meta where key = 'deleted.' || ?"
_THERE = """
select 1 from queues where name = ? collate binary and (
  not exists (select 1 from meta where key = 'deleted.' || queues.id)
  or exists (select 1 from messages where queue_id = queues.id))"""
# The name in the row itself, too: the index of names may be damaged and lead to the row of another queue.
_NAMED = """
select queues.id, queues.name, own.name, own.settings
from queues left join queues as own not indexed on own.id = queues.id where queues.name = ?"""


class Queues:
    """The database of a store and its queues: the base of the other parts of the store.

    `_known` caches the numbers of queues that were read from the database, so that they are certainly committed.
    """

    def __init__(self, db: Database, clock: Clock, codec: Codec, bodies: Bodies) -> None:
        self._db = db
        self._clock = clock
        self._codec = codec
        self._bodies = bodies
        self._known: dict[str, int] = {}
        self._counters = FileCounters(f"{db.path}.counters", clock)
        self._consumers = FileRegister(f"{db.path}.consumers", clock)

    def counters(self, queue: str) -> Counters:
        """Return the cumulative counts of a queue."""
        self._db.require_usable()
        return self._counters.total(check_name(queue))

    def queues(self) -> list[str]:
        """Return the name of every queue, sorted."""

        def look(db: Connection) -> list[str]:
            return [_legal(check_text(row[0])) for row in db.execute(_LISTED)]

        return self._db.read(look)

    def settings(self, queue: str) -> Mapping[str, Any] | None:
        """Return the document given to `configure`, or None."""
        return self._db.read(lambda db: _settings(db, queue))

    def configure(self, queue: str, settings: Mapping[str, Any], *, known: KnownSettings = ...) -> bool:
        """Keep a document for this queue and wake its watchers; with `known`, only if it has that document now."""
        text = jsontext.encode(dict(settings)).decode()
        check_name(queue)

        def work(tx: Transaction) -> bool:
            if known is not ... and known != _settings(tx.connection, queue):
                return False
            number = self._number_in(tx, queue)
            tx.run("update queues set settings = ? where id = ?", (text, number))
            tx.run(_UNDELETE, (number,))
            return True

        return self._db.write(work, durable=True, essential=True)

    def _number(self, queue: str) -> int | None:
        """Return the number of a queue, or None if there is no such queue."""
        number = self._known.get(queue)
        if number is None:
            check_name(queue)
            number, name, _ = self._db.read(lambda db: _named(db, queue))
            if number is None or name != queue:
                return None
            self._known[queue] = number
        return number

    def _check_exists(self, tx: Transaction, queue: str) -> None:
        """Raise QueueUnknown if there is no such queue."""
        if tx.run(_THERE, (queue,)).get is None:
            raise QueueUnknown(no_queue(queue, [row[0] for row in tx.run(_LISTED, ()).fetchall()]))

    def _number_in(self, tx: Transaction, queue: str) -> int:
        """Return the number of a queue, which is made if it is missing; its watchers are woken by the commit."""
        number = self._known.get(queue) or tx.wakeups.get(queue)
        if number is None:
            number, name, _ = _named(tx.connection, queue)
            if name != queue:
                raise NameTaken(f"queue {queue!r} differs from {name!r} only in case: use one of them")
            try:
                number = number or tx.run(_NEW, (queue,)).get
                tx.run(_UNDELETE, (number,))
            except Conflict as exc:
                raise damaged_index(tx.connection) from exc
        tx.wakeups[queue] = number
        return number


def _named(db: Connection, queue: str) -> tuple[int | None, str, Any]:
    """Return the number of a queue or None, its name, which may differ in case, and its settings.

    Raise StoreFailed if the row has another name than the index.
    """
    rows: list[Any] = db.execute(_NAMED, (queue,)).fetchall()
    for number, name, own, settings in rows:
        if own != name:
            raise damaged_index(db)
        return number, name, settings
    return None, queue, None


def _settings(db: Connection, queue: str) -> Mapping[str, Any] | None:
    _, name, settings = _named(db, queue)
    return read_settings(queue, settings) if name == queue else None


def _legal(name: str) -> str:
    """Return the name of a queue; raise TypeError if no queue can have it: its row is damaged."""
    try:
        return check_name(name)
    except InvalidName as exc:
        raise TypeError(str(exc)) from exc
