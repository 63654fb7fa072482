"""Publish: duplicates are not stored again, members of a group wait for its head, limits are kept."""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

from pabal.errors import PabalError, QueueFull, Uncertain
from pabal.sql.connection import Conflict, damaged_index
from pabal.sql.writer import Insert, Transaction
from pabal.store import Draft, Published
from pabal.stores.rows import DEAD, DELAYED, HELD, READY, EncodedDraft, encode_drafts, failure_text
from pabal.stores.sqlite.bodies import Document, Place
from pabal.stores.sqlite.groups import head
from pabal.stores.sqlite.queues import Queues

Placed: TypeAlias = EncodedDraft[Place]

_INSERT = Insert(
    "messages",
    "queue_id, state, priority, due_at, state_since, id, target, grp, dedup_key, dedup_until, expires_at, crc,"
    " document",
)
_FAILED = "update messages set failure = ? where queue_id = ? and id = ?"
_BY_ID = "select seq from messages where queue_id = ? and id = ?"
# The last one: after the wall clock stepped back, an earlier one may be inside its window again.
_BY_KEY = """
select seq from messages where queue_id = ? and dedup_key = ? and dedup_until > ? order by dedup_until desc limit 1"""
_BY_UNIQUE = """
select seq, id from unique_keys join messages using (queue_id, id) where queue_id = ? and key = ? and state < 4"""
# The row itself: the statements above read ids and keys from indexes, and a damaged one may have another.
_ROW = "select id from messages not indexed where seq = ? and queue_id = ? and {} = ?"
# A damaged table of keys may have the key of another message: its index has each key a second time.
_HAS_UNIQUE = "select 1 from unique_keys indexed by unique_keys_id where queue_id = ? and id = ? and key = ?"
_TAKE_UNIQUE = "insert or replace into unique_keys (queue_id, key, id) values (?, ?, ?)"
_WAITING = """
select (select count(*) from (select 1 from messages where queue_id = ?1 and state = 0 limit ?2))
  + (select count(*) from (select 1 from messages where queue_id = ?1 and state = 1 limit ?2))
  + (select count(*) from (select 1 from messages where queue_id = ?1 and state = 3 and state > 2 limit ?2))"""


class Publisher(Queues):
    def publish(self, drafts: Sequence[Draft]) -> list[Published]:
        """Store the messages durably, all or none."""
        if not drafts:
            return []
        documents = encode_drafts(drafts, self._codec)
        encoded: Sequence[Placed] = documents
        if drafts[0].queue not in self._known:
            self._number(drafts[0].queue)
        if self._bodies.apart:
            self._db.reserve.require()
            encoded = self._store_bodies(documents)
        try:
            try:
                answers = self._db.write(partial(self._insert, encoded, True, False), durable=True)
            except Conflict:
                # A generated id is there already: this call repeats a publish whose outcome was unknown.
                try:
                    answers = self._db.write(partial(self._insert, encoded, True, True), durable=True)
                except Conflict as exc:
                    raise self._db.read(damaged_index) from exc
        except Uncertain as exc:
            raise Uncertain(str(exc), tuple(draft.message.id for draft in drafts)) from exc.__cause__
        except PabalError:
            self._bodies.drop(place for _, place, _ in encoded)
            raise
        if self._bodies.apart:
            self._bodies.drop(item[1] for item, answer in zip(encoded, answers, strict=True) if answer.duplicate)
        self._counters.published(drafts, answers)
        return answers

    def _store_bodies(self, encoded: Sequence[EncodedDraft[bytes]]) -> Sequence[Placed]:
        """Write the documents to files; return the drafts with the names of the files."""
        places = self._bodies.put([Document(draft.queue, draft.message.id, data) for draft, data, _ in encoded])
        return [(draft, place, crc) for (draft, _, crc), place in zip(encoded, places, strict=True)]

    def _insert(self, encoded: Sequence[Placed], limited: bool, look: bool, tx: Transaction) -> list[Published]:
        """Insert the messages that are not there yet.

        `limited` keeps the disk reserve and `max_waiting`. `look` searches for every id, not only for those that
        callers chose.
        """
        if limited:
            self._db.reserve.require(tx.connection)
            if self._bodies.apart:
                self._bodies.confirm(place for _, place, _ in encoded)
        now = self._clock.now()
        answers: list[Published] = []
        values: list[Any] = []
        failures: list[tuple[str | None, int, str]] = []
        batch: _Batch | None = None
        name, number = "", 0
        for draft, place, crc in encoded:
            message, delay, terms = draft.message, draft.delay, draft.terms
            if draft.queue != name:
                name = draft.queue
                if draft.existing:
                    self._check_exists(tx, name)
                number = tx.wakeups[name] = self._known.get(name) or self._number_in(tx, name)
            id, key, group = message.id, message.dedup_key or None, message.group or None
            state = DELAYED if delay > 0 else READY
            if draft.failure is not None:
                state = DEAD
            until = None
            if draft.given_id or key or group or look or terms.max_waiting or message.unique:
                batch = batch or _Batch(tx, now, limited=limited, look=look)
                first, state = batch.admit(number, draft, state)
                if first is not None:
                    answers.append(Published(first, True))
                    continue
                until = now + terms.dedup_window if key else None
            due, priority, target, ends = now + delay, message.priority, message.target, message.expires_at
            values += (number, state, priority, due, now, id, target, group, key, until, ends, crc, place)
            answers.append(Published(id))
            if state == DEAD:
                failures.append((failure_text(draft.failure), number, id))
        if batch is not None:
            batch.check_waiting()
            batch.keep_unique()
        if len(encoded) == 1 and values:
            tx.run(_INSERT.one, values)
        else:
            _INSERT.run(tx, values)
        if failures:
            tx.many(_FAILED, failures)
        return answers


