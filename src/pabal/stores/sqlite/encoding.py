"""Drafts on their way into rows: encoded, measured, and laid down where documents live."""

from collections.abc import Sequence
from typing import TypeAlias
from zlib import crc32

from pabal.codec import Codec
from pabal.errors import StoreFull
from pabal.names import check_id, check_name
from pabal.sql.room import Room
from pabal.store import Draft
from pabal.stores.limits import too_large
from pabal.stores.sqlite.bodies import Bodies, Document, Place

Encoded: TypeAlias = tuple[Draft, Place, int]  # a draft, what the row keeps of its document, the document's checksum


class Encoding:
    def __init__(self, room: Room, codec: Codec, bodies: Bodies) -> None:
        self._room = room
        self._encode = codec.encode
        self._bodies = bodies

    def encode(self, drafts: Sequence[Draft], *, essential: bool = False) -> list[Encoded]:
        """Return the drafts with their documents; raise InvalidInput before anything is written.

        Essential ones may use up the ballast when the disk is full.
        """
        items: list[Encoded] = []
        documents: list[Document] = []
        encode, apart, name = self._encode, self._bodies.apart, None
        for draft in drafts:
            message, queue = draft.message, draft.queue
            if queue != name:
                name = check_name(queue)
            if draft.given_id:
                check_id(message.id)
            data = encode(message, queue=queue)
            if len(data) > draft.terms.max_bytes:
                raise too_large(draft, len(data))
            items.append((draft, data, crc32(data)))
            if apart:
                documents.append(Document(queue, message.id, data))
        if not apart:
            return items
        places = self._put(documents, essential)
        return [(draft, place, crc) for (draft, _, crc), place in zip(items, places, strict=True)]

    def _put(self, documents: Sequence[Document], essential: bool) -> Sequence[Place]:
        if not essential:
            self._room.require()
        try:
            return self._bodies.put(documents)
        except StoreFull:
            if essential and self._room.ballast.release():
                return self._bodies.put(documents)
            raise
