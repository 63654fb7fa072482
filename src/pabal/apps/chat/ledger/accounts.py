"""The statements of the ledger about sessions, invitations, settings, operators' acts and retention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pabal.apps.chat.errors import RegistrationClosed
from pabal.apps.chat.events import Kind, at_milliseconds
from pabal.apps.chat.ledger import search
from pabal.apps.chat.ledger.database import LOCK, NOW, Session, parameters
from pabal.apps.chat.ledger.statements import NewUser, add_user
from pabal.apps.chat.ledger.values import AuditLine, Invitation, LoginSession, RoomSummary, User, UserView

REGISTRATION = "registration"
_CLOSED = "closed"
_SESSIONS = 50  # of a user; the oldest end when there are more


class NewSession(NamedTuple):
    """A login to note."""

    id: str
    user_id: str
    created_at: int
    expires_at: int
    address: str
    agent: str


def register(db: Session, made: NewUser) -> User:
    """Add a user, unless the registration is closed."""
    if setting(db, REGISTRATION) == _CLOSED:
        raise RegistrationClosed("nobody can register here at the moment: ask the operator of this chat")
    return add_user(db, made)


def open_session(db: Session, made: NewSession) -> list[str]:
    """Note a login; return the oldest sessions of the user that ended because there were too many."""
    db.rows("delete from pabal.sessions where user_id = ? and expires_at < ?", (made.user_id, made.created_at))
    db.rows(
        "insert into pabal.sessions (id, user_id, created_at, seen_at, expires_at, address, agent) "
        "values (?, ?, ?, ?, ?, ?, ?) on conflict do nothing",
        (made.id, made.user_id, made.created_at, made.created_at, made.expires_at, made.address, made.agent),
    )
    ended = db.rows(
        "delete from pabal.sessions where user_id = ? and id <> ? and id not in "
        "(select id from pabal.sessions where user_id = ? order by created_at desc, id limit ?) returning id",
        (made.user_id, made.id, made.user_id, _SESSIONS),
    )
    return [row[0] for row in ended]


def live_sessions(db: Session, ids: Sequence[str]) -> set[str]:
    rows = db.rows(f"select id from pabal.sessions where id in {parameters(len(ids), 1)}", ids) if ids else []
    return {row[0] for row in rows}


def renew_session(db: Session, session_id: str, now: int, expires_at: int) -> bool:
    made = "update pabal.sessions set seen_at = ?, expires_at = ? where id = ? returning id"
    return bool(db.rows(made, (now, expires_at, session_id)))


def sessions_of(db: Session, user_id: str, now: int) -> list[LoginSession]:
    rows = db.rows(
        "select id, created_at, seen_at, expires_at, address, agent from pabal.sessions "
        "where user_id = ? and expires_at > ? order by created_at desc",
        (user_id, now),
    )
    return [
        LoginSession(id, at_milliseconds(made), at_milliseconds(seen), at_milliseconds(ends), address, agent)
        for id, made, seen, ends, address, agent in rows
    ]


def end_session(db: Session, user_id: str, session_id: str) -> bool:
    gone = "delete from pabal.sessions where user_id = ? and id = ? returning id"
    return bool(db.rows(gone, (user_id, session_id)))


def invite(db: Session, id: str, room_id: str, inviter_id: str, now: int, expires_at: int) -> None:
    db.rows("delete from pabal.invitations where room_id = ? and expires_at < ?", (room_id, now))
    db.rows(
        "insert into pabal.invitations (id, room_id, inviter_id, created_at, expires_at) "
        f"values (?, ?, ?, coalesce({NOW}, ?), ?) on conflict do nothing",
        (id, room_id, inviter_id, now, expires_at),
    )


_INVITATION = (
    "select i.id, i.room_id, r.name, i.inviter_id, u.name, i.created_at, i.expires_at from pabal.invitations i "
    "join pabal.rooms r on r.id = i.room_id join pabal.users u on u.id = i.inviter_id where "
)


def invitation(db: Session, id: str) -> Invitation | None:
    rows = db.rows(_INVITATION + "i.id = ?", (id,))
    return Invitation(*rows[0][:5], *map(at_milliseconds, rows[0][5:])) if rows else None


def invitations_to(db: Session, room_id: str, now: int) -> list[Invitation]:
    rows = db.rows(_INVITATION + "i.room_id = ? and i.expires_at > ? order by i.created_at desc", (room_id, now))
    return [Invitation(*row[:5], *map(at_milliseconds, row[5:])) for row in rows]


def revoke(db: Session, room_id: str, id: str) -> bool:
    gone = "delete from pabal.invitations where room_id = ? and id = ? returning id"
    return bool(db.rows(gone, (room_id, id)))


def setting(db: Session, name: str) -> str | None:
    rows = db.rows("select value from pabal.settings where name = ?", (name,))
    return rows[0][0] if rows else None


def set_registration(db: Session, open: bool) -> None:
    db.rows(
        "insert into pabal.settings (name, value) values (?, ?) "
        "on conflict (name) do update set value = excluded.value",
        (REGISTRATION, "open" if open else _CLOSED),
    )


def audit(db: Session, at: int, actor: str, act: str, target: str, detail: str) -> None:
    db.rows(
        "insert into pabal.audit (at, actor, act, target, detail) values (?, ?, ?, ?, ?)",
        (at, actor, act, target, detail),
    )


def audit_lines(db: Session, limit: int) -> list[AuditLine]:
    """Return the newest acts, the oldest of them first."""
    rows = db.rows("select at, actor, act, target, detail from pabal.audit order by number desc limit ?", (limit,))
    return [AuditLine(at_milliseconds(at), *rest) for at, *rest in reversed(rows)]


def users(db: Session, after: str, limit: int) -> list[UserView]:
    rows = db.rows(
        "select u.id, u.email, u.name, u.created_at, "
        "(select count(*) from pabal.room_members m where m.user_id = u.id) "
        "from pabal.users u where u.email_key > ? order by u.email_key limit ?",
        (after, limit),
    )
    return [UserView(id, email, name, at_milliseconds(at), count) for id, email, name, at, count in rows]


def rooms(db: Session, after: str, limit: int) -> list[RoomSummary]:
    rows = db.rows(
        "select r.id, r.name, r.open, r.created_at, "
        "(select count(*) from pabal.room_members m where m.room_id = r.id), r.last_sequence, r.last_message_at "
        "from pabal.rooms r where r.id > ? order by r.id limit ?",
        (after, limit),
    )
    return [
        RoomSummary(id, name, bool(open), at_milliseconds(at), count, sequence, last and at_milliseconds(last))
        for id, name, open, at, count, sequence, last in rows
    ]


class Expired(NamedTuple):
    """Old messages of a room: how many, up to which sequence, and the images that no message shows any more."""

    messages: int
    images: list[str]


def expire(db: Session, room_id: str, before: int, *, dry: bool) -> Expired:
    """Delete the messages of a room from before a time. Sequences go on: what is left keeps its numbers."""
    db.rows(f"select id from pabal.rooms where id = ? {LOCK}", (room_id,))
    counted = "select count(*), max(sequence) from pabal.messages where room_id = ? and created_at < ?"
    [(count, up_to)] = db.rows(counted, (room_id, before))
    if not count:
        return Expired(0, [])
    old = "room_id = ? and sequence <= ?"
    kept = "select content from pabal.messages where room_id = ? and type = ? and sequence > ?"
    [*images] = db.rows(
        f"select distinct content from pabal.messages where {old} and type = ? and content not in ({kept})",
        (room_id, up_to, Kind.IMAGE.value, room_id, Kind.IMAGE.value, up_to),
    )
    if not dry:
        search.forget(db, room_id, up_to)
        db.many(
            "delete from pabal.image_rooms where room_id = ? and image_id = ?", [(room_id, row[0]) for row in images]
        )
        db.rows(f"delete from pabal.messages where {old}", (room_id, up_to))
    return Expired(count, [row[0] for row in images])


def is_posted(db: Session, image_id: str) -> bool:
    """Return whether a message of any room shows an image."""
    return bool(db.rows("select 1 from pabal.image_rooms where image_id = ? limit 1", (image_id,)))
