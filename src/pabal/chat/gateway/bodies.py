"""What clients send and get, field by field; docs/reference/chat-api.md tells of each.

Fields that nobody knows are passed over.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec

from pabal.chat.events import ClientId, Content, Kind, MessagePersisted, Ulid, Uuid
from pabal.chat.ledger.contract import Room, RoomView, Stored, User

Email = Annotated[str, msgspec.Meta(max_length=254, pattern=r"\A[^@\s\x00]+@[^@\s\x00]+\Z")]
Password = Annotated[str, msgspec.Meta(min_length=6, max_length=100)]
RoomName = Annotated[str, msgspec.Meta(max_length=100, pattern=r"\A[^\x00]*[^\s\x00][^\x00]*\Z")]
Token = Annotated[str, msgspec.Meta(max_length=2000)]


class Credentials(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    email: Email
    password: Password


class NewRoom(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: RoomName
    open: bool = False


class Joining(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    invitation: Token | None = None


class Reading(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    last_read_message_id: Ulid


class JoinRoom(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    room_id: Uuid
    last_sequence: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] | None = None


class InRoom(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """leaveRoom and typing."""

    room_id: Uuid


class SendMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    room_id: Uuid
    client_msg_id: ClientId
    type: Literal["TEXT", "IMAGE"] = "TEXT"
    content: Content


class UserOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    email: str


class LoginOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    access_token: str
    expires_at: str
    user: UserOut


class MessageOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A stored message. `messageId` is `id` once more, under the name that the events use."""

    id: str
    message_id: str
    room_id: str
    sequence: int
    sender_id: str
    client_msg_id: str
    type: Kind
    content: str
    created_at: str


class RoomOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    name: str
    open: bool
    created_at: str
    last_message_id: str | None
    last_message_at: str | None
    last_message: MessageOut | None
    last_sequence: int
    last_read_sequence: int
    unread: int


class MemberOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    user_id: str
    email: str
    joined_at: str
    online: bool


def instant(at: datetime) -> str:
    """Write an instant as all answers do: UTC, whole milliseconds."""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def instant_at(seconds: float) -> str:
    """Write the instant so many seconds after the epoch."""
    return instant(datetime.fromtimestamp(seconds, UTC))


def user_out(user: User) -> UserOut:
    return UserOut(id=user.id, email=user.email)


def message_out(found: Stored | MessagePersisted) -> MessageOut:
    if isinstance(found, Stored):
        message_id, kind = found.id, found.type
    else:
        message_id, kind = found.message_id, found.message_type
    return MessageOut(
        id=message_id,
        message_id=message_id,
        room_id=found.room_id,
        sequence=found.sequence,
        sender_id=found.sender_id,
        client_msg_id=found.client_msg_id,
        type=kind,
        content=found.content,
        created_at=instant(found.created_at),
    )


def new_room_out(room: Room) -> RoomOut:
    return _room_out(room, None, room.last_sequence, 0)


def room_out(view: RoomView) -> RoomOut:
    return _room_out(view.room, view.last_message, view.last_read_sequence, view.unread)


def _room_out(room: Room, last: Stored | None, read: int, unread: int) -> RoomOut:
    return RoomOut(
        id=room.id,
        name=room.name,
        open=room.open,
        created_at=instant(room.created_at),
        last_message_id=room.last_message_id,
        last_message_at=instant(room.last_message_at) if room.last_message_at else None,
        last_message=message_out(last) if last else None,
        last_sequence=room.last_sequence,
        last_read_sequence=read,
        unread=unread,
    )
