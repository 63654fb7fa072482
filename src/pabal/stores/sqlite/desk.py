"""The desk where drafts become sheets: encoded, measured, and laid down where documents live."""

from collections.abc import Sequence
from zlib import crc32

from pabal.codec import Codec
from pabal.errors import StoreFull, TooLarge
from pabal.names import check_id, check_name
from pabal.sql.sqlite import Database
from pabal.store import Draft
from pabal.stores.sqlite.bodies import Bodies, Document, Place
from pabal.stores.sqlite.moves import Sheet


class Desk:
    def __init__(self, db: Database, codec: Codec, bodies: Bodies) -> None:
        self._db = db
        self._encode = codec.encode
        self._bodies = bodies

    def write_down(self, drafts: Sequence[Draft], *, essential: bool = False) -> list[Sheet]:
        """Return the drafts with their documents; raise InvalidInput before anything is written.

        Essential ones may use up the ballast when the disk is full.
        """
        sheets = [self._sheet(draft) for draft in drafts]
        if not self._bodies.apart:
            return sheets
        places = self._put(sheets, essential)
        return [sheet._replace(place=place) for sheet, place in zip(sheets, places, strict=True)]

    def _sheet(self, draft: Draft) -> Sheet:
        queue, message, _, given, terms = draft
        if given:
            check_id(message.id)
        document = self._encode(message, queue=check_name(queue))
        if len(document) > terms.max_bytes:
            raise TooLarge(f"{queue} takes {terms.max_bytes} bytes at most; found {len(document)} in {message.id}")
        return Sheet(draft, document, crc32(document))

    def _put(self, sheets: Sequence[Sheet], essential: bool) -> Sequence[Place]:
        documents = [Document(sheet.draft.queue, sheet.draft.message.id, bytes(sheet.place)) for sheet in sheets]  # type: ignore[arg-type]  # still bytes
        if not essential:
            self._db.require_room()
        try:
            return self._bodies.put(documents)
        except StoreFull:
            if essential and self._db.ballast.release():
                return self._bodies.put(documents)
            raise
