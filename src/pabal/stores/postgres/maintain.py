"""Revive, cancel and purge; take in messages from another store; check and repair settings, documents and groups."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import LiteralString
from zlib import crc32

from pabal.errors import DecodeError
from pabal.ids import new_token
from pabal.policy.retention import LOOK_SECONDS
from pabal.sql.postgres_link import Link
from pabal.store import Entry, Finding, State
from pabal.stores.postgres.publish import array, texts
from pabal.stores.postgres.queues import Queues
from pabal.stores.rows import (
    CORRUPT,
    DEAD,
    DONE,
    HELD,
    INFLIGHT,
    NUMBERS,
    READY,
    STATES,
    DocumentGone,
    Row,
    cancelled_at,
    failure_text,
    read_message,
    settings_fault,
    unreadable,
)

_SLICE = 500
_REVIVE = "select pabal.revive(%s, %s::text[])"
_CANCEL = "select pabal.cancel(%s, %s::text[], %s, %s)"
_PURGE = "select pabal.purge(%s, %s::smallint[], %s, %s, %s::text[])"
_TRIM = "select pabal.trim(%s, %s::smallint[], %s, %s, %s)"
_CARRY = """
select pabal.carry(%s, %s::text[], %s::smallint[], %s::integer[], %s::smallint[], %s::double precision[], %s::text[],
  %s::text[], %s::text[], %s::double precision[], %s::text[], %s::bigint[], %s::integer[], %b::bytea, %s, %s)"""
_CARRY_UNIQUE = "select pabal.carry_unique(%s, %s::text[], %s::text[])"
_SETTINGS = "select id, name, settings from pabal.queues where settings is not null order by id"
_DROP_SETTINGS = """
with dropped as (
  update pabal.queues set settings = null where id = %(queue)s and settings = %(settings)s returning id
) insert into pabal.meta select %(key)s, %(settings)s from dropped"""
_DOCUMENTS = """
select queues.name, m.queue_id, m.id, m.state, m.attempt, m.crc, m.document
from pabal.messages as m join pabal.queues on queues.id = m.queue_id
where (m.queue_id, m.id) > (%s, %s) order by m.queue_id, m.id limit %s"""
_STUCK = """
select queues.name, heads.queue_id, heads.grp from (
  select distinct on (queue_id, grp) queue_id, grp, state from pabal.messages
  where grp is not null and state < 4 order by queue_id, grp, seq
) as heads join pabal.queues on queues.id = heads.queue_id where heads.state = 3"""
_SET_ASIDE = "select pabal.set_aside(%s, %s::text[], '', %s::smallint[], %s::text[]), pabal.wall()"
_RELEASE = """
select pabal.take_locks(array[pabal.lock_of('g', %(q)s, %(g)s)]), pabal.release(%(q)s, %(g)s),
  pabal.ring(array[%(q)s])"""


class Maintainer(Queues):
    def revive(self, queue: str, ids: Sequence[str]) -> list[str]:
        """Make dead messages ready again; return the ids that were dead."""
        number = self._number(queue)
        if number is None:
            return []
        values = (number, list(dict.fromkeys(ids)))
        found = self._server.run(lambda link: link.execute(self._sql(_REVIVE), values).fetchone(), repeatable=False)
        return list((found or ((),))[0])

    def cancel(self, queue: str, ids: Sequence[str], *, inflight: bool = False) -> list[str]:
        """Make waiting messages done, and with `inflight` those that a consumer holds; return their ids."""
        number = self._number(queue)
        if number is None:
            return []
        wanted = list(dict.fromkeys(ids))
        values = (number, wanted, inflight, failure_text(cancelled_at(self._clock.now())))
        found = self._server.run(lambda link: link.execute(self._sql(_CANCEL), values).fetchone(), repeatable=False)
        cancelled = set((found or ((),))[0])
        return [id for id in wanted if id in cancelled]

    def purge(
        self, queue: str, state: State, *, age: float = 0.0, limit: int = 1000, ids: Sequence[str] | None = None
    ) -> int:
        """Remove up to `limit` messages that have been in this state for `age` seconds."""
        return self._remove(_PURGE, queue, state, age, limit, None if ids is None else list(ids))

    def trim(self, queue: str, state: State, *, age: float, limit: int = 1000) -> int:
        """Remove messages that were too old at an earlier look too, by the server's clock."""
        return self._remove(_TRIM, queue, state, age, limit, LOOK_SECONDS)

    def _remove(self, statement: LiteralString, queue: str, state: State, *values: object) -> int:
        number = self._number(queue)
        if number is None or state is State.INFLIGHT:
            return 0
        among = [READY, HELD] if state is State.READY else [NUMBERS[State(state)]]
        found = self._server.run(lambda link: link.execute(self._sql(statement), (number, among, *values)).fetchone())
        return int((found or (0,))[0])

    def carry(self, queue: str, entries: Sequence[Entry], *, window: float = 300.0) -> list[str]:
        """Store the entries that are not there yet; return their ids. Repeating it is harmless."""
        self._make([queue])
        if not entries:
            return []
        messages = [entry.message for entry in entries]
        documents = [None if message is None else self._codec.encode(message, queue=queue) for message in messages]
        values = [
            self._known[queue],
            texts(entry.id for entry in entries),
            array(NUMBERS[entry.state] for entry in entries),
            array(entry.attempt for entry in entries),
            array(-message.priority if message else 0 for message in messages),
            array(entry.due_at for entry in entries),
            texts(message.target if message else "" for message in messages),
            texts(message.group or None if message else None for message in messages),
            texts(message.dedup_key or None if message else None for message in messages),
            array(message.expires_at if message else None for message in messages),
            texts(failure_text(entry.failure) for entry in entries),
            array(None if document is None else crc32(document) for document in documents),
            array(None if document is None else len(document) for document in documents),
            b"".join(document for document in documents if document is not None),
            window,
            self._clock.now(),
        ]
        found = self._server.run(lambda link: link.execute(self._sql(_CARRY), values).fetchone())
        taken = list((found or ((),))[0])
        unique = [
            (message.unique, message.id)
            for message, entry in zip(messages, entries, strict=True)
            if message and message.unique and entry.state not in (State.DONE, State.DEAD)
        ]
        if unique:  # also for those that were there: a process that carried them may have died before this
            words, ids = map(texts, zip(*unique, strict=True))
            values = [self._known[queue], words, ids]
            self._server.run(lambda link: link.execute(self._sql(_CARRY_UNIQUE), values))
        return taken

    # Check and repair

    def check(self, *, repair: bool) -> list[Finding]:
        """Look for damaged settings, damaged documents and stuck groups, and repair them if asked."""
        return [*self._check_settings(repair), *self._check_documents(repair), *self._check_groups(repair)]

    def _check_settings(self, repair: bool) -> Iterator[Finding]:
        for number, name, text in self._server.read(lambda link: link.execute(self._sql(_SETTINGS)).fetchall()):
            if fault := settings_fault(text.encode()):
                values = {"key": f"set_aside.{name}.{new_token()}", "queue": number, "settings": text}
                if repair:
                    self._server.run(lambda link, values=values: link.execute(self._sql(_DROP_SETTINGS), values))  # type: ignore[misc]
                yield Finding(name, f"its settings cannot be used: {fault}", "set them aside", repair)

    def _check_documents(self, repair: bool) -> Iterator[Finding]:
        last: tuple[int, str] = (0, "")
        while rows := self._server.read(partial(self._documents_after, last)):
            last = rows[-1][1:3]
            for row in rows:
                if (exc := self._fault(row)) is not None:
                    yield self._set_aside(row, exc, repair)

    def _documents_after(self, last: tuple[int, str], link: Link) -> list[Row]:
        return link.execute(self._sql(_DOCUMENTS), (*last, _SLICE)).fetchall()

    def _fault(self, row: Row) -> DecodeError | None:
        *_, state, _, crc, document = row
        if state in (INFLIGHT, DONE, CORRUPT):
            return None  # a consumer holds it, or there is nothing left to be damaged
        try:
            read_message(self._codec, document, crc)
        except DocumentGone as exc:
            # A dead message without its document was reported before, and can only be purged.
            return None if state == DEAD else exc
        except DecodeError as exc:
            return exc
        return None

    def _set_aside(self, row: Row, exc: DecodeError, repair: bool) -> Finding:
        queue, number, id, _, attempt, *_ = row
        state, failure = unreadable(exc, 0.0, attempt)

        def work(link: Link) -> bool:
            found = link.execute(self._sql(_SET_ASIDE), (number, [id], [state], [failure])).fetchone()
            return bool(found and found[0])

        done = self._server.run(work) if repair else False
        return Finding(f"{queue}/{id}", exc.reason, f"set it aside as {STATES[state]}", done)

    def _check_groups(self, repair: bool) -> Iterator[Finding]:
        for queue, number, group in self._server.read(lambda link: link.execute(self._sql(_STUCK)).fetchall()):

            def work(link: Link, number: int = number, group: str = group) -> bool:
                found = link.execute(self._sql(_RELEASE), {"q": number, "g": group}).fetchone()
                return bool(found and found[1])

            done = self._server.run(work) if repair else False
            yield Finding(
                f"{queue}, group {group}", "it waits for a message that has left", "let the next come up", done
            )
