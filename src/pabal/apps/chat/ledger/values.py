"""The values that the ledger returns."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from pabal.apps.chat.events import Kind, MessageCreated


class User(NamedTuple):
    """A user that may log in. Emails are compared without regard to case, names by how they look."""

    id: str
    email: str
    password_hash: str
    created_at: datetime
    name: str


class Room(NamedTuple):
    """A room. Every user may join an open one. A room without messages has sequence 0, one without members no owner."""

    id: str
    name: str
    open: bool
    created_at: datetime
    last_sequence: int
    last_message_id: str | None
    last_message_at: datetime | None
    owner_id: str | None


class Membership(NamedTuple):
    """One member of a room."""

    room_id: str
    user_id: str
    email: str
    joined_at: datetime
    last_read_sequence: int
    name: str


class Stored(NamedTuple):
    """A stored message."""

    id: str
    room_id: str
    sequence: int
    sender_id: str
    client_msg_id: str
    type: Kind
    content: str
    created_at: datetime


class RoomView(NamedTuple):
    """A room as one of its members sees it. Pass `cursor` to `rooms_of(before=)` to get the rooms after it."""

    room: Room
    last_read_sequence: int
    unread: int
    last_message: Stored | None
    cursor: str


class Rejected(NamedTuple):
    """A message that will never be stored, and the reason."""

    event: MessageCreated
    reason: str


class Outgoing(NamedTuple):
    """A row of the outbox: the encoded MessagePersisted."""

    number: int
    room_id: str
    event: bytes


class LoginSession(NamedTuple):
    """A login of a user: where and with what it was made, and when it ends unless it is renewed."""

    id: str
    created_at: datetime
    seen_at: datetime
    expires_at: datetime
    address: str
    agent: str


class Opened(NamedTuple):
    """A new login, and the sessions that ended because the user had too many."""

    id: str
    ended: list[str]


class Invitation(NamedTuple):
    """An invitation to a room that was not revoked."""

    id: str
    room_id: str
    room_name: str
    inviter_id: str
    inviter_name: str
    created_at: datetime
    expires_at: datetime


class Known(NamedTuple):
    """A user as the members of a room may know it, also one who left."""

    user_id: str
    name: str
    member: bool


class UserView(NamedTuple):
    """A user as an operator sees it."""

    id: str
    email: str
    name: str
    created_at: datetime
    rooms: int


class RoomSummary(NamedTuple):
    """A room as an operator sees it."""

    id: str
    name: str
    open: bool
    created_at: datetime
    members: int
    last_sequence: int
    last_message_at: datetime | None


class AuditLine(NamedTuple):
    """An act of an operator."""

    at: datetime
    actor: str
    act: str
    target: str
    detail: str
