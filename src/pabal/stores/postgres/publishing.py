"""Publishing in one statement, on a connection of ours or inside the application's own transaction."""

from collections.abc import Sequence
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
        try:
            return self._server.run(lambda link: self._insert(link, sheets), repeatable=False)
        except Uncertain as exc:
            raise Uncertain(str(exc), tuple(draft.message.id for draft in drafts)) from exc.__cause__
        except Rule as exc:
            raise _full(exc) from exc

    def publish_in(self, connection: Any, drafts: Sequence[Draft]) -> list[Published]:
        """Store the messages on the application's connection."""
        sheets = self._prepare(drafts)
        if not sheets:
            return []
        with within(connection, _full) as link:
            return self._insert(link, sheets)

    def _prepare(self, drafts: Sequence[Draft]) -> list[Sheet]:
        sheets = write_down(drafts, self._codec)
        self._queues.make(draft.queue for draft in drafts)
        return sheets

    def _insert(self, link: Link, sheets: Sequence[Sheet]) -> list[Published]:
        if len(sheets) == 1 and plain(sheets[0]):
            return [self._insert_one(link, sheets[0])]
        found = link.execute(self._sql(_PUBLISH), columns_of(sheets, self._queues.known), prepare=True).fetchone()
        firsts = (found or (None,))[0] or [None] * len(sheets)
        return [
            Published(sheet.draft.message.id) if first is None else Published(first, True)
            for sheet, first in zip(sheets, firsts, strict=True)
        ]

    def _insert_one(self, link: Link, sheet: Sheet) -> Published:
        draft, document = sheet
        id = draft.message.id
        values = (self._queues.known[draft.queue], id, crc32(document), document, draft.queue)
        new = link.execute(self._sql(_PUBLISH_ONE), values, prepare=True).fetchone()
        return Published(id, duplicate=new is None)


def _full(rule: Rule) -> QueueFull:
    most, wanted = rule.detail.split()
    return QueueFull(f"{rule} holds as many waiting messages as it may, {most}: {wanted} were refused")
