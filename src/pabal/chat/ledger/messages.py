"""Statements about a room's messages and who has read how far."""

from __future__ import annotations

from pabal.chat.events import Kind, at_milliseconds
from pabal.chat.ledger.contract import Stored
from pabal.chat.ledger.session import Row, Session
from pabal.errors import MessageUnknown, NotMember

COLUMNS = "id, room_id, sequence, sender_id, client_msg_id, type, content, created_at"
_LAST = 1 << 62


def page(db: Session, room_id: str, before: int | None, after: int | None, limit: int) -> list[Stored]:
    """Return messages in their order, the oldest of them if `after` is given, else the newest."""
    order = "desc" if after is None else "asc"
    rows = db.rows(
        f"select {COLUMNS} from pabal.messages where room_id = ? and sequence > ? and sequence < ? "
        f"order by sequence {order} limit ?",
        (room_id, after or 0, _LAST if before is None else before, limit),
    )
    found = [stored(row) for row in rows]
    return found[::-1] if after is None else found


def sequence_of(db: Session, room_id: str, message_id: str) -> int | None:
    rows = db.rows("select sequence from pabal.messages where id = ? and room_id = ?", (message_id, room_id))
    return rows[0][0] if rows else None


def mark_read(db: Session, room_id: str, user_id: str, message_id: str) -> int:
    """Move a read mark up, never down."""
    key = (room_id, user_id)
    mark = "select last_read_sequence from pabal.room_members where room_id = ? and user_id = ?"
    if not db.rows(mark, key):
        raise NotMember(f"user {user_id!r:.60} is no member of room {room_id!r:.60}")
    sequence = sequence_of(db, room_id, message_id)
    if sequence is None:
        raise MessageUnknown(f"no message {message_id!r:.60} in room {room_id!r:.60}")
    move_mark(db, [(sequence, *key, sequence)])
    stands = db.rows(mark, key)
    return int(stands[0][0]) if stands else sequence


def move_mark(db: Session, rows: list[tuple[int, str, str, int]]) -> None:
    """Set read marks (sequence, room, user, sequence) that stand below."""
    db.many(
        "update pabal.room_members set last_read_sequence = ? "
        "where room_id = ? and user_id = ? and last_read_sequence < ?",
        rows,
    )


def stored(row: Row) -> Stored:
    id, room, sequence, sender, client, kind, content, at = row
    return Stored(id, room, sequence, sender, client, Kind(kind), content, at_milliseconds(at))
