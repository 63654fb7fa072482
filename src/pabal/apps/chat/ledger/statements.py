"""The statements of the ledger about users, rooms, members, messages and read marks."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from pabal.apps.chat.errors import (
    EmailTaken,
    NotMember,
    NotOwner,
    RemovedFromRoom,
    RoomUnknown,
    UserNameTaken,
    UserUnknown,
)
from pabal.apps.chat.events import Kind, at_milliseconds
from pabal.apps.chat.ledger.database import NOW, Row, Session, flat, parameters
from pabal.apps.chat.ledger.names import name_key, name_of_email
from pabal.apps.chat.ledger.values import Known, Membership, Room, RoomView, Stored, User
from pabal.errors import InvalidInput, MessageUnknown

COLUMNS = "id, room_id, sequence, sender_id, client_msg_id, type, content, created_at"  # of a message
_USER = "id, email, password_hash, created_at, name"
_ROOM = "id, name, open, created_at, last_sequence, last_message_id, last_message_at, owner_id"
_WIDTH = len(_ROOM.split(","))
_CURSOR = re.compile(r"(\d{1,15})\.([0-9a-f-]{36})", re.ASCII)
_ACTIVE = "coalesce(r.last_message_at, r.created_at)"
LAST = 1 << 62  # above every sequence
_NEWEST = (1 << 62, "~")
_NAME_TAKEN = "somebody has this name, or one that looks the same: choose another one"

# A removal that no invitation has lifted: one that the owner of the room made later.
_BARRED = """
select 1 from pabal.removals x where x.room_id = ? and x.user_id = ? and not exists (
  select 1 from pabal.invitations i join pabal.rooms r on r.id = i.room_id
  where i.id = ? and i.room_id = x.room_id and i.inviter_id = r.owner_id and i.created_at >= x.removed_at
)"""

_OF_USER = f"""
select {", ".join(f"r.{name.strip()}" for name in _ROOM.split(","))}, {_ACTIVE}, m.last_read_sequence,
  {", ".join(f"l.{name.strip()}" for name in COLUMNS.split(","))}
from pabal.room_members m
join pabal.rooms r on r.id = m.room_id
left join pabal.messages l on l.room_id = r.id and l.sequence = r.last_sequence
where m.user_id = ? and ({_ACTIVE} < ? or ({_ACTIVE} = ? and r.id < ?))
order by {_ACTIVE} desc, r.id desc limit ?"""


class NewUser(NamedTuple):
    """A user to add. Without a name it gets one from its email that nobody has."""

    id: str
    email: str
    password_hash: str
    created_at: int
    name: str | None


def add_user(db: Session, made: NewUser) -> User:
    """Add a user. Repeating this with the same id is safe."""
    found = user_by_email(db, made.email)
    plain = name_of_email(made.email)
    for name in [made.name] if made.name is not None else [plain, f"{plain} {made.id[:6]}"]:
        if found is None:
            db.rows(
                "insert into pabal.users (id, email, email_key, password_hash, created_at, name, name_key) "
                "values (?, ?, ?, ?, ?, ?, ?) on conflict do nothing",
                (*made[:2], _email_key(made.email), *made[2:4], name, name_key(name)),
            )
            found = user_by_email(db, made.email)
    if found is None:
        raise UserNameTaken(_NAME_TAKEN)
    if found.id != made.id:
        raise EmailTaken("there is a user of this email")
    return found


def rename_user(db: Session, user_id: str, name: str) -> None:
    key = name_key(name)
    taken = db.rows("select id from pabal.users where name_key = ?", (key,))
    if taken and taken[0][0] != user_id:
        raise UserNameTaken(_NAME_TAKEN)
    made = "update pabal.users set name = ?, name_key = ? where id = ? returning id"
    if not db.rows(made, (name, key, user_id)):
        raise UserUnknown(f"no user {user_id!r:.60}")


def set_password(db: Session, user_id: str, password_hash: str, keep: str) -> list[str]:
    """Change a password; return the sessions that this ended, which are all but one."""
    made = "update pabal.users set password_hash = ? where id = ? returning id"
    if not db.rows(made, (password_hash, user_id)):
        raise UserUnknown(f"no user {user_id!r:.60}")
    gone = "delete from pabal.sessions where user_id = ? and id <> ? returning id"
    return [row[0] for row in db.rows(gone, (user_id, keep))]


def user_by_id(db: Session, user_id: str) -> User | None:
    rows = db.rows(f"select {_USER} from pabal.users where id = ?", (user_id,))
    return _user(rows[0]) if rows else None


def user_by_email(db: Session, email: str) -> User | None:
    rows = db.rows(f"select {_USER} from pabal.users where email_key = ?", (_email_key(email),))
    return _user(rows[0]) if rows else None


def known_users(db: Session, ids: Collection[str]) -> set[str]:
    """Return those of these ids that belong to a user."""
    if not ids:
        return set()
    rows = db.rows(f"select id from pabal.users where id in {parameters(len(ids), 1)}", list(ids))
    return {row[0] for row in rows}


def _email_key(email: str) -> str:
    return email.casefold()


def _user(row: Row) -> User:
    return User(row[0], row[1], row[2], at_milliseconds(row[3]), row[4])


class NewRoom(NamedTuple):
    """A room to create."""

    id: str
    name: str
    open: bool
    created_at: int


class Cursor(NamedTuple):
    """A position in the list of rooms by activity."""

    active_at: int
    room_id: str


def create_room(db: Session, made: NewRoom, creator: str) -> Room:
    """Create a room. Repeating this with the same id is safe."""
    if not known_users(db, [creator]):
        raise UserUnknown(f"no user {creator!r:.60}")
    db.rows(
        "insert into pabal.rooms (id, name, open, created_at, owner_id) values (?, ?, ?, ?, ?) on conflict do nothing",
        (*made, creator),
    )
    join(db, made.id, creator, made.created_at)
    return Room(made.id, made.name, made.open, at_milliseconds(made.created_at), 0, None, None, creator)


def room_by_id(db: Session, room_id: str) -> Room | None:
    rows = db.rows(f"select {_ROOM} from pabal.rooms where id = ?", (room_id,))
    return _room(rows[0]) if rows else None


def read_cursor(text: str | None) -> Cursor:
    """Return the position of a RoomView's cursor; without one, the beginning."""
    if text is None:
        return Cursor(*_NEWEST)
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise InvalidInput(f"a cursor of rooms comes with a list of rooms; found {text!r:.60}")
    return Cursor(int(found[1]), found[2])


