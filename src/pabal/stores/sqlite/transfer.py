"""Take in messages from another store with their state, attempts, due time and failure."""

from collections.abc import Sequence
from functools import partial
from typing import Any
from zlib import crc32

from pabal.names import check_id, check_name
from pabal.sql.writer import Transaction
from pabal.store import Entry
from pabal.stores.rows import DONE, HELD, NUMBERS, READY, failure_text
from pabal.stores.sqlite.bodies import Document, Place
from pabal.stores.sqlite.groups import head
from pabal.stores.sqlite.queues import Queues

_TAKE_IN = """
insert into messages (queue_id, state, attempt, priority, due_at, state_since, id, target, grp, dedup_key, dedup_until,
expires_at, failure, crc, document) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (queue_id, id) do nothing"""

# A key that another message has stays with that message.
_KEEP_UNIQUE = """
insert into unique_keys (queue_id, key, id) values (?1, ?2, ?3) on conflict (queue_id, key) do update set id = ?3
where not exists (select 1 from messages where queue_id = ?1 and messages.id = unique_keys.id and state < 4)"""


class Importer(Queues):
    def carry(self, queue: str, entries: Sequence[Entry], *, window: float = 300.0) -> list[str]:
        """Store the entries that are not there yet, durably; return their ids."""
        if not entries:
            return []
        entries = list({entry.id: entry for entry in reversed(entries)}.values())[::-1]  # of an id, the first
        places = self._places(check_name(queue), entries)
        taken = self._db.write(partial(self._take_in, queue, entries, places, window), durable=True)
        if self._bodies.apart:
            self._bodies.drop(place for id, (place, _) in places.items() if id not in taken)
        return [entry.id for entry in entries if entry.id in taken]

    def _places(self, queue: str, entries: Sequence[Entry]) -> dict[str, tuple[Place, int]]:
        """Encode the messages and store the bodies; return, by id, their column value and checksum."""
        documents = [
            Document(queue, check_id(entry.id), self._codec.encode(entry.message, queue=queue))
            for entry in entries
            if entry.message is not None
        ]
        found: Sequence[Place] = [document.data for document in documents]
        if self._bodies.apart and documents:
            found = self._bodies.put(documents)
        return {document.id: (place, crc32(document.data)) for document, place in zip(documents, found, strict=True)}

    def _take_in(
        self,
        queue: str,
        entries: Sequence[Entry],
        places: dict[str, tuple[Place, int]],
        window: float,
        tx: Transaction,
    ) -> set[str]:
        self._db.reserve.require(tx.connection)
        number = self._number_in(tx, queue)
        if self._bodies.apart:
            self._bodies.confirm(place for place, _ in places.values())
        taken = set()
        for entry in entries:
            place, crc = places.get(entry.id, (None, None))
            if tx.change(_TAKE_IN, (number, *self._row(tx, number, entry, window), crc, place)):
                taken.add(entry.id)
                if entry.message is not None and entry.message.unique and NUMBERS[entry.state] < DONE:
                    tx.run(_KEEP_UNIQUE, (number, entry.message.unique, entry.id))
        if taken:
            tx.wakeups[queue] = number
        return taken

    def _row(self, tx: Transaction, number: int, entry: Entry, window: float) -> tuple[Any, ...]:
        now, message, state = self._clock.now(), entry.message, NUMBERS[entry.state]
        failure = failure_text(entry.failure)
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
