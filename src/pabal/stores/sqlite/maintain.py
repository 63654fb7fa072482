"""Revive, cancel and purge, and remove files of settled messages."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from pabal.policy.retention import Look, trim_seen_twice
from pabal.sql.connection import Conflict, Connection, damaged_index
from pabal.sql.migrate import fact, set_fact
from pabal.sql.writer import Transaction
from pabal.store import State
from pabal.stores.rows import (
    DELAYED,
    HELD,
    NUMBERS,
    READY,
    STATES,
    Row,
    cancelled_at,
    failure_text,
    not_empty,
)
from pabal.stores.sqlite.groups import head, release
from pabal.stores.sqlite.queues import Queues

_SWEEP_SLICE = 200  # files
_SWEEP_SECONDS = 0.1

_DEAD = "select seq, grp from messages where queue_id = ? and id = ? and state = 5"
_REVIVE = """
update messages set seq = ?, state = ?, attempt = 0, due_at = ?, state_since = ?, token = '////////////////',
failure = null, expires_at = null where seq = ? and queue_id = ? and id = ? and state = 5"""
_WAITING, _CANCELLABLE = "state in (0, 1, 3)", "state in (0, 1, 2, 3)"
# With the token of no lease: the receipt of a holder is stale. As in a settlement, a null breaks the statement where
# the row has another id than the index.
_CANCEL = """
update messages set state = iif(id = ?2, 4, null), state_since = ?3, failure = ?4, document = null,
token = '////////////////' where queue_id = ?1 and id = ?2 and {} returning grp"""
_ORPHAN_OF = """
insert into orphaned_files (name) select document from messages
where queue_id = ? and id = ? and {} and typeof(document) = 'text'"""
_PURGEABLE = """
select seq, grp, null from messages indexed by {} where queue_id = ?1 and {} and state_since <= ?2 limit ?3"""
_PURGEABLE_ONE = "select seq, grp, ?3 from messages where queue_id = ?1 and id = ?3 and {} and state_since <= ?2"
_INDEXED = {READY: ("messages_ready", "state = 0"), DELAYED: ("messages_delayed", "state = 1")}
_ORPHAN = "insert into orphaned_files (name) select document from messages where seq = ? and typeof(document) = 'text'"
_ANY_UNIQUE = "select exists (select 1 from unique_keys where queue_id = ?)"
_FREE_UNIQUE = "delete from unique_keys where queue_id = ? and id = (select id from messages where seq = ?)"
_COUNTS = "select state, count(*) from messages where queue_id = ? group by state"
_ORPHANS = """
insert into orphaned_files (name) select document from messages where queue_id = ? and typeof(document) = 'text'"""
_DELETE = """
delete from messages where seq = ? and queue_id = ? and state = ? and state_since <= ? and id = coalesce(?, id)"""
_IS_DOCUMENT = """
select exists (select 1 from messages join queues on queues.id = queue_id
  where queues.name = ? and messages.id = ? and document = ?)"""
KEPT_UNTIL = "bodies.kept_until"  # the time until which no body file may be removed, because a backup reads them
_KEPT = f"select exists (select 1 from meta where key = '{KEPT_UNTIL}' and value > ?1)"
_ANY_ORPHAN = f"select exists (select 1 from orphaned_files) and not ({_KEPT})"


class Maintainer(Queues):
    def revive(self, queue: str, ids: Sequence[str]) -> list[str]:
        """Make dead messages ready again; return the ids that were dead."""
        number = self._number(queue)
        if number is None:
            return []

        def work(tx: Transaction) -> list[str]:
            now = self._clock.now()
            found = [id for id in ids if _revive(tx, number, id, now)]
            if found:
                tx.wakeups[queue] = number
            return found

        return self._db.write(work, durable=True, essential=True)

    def cancel(self, queue: str, ids: Sequence[str], *, inflight: bool = False) -> list[str]:
        """Make waiting messages done, and with `inflight` those that a consumer holds; return their ids."""
        number = self._number(queue)
        if number is None:
            return []
        states = _CANCELLABLE if inflight else _WAITING

        def work(tx: Transaction) -> list[str]:
            now = self._clock.now()
            failure = failure_text(cancelled_at(now))
            groups: dict[str, str | None] = {}
            for id in dict.fromkeys(ids):
                if self._bodies.apart:
                    tx.run(_ORPHAN_OF.format(states), (number, id))
                for (group,) in tx.run(_CANCEL.format(states), (number, id, now, failure)).fetchall():
                    groups[id] = group
            release(tx, number, queue, groups.values())
            return list(groups)

        try:
            return self._db.write(work, durable=True, essential=True)
        except Conflict as exc:
            raise self._db.read(damaged_index) from exc

    def purge(
        self, queue: str, state: State, *, age: float = 0.0, limit: int = 1000, ids: Sequence[str] | None = None
    ) -> int:
        """Remove up to `limit` messages of a state, and files of settled messages.

        The write lock is taken only if there is a message to remove.
        """
        number = self._number(queue)
        if number is None or state is State.INFLIGHT:
            return 0
        before = self._clock.now() - age if age > 0 else float("inf")
        return self._purge(queue, number, state, before, limit, ids)

    def trim(self, queue: str, state: State, *, age: float, limit: int = 1000) -> int:
        """Remove messages that were too old at an earlier look too."""
        number = self._number(queue)
        if number is None or state is State.INFLIGHT:
            return 0
        key = f"look.{number}.{state}"

        def keep(look: Look) -> None:
            self._db.write(lambda tx: set_fact(tx.connection, key, str(look)), durable=False, essential=True)

        return trim_seen_twice(
            self._clock,
            limit,
            kept=self._db.read(lambda db: fact(db, key)),
            keep=keep,
            is_due=lambda at: bool(
                self._db.read(lambda db: _purgeable(db.execute, number, state, at - age, 1, None)),
            ),
            remove=lambda at: self._purge(queue, number, state, at - age, limit, None),
        )

    def delete(self, queue: str, *, force: bool = False) -> int:
        """Remove a queue. Its row stays, since other handles know the number; a fact in `meta` marks it as deleted."""
        number = self._number(queue)
        if number is None:
            return 0

        def work(tx: Transaction) -> int:
            counts = dict.fromkeys(State, 0)
            for state, count in tx.run(_COUNTS, (number,)).fetchall():
                counts[STATES[state]] += count
            left = sum(count for state, count in counts.items() if state is not State.DONE)
            if left and not force:
                raise not_empty(queue, counts)
            tx.run(_ORPHANS, (number,))
            tx.run("delete from messages where queue_id = ?", (number,))
            tx.run("delete from unique_keys where queue_id = ?", (number,))
            tx.run("update queues set settings = null where id = ?", (number,))
            set_fact(tx.connection, f"deleted.{number}", 1)
            tx.wakeups[queue] = number
            return left

        removed = self._db.write(work, durable=True, essential=True)
        while self._bodies.apart and self._db.read(lambda db: db.execute(_ANY_ORPHAN, (self._clock.now(),)).get):
            self._remove_orphaned_files()
        return removed

    def compact(self) -> tuple[int, int]:
        """Give the space of removed messages back to the file system; return the bytes before and after."""
        return self._db.compact()

    def _purge(
        self, queue: str, number: int, state: State, before: float, limit: int, ids: Sequence[str] | None
    ) -> int:
        removed = 0
        if self._db.read(lambda db: _purgeable(db.execute, number, state, before, 1, ids)):
            removed = self._db.write(
                lambda tx: _remove_rows(
                    tx, number, queue, _purgeable(tx.run, number, state, before, limit, ids), before
                ),
                durable=False,
                essential=True,
            )
            self._db.reserve.ballast.restore()
        if self._bodies.apart:
            self._remove_orphaned_files()
        return removed

    def _remove_orphaned_files(self) -> None:
        """Remove files of settled messages, for a tenth of a second at most: a leasing consumer does it in passing."""
        until = time.monotonic() + _SWEEP_SECONDS
        while self._db.read(lambda db: db.execute(_ANY_ORPHAN, (self._clock.now(),)).get):
            # Synced, so that no power cut can bring back a row whose file is gone.
            names = self._db.write(partial(take_orphans, _SWEEP_SLICE, self._clock.now()), durable=True, essential=True)
            self._bodies.drop(names)
            if time.monotonic() >= until:
                return


def _revive(tx: Transaction, number: int, id: str, now: float) -> bool:
    """Make a dead message ready; it joins its group at the end."""
    found = tx.run(_DEAD, (number, id)).fetchone()
    if found is None:
        return False
    seq, group = found
    state = READY if group is None or head(tx, number, group) is None else HELD
    place = seq if group is None else tx.run("select max(seq) + 1 from messages").get
    tx.change_each(_REVIVE, [(place, state, now, now, seq, number, id)])
    return True


def _purgeable(db: Any, number: int, state: State, before: float, limit: int, ids: Sequence[str] | None) -> list[Row]:
    """Return (seq, group, id, state) of messages that have been in a state since `before`; of `ids` only, if given.

    The id is null unless it was given.
    """
    rows: list[Row] = []
    for own in (READY, HELD) if state is State.READY else (NUMBERS[state],):
        index, term = _INDEXED.get(own, ("messages_aside", f"state = {own} and state > 2"))
        if ids is None:
            found = db(_PURGEABLE.format(index, term), (number, before, limit - len(rows))).fetchall()
        else:
            one = _PURGEABLE_ONE.format(term)
            found = [row for id in dict.fromkeys(ids) for row in db(one, (number, before, id)).fetchall()]
        rows += [(*row, own) for row in found]
    return rows[:limit]


def _remove_rows(tx: Transaction, number: int, queue: str, rows: Sequence[Row], before: float) -> int:
    """Delete rows given as (seq, group, id, state); note the files they name as orphaned."""
    tx.many(_ORPHAN, [(row[0],) for row in rows])
    if tx.run(_ANY_UNIQUE, (number,)).get:
        tx.many(_FREE_UNIQUE, [(number, row[0]) for row in rows])
    tx.change_each(_DELETE, [(seq, number, state, before, id) for seq, _, id, state in rows])
    release(tx, number, queue, {row[1] for row in rows})
    return len(rows)


def take_orphans(limit: int, now: float, tx: Transaction) -> list[str]:
    """Return names of files that no message names; after this commit they may be removed.

    An orphaned file that a message names is forgotten: its name is damaged, or that in the row of another message was.
    """
    if tx.run(_KEPT, (now,)).get:
        return []
    found = tx.run("select seq, name from orphaned_files order by seq limit ?", (limit,)).fetchall()
    tx.change_each("delete from orphaned_files where seq = ?", [(row[0],) for row in found])
    return [row[1] for row in found if not is_document(row[1], tx.connection)]


def is_document(name: str, db: Connection) -> bool:
    """Return whether the message after which this file is called names it."""
    queue, _, file = name.partition("/")
    id = file.removesuffix(".json").split("~")[0]
    return bool(db.execute(_IS_DOCUMENT, (queue, id, name)).get)
