"""Taking in messages from another store as they stood there: state, attempts, due time and failure."""

from collections.abc import Sequence
from functools import partial
from typing import Any
from zlib import crc32

from pabal.clock import Clock
from pabal.codec import Codec
from pabal.names import check_id, check_name
from pabal.sql.sqlite import Database
from pabal.sql.writer import Transaction
from pabal.store import Entry, State
from pabal.stores.sqlite.bodies import Bodies, Document, Place
from pabal.stores.sqlite.groups import head
from pabal.stores.sqlite.queues import Queues, queue_id
from pabal.stores.sqlite.rows import DEAD, DELAYED, DONE, HELD, READY, text_of

_NUMBERS = {State.READY: READY, State.DELAYED: DELAYED, State.DONE: DONE, State.DEAD: DEAD}
_TAKE_IN = """
insert into messages (queue_id, state, attempt, priority, due_at, moment, id, target, grp, dedup_key, dedup_until,
expires_at, failure, crc, document) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (queue_id, id) do nothing"""


class Carrying:
    """Takes messages in. Those that are here already are left alone."""

    def __init__(self, db: Database, queues: Queues, clock: Clock, codec: Codec, bodies: Bodies) -> None:
        self._db = db
        self._queues = queues
        self._clock = clock
        self._codec = codec
        self._bodies = bodies

    def carry(self, queue: str, entries: Sequence[Entry], window: float) -> list[str]:
        """Store the entries that are not there yet, durably; return the ids of these."""
        if not entries:
            return []
        places = self._lay_down(check_name(queue), entries)
        taken = self._db.write(partial(self._insert, queue, entries, places, window), durable=True)
        if self._bodies.apart:
            self._bodies.drop(place for id, (place, _) in places.items() if id not in taken)
        return [entry.id for entry in entries if entry.id in taken]

    def _lay_down(self, queue: str, entries: Sequence[Entry]) -> dict[str, tuple[Place, int]]:
        documents = [
            Document(queue, check_id(entry.id), self._codec.encode(entry.message, queue=queue))
            for entry in entries
            if entry.message is not None
        ]
        found: Sequence[Place] = [document.data for document in documents]
        if self._bodies.apart and documents:
            found = self._bodies.put(documents)
        return {document.id: (place, crc32(document.data)) for document, place in zip(documents, found, strict=True)}

    def _insert(
        self,
        queue: str,
        entries: Sequence[Entry],
        places: dict[str, tuple[Place, int]],
        window: float,
        tx: Transaction,
    ) -> set[str]:
        self._db.room.require(tx.connection)
        number = queue_id(tx, self._queues.known, queue)
        if self._bodies.apart:
            self._bodies.confirm(place for place, _ in places.values())
        taken = set()
        for entry in entries:
            place, crc = places.get(entry.id, (None, None))
            if tx.change(_TAKE_IN, (number, *self._row(tx, number, entry, window), crc, place)):
                taken.add(entry.id)
        return taken

    def _row(self, tx: Transaction, number: int, entry: Entry, window: float) -> tuple[Any, ...]:
        now, message, state = self._clock.now(), entry.message, _NUMBERS[entry.state]
        failure = None if entry.failure is None else text_of(entry.failure)
        if message is None:
            return state, entry.attempt, 0, entry.due_at, now, entry.id, "", None, None, None, None, failure
        group, key = message.group or None, message.dedup_key or None
        if state == READY and group is not None and head(tx, number, group) is not None:
            state = HELD
        until = now + window if key else None
        return (
            *(state, entry.attempt, message.priority, entry.due_at, now, entry.id, message.target),
            *(group, key, until, message.expires_at, failure),
        )
