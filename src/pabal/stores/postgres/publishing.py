"""Publishing in one statement, on a connection of ours or inside the application's own transaction."""

from collections.abc import Sequence
from functools import partial
from typing import Any
from zlib import crc32

from pabal.codec import Codec
from pabal.errors import QueueFull, Uncertain
from pabal.sql.links import Link, Rule
from pabal.sql.postgres import Server, within
from pabal.store import Draft, Published
from pabal.stores.postgres.queues import Queues
from pabal.stores.postgres.rows import Sheet, columns_of, plain, write_down
from pabal.stores.postgres.schema import Schema

_PUBLISH = """
select pabal.publish(%s::integer[], %s::text[], %s::smallint[], %s::double precision[], %s::text[], %s::text[],
  %s::text[], %s::double precision[], %s::double precision[], %s::integer[], %s::bigint[], %s::integer[], %b::bytea)"""
# The usual message by itself: no function, no arrays, and little to say.
_PUBLISH_ONE = """
insert into pabal.messages (queue_id, state, rank, due_at, moment, id, crc, document)
values (%s, 0, 0, pabal.wall(), pabal.wall(), %s, %s, %b) on conflict (queue_id, id) do nothing
returning pg_notify('pabal.bell', %s)"""


class Publishing:
    def __init__(self, server: Server, schema: Schema, queues: Queues, codec: Codec) -> None:
        self._server = server
        self._sql = schema
        self._queues = queues
        self._codec = codec

    def publish(self, drafts: Sequence[Draft]) -> list[Published]:
        """Store the messages durably, all or none."""
        sheets = self._prepare(drafts)
        if not sheets:
            return []
        put = self._put_one if len(sheets) == 1 and plain(sheets[0]) else self._put
        try:
            return self._server.run(partial(put, sheets), repeatable=False)
        except Uncertain as exc:
            raise Uncertain(str(exc), tuple(draft.message.id for draft in drafts)) from exc.__cause__
        except Rule as exc:
            raise _full(exc) from exc

    def publish_in(self, connection: Any, drafts: Sequence[Draft]) -> list[Published]:
        """Store the messages on the application's connection."""
        sheets = self._prepare(drafts)
        if not sheets:
            return []
        columns = columns_of(sheets, self._queues.known)
        with within(connection, _full) as theirs:
            [(firsts,)] = theirs.execute(self._sql(_PUBLISH), columns, prepare=True).fetchall()
        return _answers(sheets, firsts)

    def _prepare(self, drafts: Sequence[Draft]) -> list[Sheet]:
        sheets = write_down(drafts, self._codec)
        self._queues.make(draft.queue for draft in drafts)
        return sheets

    def _put(self, sheets: Sequence[Sheet], link: Link) -> list[Published]:
        [(firsts,)] = link.ask(self._sql(_PUBLISH), columns_of(sheets, self._queues.known))
        return _answers(sheets, firsts)

    def _put_one(self, sheets: Sequence[Sheet], link: Link) -> list[Published]:
        [(draft, document)] = sheets
        id, queue = draft.message.id, draft.queue
        values = (self._queues.known[queue], id, crc32(document), document, queue)
        return [Published(id, duplicate=not link.ask(self._sql(_PUBLISH_ONE), values))]


def _answers(sheets: Sequence[Sheet], firsts: Sequence[str | None] | None) -> list[Published]:
    """Return what to tell of each, from the ids under which they were there already; None if all were new."""
    if firsts is None:
        return [Published(sheet.draft.message.id) for sheet in sheets]
    return [
        Published(sheet.draft.message.id) if first is None else Published(first, True)
        for sheet, first in zip(sheets, firsts, strict=True)
    ]


def _full(rule: Rule) -> QueueFull:
    most, wanted = rule.detail.split()
    return QueueFull(f"{rule} holds as many waiting messages as it may, {most}: {wanted} were refused")