def rooms_of(db: Session, user_id: str, start: Cursor, limit: int) -> list[RoomView]:
    """Return the rooms after a position; a room that got new activity meanwhile is among the newest."""
    rows = db.rows(_OF_USER, (user_id, start.active_at, start.active_at, start.room_id, limit))
    return [_view(row) for row in rows]


def join(db: Session, room_id: str, user_id: str, at: int, invitation: str | None = None) -> bool:
    if not known_users(db, [user_id]):
        raise UserUnknown(f"no user {user_id!r:.60}")
    if db.rows(_BARRED, (room_id, user_id, invitation or "")):
        raise RemovedFromRoom("the owner of this room removed you: only a new invitation of the owner lets you in")
    made = db.rows(
        "insert into pabal.room_members (room_id, user_id, joined_at, last_read_sequence) "
        "select id, ?, ?, last_sequence from pabal.rooms where id = ? on conflict do nothing returning room_id",
        (user_id, at, room_id),
    )
    if not made and room_by_id(db, room_id) is None:
        raise RoomUnknown(f"no room {room_id!r:.60}")
    db.rows("delete from pabal.removals where room_id = ? and user_id = ?", (room_id, user_id))
    return bool(made)


def leave(db: Session, room_id: str, user_id: str) -> bool:
    """End a membership. If it was the owner's, the member who joined first becomes the owner."""
    gone = "delete from pabal.room_members where room_id = ? and user_id = ? returning room_id"
    if not db.rows(gone, (room_id, user_id)):
        return False
    db.rows(
        "update pabal.rooms set owner_id = (select m.user_id from pabal.room_members m where m.room_id = ? "
        "order by m.joined_at, m.user_id limit 1) where id = ? and owner_id = ?",
        (room_id, room_id, user_id),
    )
    return True


def rename_room(db: Session, room_id: str, user_id: str, name: str) -> None:
    _require_owner(db, room_id, user_id)
    db.rows("update pabal.rooms set name = ? where id = ?", (name, room_id))


