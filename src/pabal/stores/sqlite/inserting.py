"""Publishing in SQL: what is there already is not stored again, who joins a group is held, and limits are kept."""

from collections.abc import Mapping, Sequence
from typing import Any

from pabal.errors import QueueFull
from pabal.sql.inserts import Insert
from pabal.sql.writer import Transaction
from pabal.store import Draft, Published
from pabal.stores.sqlite.encoding import Encoded
from pabal.stores.sqlite.groups import head
from pabal.stores.sqlite.queues import queue_id
from pabal.stores.sqlite.rows import DELAYED, HELD, READY

_INSERT = Insert(
    "messages",
    "queue_id, state, priority, due_at, moment, id, target, grp, dedup_key, dedup_until, expires_at, crc, document",
)
_BY_ID = "select id from messages where queue_id = ? and id = ?"
# The last of them: after a step back of the wall clock an earlier one may be in its window again.
_BY_KEY = """
select id from messages where queue_id = ? and dedup_key = ? and dedup_until > ? order by dedup_until desc limit 1"""
_WAITING = """
select (select count(*) from (select 1 from messages where queue_id = ?1 and state = 0 limit ?2))
  + (select count(*) from (select 1 from messages where queue_id = ?1 and state = 1 limit ?2))
  + (select count(*) from (select 1 from messages where queue_id = ?1 and state = 3 and state > 2 limit ?2))"""


def insert(
    tx: Transaction,
    known: Mapping[str, int],
    items: Sequence[Encoded],
    now: float,
    *,
    limited: bool,
    look: bool = False,
) -> list[Published]:
    """Store what is not there yet. `look` asks for every id, not only those that callers chose."""
    answers: list[Published] = []
    values: list[Any] = []
    batch: _Batch | None = None
    name, number = "", 0
    for draft, place, crc in items:
        message, delay, terms = draft.message, draft.delay, draft.terms
        if draft.queue != name:
            name, number = draft.queue, queue_id(tx, known, draft.queue)
        id, key, group = message.id, message.dedup_key or None, message.group or None
        state = DELAYED if delay > 0 else READY
        until = None
        if draft.given_id or key or group or look or terms.max_waiting:
            batch = batch or _Batch(tx, now, limited=limited, look=look)
            first, state = batch.admit(number, draft, state)
            if first is not None:
                answers.append(Published(first, True))
                continue
            until = now + terms.dedup_window if key else None
        due, priority, target, ends = now + delay, message.priority, message.target, message.expires_at
        values += (number, state, priority, due, now, id, target, group, key, until, ends, crc, place)
        answers.append(Published(id))
    if batch is not None:
        batch.check_waiting()
    _INSERT.run(tx, values)
    return answers


class _Batch:
    """What the messages of one call must know of the database and of one another."""

    def __init__(self, tx: Transaction, now: float, *, limited: bool, look: bool) -> None:
        self._tx = tx
        self._now = now
        self._limited = limited
        self._look = look
        self._firsts: dict[tuple[int, str, str], str] = {}
        self._groups: set[tuple[int, str]] = set()
        self._wanted: dict[tuple[int, str, int], int] = {}

    def admit(self, number: int, draft: Draft, state: int) -> tuple[str | None, int]:
        """Return the id under which a message is there already; if under none, the state in which it enters."""
        message, most = draft.message, draft.terms.max_waiting
        first = self._first(number, message.id, message.dedup_key or None, draft.given_id or self._look)
        if first is None and message.group:
            state = self._join(number, message.group, state)
        if first is None and self._limited and most:
            wanted = number, draft.queue, most
            self._wanted[wanted] = self._wanted.get(wanted, 0) + 1
        return first, state

    def _first(self, number: int, id: str, key: str | None, by_id: bool) -> str | None:
        found: str | None = None
        if by_id:
            found = self._firsts.get((number, "id", id)) or self._tx.run(_BY_ID, (number, id)).get
        if found is None and key is not None:
            found = self._firsts.get((number, "key", key)) or self._tx.run(_BY_KEY, (number, key, self._now)).get
        if found is None and (by_id or key is not None):
            self._firsts[number, "id", id] = id
            if key is not None:
                self._firsts[number, "key", key] = id
        return found

    def _join(self, number: int, group: str, state: int) -> int:
        """Return the state in which a new member enters its group."""
        if state == READY and ((number, group) in self._groups or head(self._tx, number, group) is not None):
            state = HELD
        self._groups.add((number, group))
        return state

    def check_waiting(self) -> None:
        for (number, queue, most), wanted in self._wanted.items():
            waiting = self._tx.run(_WAITING, (number, most + 1)).get
            if waiting + wanted > most:
                raise QueueFull(f"{queue} holds {waiting} waiting messages, {most} at most: {wanted} were refused")
