"""Statements about rooms and their members."""

from __future__ import annotations

import re
from typing import NamedTuple

from pabal.chat.events import at_milliseconds
from pabal.chat.ledger import users
from pabal.chat.ledger.contract import Membership, Room, RoomView
from pabal.chat.ledger.messages import COLUMNS, stored
from pabal.chat.ledger.session import Row, Session
from pabal.errors import InvalidInput, RoomUnknown, UserUnknown

_ROOM = "id, name, open, created_at, last_sequence, last_message_id, last_message_at"
_WIDTH = len(_ROOM.split(","))
_CURSOR = re.compile(r"(\d{1,15})\.([0-9a-f-]{36})", re.ASCII)
_ACTIVE = "coalesce(r.last_message_at, r.created_at)"
_NEWEST = (1 << 62, "~")

_OF_USER = f"""
select {", ".join(f"r.{name.strip()}" for name in _ROOM.split(","))}, {_ACTIVE}, m.last_read_sequence,
  {", ".join(f"l.{name.strip()}" for name in COLUMNS.split(","))}
from pabal.room_members m
join pabal.rooms r on r.id = m.room_id
left join pabal.messages l on l.room_id = r.id and l.sequence = r.last_sequence
where m.user_id = ? and ({_ACTIVE} < ? or ({_ACTIVE} = ? and r.id < ?))
order by {_ACTIVE} desc, r.id desc limit ?"""


class Made(NamedTuple):
    """A room to be."""

    id: str
    name: str
    open: bool
    created_at: int


class Cursor(NamedTuple):
    """A place in a list of rooms by their activity."""

    active_at: int
    room_id: str


def create(db: Session, made: Made, creator: str) -> Room:
    """Make a room. Repeating it with the same id is no conflict."""
    if not users.known(db, [creator]):
        raise UserUnknown(f"no user {creator!r:.60}")
    db.rows(
        "insert into pabal.rooms (id, name, open, created_at) values (?, ?, ?, ?) on conflict do nothing",
        made,
    )
    join(db, made.id, creator, made.created_at)
    return Room(made.id, made.name, made.open, at_milliseconds(made.created_at), 0, None, None)


def by_id(db: Session, room_id: str) -> Room | None:
    rows = db.rows(f"select {_ROOM} from pabal.rooms where id = ?", (room_id,))
    return _room(rows[0]) if rows else None


def read_cursor(text: str | None) -> Cursor:
    """Return the place that a RoomView's cursor names; without one, before all rooms."""
    if text is None:
        return Cursor(*_NEWEST)
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise InvalidInput(f"a cursor of rooms comes with a list of rooms; found {text!r:.60}")
    return Cursor(int(found[1]), found[2])


def of_user(db: Session, user_id: str, start: Cursor, limit: int) -> list[RoomView]:
    """Return rooms from a place on; a room whose activity moved it up meanwhile is with the newest."""
    rows = db.rows(_OF_USER, (user_id, start.active_at, start.active_at, start.room_id, limit))
    return [_view(row) for row in rows]


def join(db: Session, room_id: str, user_id: str, at: int) -> bool:
    if not users.known(db, [user_id]):
        raise UserUnknown(f"no user {user_id!r:.60}")
    made = db.rows(
        "insert into pabal.room_members (room_id, user_id, joined_at, last_read_sequence) "
        "select id, ?, ?, last_sequence from pabal.rooms where id = ? on conflict do nothing returning room_id",
        (user_id, at, room_id),
    )
    if not made and by_id(db, room_id) is None:
        raise RoomUnknown(f"no room {room_id!r:.60}")
    return bool(made)


def leave(db: Session, room_id: str, user_id: str) -> bool:
    gone = "delete from pabal.room_members where room_id = ? and user_id = ? returning room_id"
    return bool(db.rows(gone, (room_id, user_id)))


def is_member(db: Session, room_id: str, user_id: str) -> bool:
    return bool(db.rows("select 1 from pabal.room_members where room_id = ? and user_id = ?", (room_id, user_id)))


def members(db: Session, room_id: str, after: str, limit: int) -> list[Membership]:
    rows = db.rows(
        "select m.room_id, m.user_id, u.email, m.joined_at, m.last_read_sequence from pabal.room_members m "
        "join pabal.users u on u.id = m.user_id where m.room_id = ? and m.user_id > ? order by m.user_id limit ?",
        (room_id, after, limit),
    )
    return [Membership(room, user, email, at_milliseconds(at), read) for room, user, email, at, read in rows]


def _room(row: Row) -> Room:
    id, name, open, created, sequence, last, at = row
    return Room(id, name, bool(open), at_milliseconds(created), sequence, last, at and at_milliseconds(at))


def _view(row: Row) -> RoomView:
    room = _room(row[:_WIDTH])
    active_at, read = row[_WIDTH : _WIDTH + 2]
    last = row[_WIDTH + 2 :]
    return RoomView(
        room, read, room.last_sequence - read, stored(last) if last[0] is not None else None, f"{active_at}.{room.id}"
    )
