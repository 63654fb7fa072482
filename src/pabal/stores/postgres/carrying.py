"""Taking in messages from another store as they stood there: state, attempts, due time and failure."""

from collections.abc import Sequence
from zlib import crc32

from pabal.codec import Codec
from pabal.sql.links import Link
from pabal.sql.postgres import Server
from pabal.store import Entry, State
from pabal.stores.postgres.rows import NUMBERS, array, text_of, words
from pabal.stores.postgres.schema import Schema

_CARRY = """
select pabal.carry(%s, %s::text[], %s::smallint[], %s::integer[], %s::smallint[], %s::double precision[], %s::text[],
  %s::text[], %s::text[], %s::double precision[], %s::text[], %s::bigint[], %s::integer[], %b::bytea, %s)"""


def carry(
    server: Server, schema: Schema, codec: Codec, queue: tuple[str, int], entries: Sequence[Entry], window: float
) -> list[str]:
    """Store the entries that are not there yet; return the ids of these. Repeating it is harmless."""
    if not entries:
        return []
    name, number = queue
    columns = _columns(entries, name, codec)

    def work(link: Link) -> list[str]:
        found = link.execute(schema(_CARRY), (number, *columns, window)).fetchone()
        return list((found or ((),))[0])

    return server.run(work)


def _columns(entries: Sequence[Entry], queue: str, codec: Codec) -> list[str | bytes]:
    messages = [entry.message for entry in entries]
    documents = [_document(entry, queue, codec) for entry in entries]
    return [
        words(entry.id for entry in entries),
        array(NUMBERS[entry.state] for entry in entries),
        array(entry.attempt for entry in entries),
        array(-message.priority if message else 0 for message in messages),
        array(entry.due_at for entry in entries),
        words(message.target if message else "" for message in messages),
        words(message.group or None if message else None for message in messages),
        words(message.dedup_key or None if message else None for message in messages),
        array(message.expires_at if message else None for message in messages),
        words(text_of(entry.failure) for entry in entries),
        array(None if document is None else crc32(document) for document in documents),
        array(None if document is None else len(document) for document in documents),
        b"".join(document for document in documents if document is not None),
    ]


def _document(entry: Entry, queue: str, codec: Codec) -> bytes | None:
    if entry.message is not None:
        return codec.encode(entry.message, queue=queue)
    return entry.data if entry.state is State.CORRUPT else None