def remove_member(db: Session, room_id: str, user_id: str, member: str, at: int) -> None:
    """Remove a member for the owner of a room, and revoke the member's invitations. The member stays removed."""
    _require_owner(db, room_id, user_id)
    if member == user_id or not leave(db, room_id, member):
        raise NotMember("this user is no member of the room that you could remove")
    db.rows("delete from pabal.invitations where room_id = ? and inviter_id = ?", (room_id, member))
    db.rows(
        f"insert into pabal.removals (room_id, user_id, removed_at) values (?, ?, coalesce({NOW}, ?)) "
        "on conflict (room_id, user_id) do update set removed_at = excluded.removed_at",
        (room_id, member, at),
    )


def _require_owner(db: Session, room_id: str, user_id: str) -> None:
    room = room_by_id(db, room_id)
    if room is None:
        raise RoomUnknown("there is no such room")
    if room.owner_id != user_id:
        raise NotOwner("only the owner of the room may do this")


def is_member(db: Session, room_id: str, user_id: str) -> bool:
    return bool(db.rows("select 1 from pabal.room_members where room_id = ? and user_id = ?", (room_id, user_id)))


def memberships(db: Session, pairs: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    if not pairs:
        return set()
    rows = db.rows(
        f"select room_id, user_id from pabal.room_members where (room_id, user_id) in {parameters(len(pairs), 2)}",
        flat(pairs),
    )
    return {(room, user) for room, user in rows}


def members(db: Session, room_id: str, after: str, limit: int) -> list[Membership]:
    rows = db.rows(
        "select m.room_id, m.user_id, u.email, m.joined_at, m.last_read_sequence, u.name from pabal.room_members m "
        "join pabal.users u on u.id = m.user_id where m.room_id = ? and m.user_id > ? order by m.user_id limit ?",
        (room_id, after, limit),
    )
    return [Membership(room, user, email, at_milliseconds(at), *rest) for room, user, email, at, *rest in rows]


def known_in(db: Session, room_id: str, ids: Collection[str]) -> list[Known]:
    """Return those of these users that are members of a room, or have written in it."""
    if not ids:
        return []
    rows = db.rows(
        "select u.id, u.name, m.user_id is not null from pabal.users u "
        "left join pabal.room_members m on m.room_id = ? and m.user_id = u.id "
        f"where u.id in {parameters(len(ids), 1)} and (m.user_id is not null or exists "
        "(select 1 from pabal.messages w where w.room_id = ? and w.sender_id = u.id))",
        (room_id, *ids, room_id),
    )
    return [Known(id, name, bool(member)) for id, name, member in rows]


def may_see_image(db: Session, image_id: str, user_id: str) -> bool:
    """Return whether an image was posted in a room of which a user is a member."""
    rows = db.rows(
        "select 1 from pabal.image_rooms i join pabal.room_members m on m.room_id = i.room_id "
        "where i.image_id = ? and m.user_id = ? limit 1",
        (image_id, user_id),
    )
    return bool(rows)


def _room(row: Row) -> Room:
    id, name, open, created, sequence, last, at, owner = row
    return Room(id, name, bool(open), at_milliseconds(created), sequence, last, at and at_milliseconds(at), owner)


def _view(row: Row) -> RoomView:
    room = _room(row[:_WIDTH])
    active_at, read = row[_WIDTH : _WIDTH + 2]
    last = row[_WIDTH + 2 :]
    return RoomView(
        room, read, room.last_sequence - read, stored(last) if last[0] is not None else None, f"{active_at}.{room.id}"
    )


def messages(db: Session, room_id: str, before: int | None, after: int | None, limit: int) -> list[Stored]:
    """Return messages in order: the oldest ones if `after` is given, else the newest."""
    order = "desc" if after is None else "asc"
    rows = db.rows(
        f"select {COLUMNS} from pabal.messages where room_id = ? and sequence > ? and sequence < ? "
        f"order by sequence {order} limit ?",
        (room_id, after or 0, LAST if before is None else before, limit),
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
    """Raise read marks, given as (sequence, room, user, sequence), that are lower."""
    db.many(
        "update pabal.room_members set last_read_sequence = ? "
        "where room_id = ? and user_id = ? and last_read_sequence < ?",
        rows,
    )


def stored(row: Row) -> Stored:
    id, room, sequence, sender, client, kind, content, at = row
    return Stored(id, room, sequence, sender, client, Kind(kind), content, at_milliseconds(at))