class _Batch:
    """The checks of one call: duplicates, groups and limits, in the database and within the call."""

    def __init__(self, tx: Transaction, now: float, *, limited: bool, look: bool) -> None:
        self._tx = tx
        self._now = now
        self._limited = limited
        self._look = look
        self._firsts: dict[tuple[int, str, str], str] = {}
        self._unique: list[tuple[int, str, str]] = []
        self._groups: set[tuple[int, str]] = set()
        self._wanted: dict[tuple[int, str, int], int] = {}

    def admit(self, number: int, draft: Draft, state: int) -> tuple[str | None, int]:
        """Return the id of the message that this draft repeats, or None; and the state in which it is stored."""
        message, most = draft.message, draft.terms.max_waiting
        first = self._first(number, message.id, message.dedup_key or None, draft.given_id or self._look)
        if first is None and message.unique and state != DEAD:
            first = self._take_unique(number, message.unique, message.id)
        if first is None and message.group and state != DEAD:
            state = self._join(number, message.group, state)
        if first is None and self._limited and most:
            wanted = number, draft.queue, most
            self._wanted[wanted] = self._wanted.get(wanted, 0) + 1
        return first, state

    def _first(self, number: int, id: str, key: str | None, by_id: bool) -> str | None:
        found: str | None = None
        if by_id:
            found = self._firsts.get((number, "id", id)) or self._stored(_BY_ID, (number, id), "id", id)
        if found is None and key is not None:
            values = number, key, self._now
            found = self._firsts.get((number, "key", key)) or self._stored(_BY_KEY, values, "dedup_key", key)
        if found is None and (by_id or key is not None):
            self._firsts[number, "id", id] = id
            if key is not None:
                self._firsts[number, "key", key] = id
        return found

    def _stored(self, search: str, values: tuple[Any, ...], column: str, value: str) -> str | None:
        """Return the id of the row that a search finds, or None; raise StoreFailed if the row has another value."""
        seq: int | None = self._tx.run(search, values).get
        return None if seq is None else self._id_of(seq, values[0], column, value)

    def _id_of(self, seq: int, number: int, column: str, value: str) -> str:
        id: str | None = self._tx.run(_ROW.format(column), (seq, number, value)).get
        if id is None:
            raise damaged_index(self._tx.connection)
        return id

    def _take_unique(self, number: int, key: str, id: str) -> str | None:
        """Take a unique key for a message; return the id of the one that has it, or None."""
        found: str | None = self._firsts.get((number, "unique", key))
        if found is None and (row := self._tx.run(_BY_UNIQUE, (number, key)).fetchone()) is not None:
            found = self._id_of(row[0], number, "id", row[1])
            if self._tx.run(_HAS_UNIQUE, (number, found, key)).get is None:
                raise damaged_index(self._tx.connection)
        if found is None:
            self._firsts[number, "unique", key] = id
            self._unique.append((number, key, id))
        return found

    def keep_unique(self) -> None:
        """Write down which message has which unique key."""
        if self._unique:
            self._tx.many(_TAKE_UNIQUE, self._unique)

    def _join(self, number: int, group: str, state: int) -> int:
        """Return the state in which a new member enters its group."""
        if state == READY and ((number, group) in self._groups or head(self._tx, number, group) is not None):
            state = HELD
        self._groups.add((number, group))
        return state

    def check_waiting(self) -> None:
        """Raise QueueFull if more messages would wait than the terms allow."""
        for (number, queue, most), wanted in self._wanted.items():
            waiting = self._tx.run(_WAITING, (number, most + 1)).get
            if waiting + wanted > most:
                raise QueueFull(f"{queue} holds {waiting} waiting messages, {most} at most: {wanted} were refused")
