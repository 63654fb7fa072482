"""The documents that clients send and get, field by field, as docs/reference/chat-api.md describes them.

Unknown fields are ignored.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from pabal.apps.chat.events import AnyUuid, Content, Kind, MessagePersisted, Ulid, small_letters
from pabal.apps.chat.ledger.values import Invitation, LoginSession, Room, RoomView, Stored, User
from pabal.clock import iso_stamp

# Control characters, and invisible ones that hide or turn the text around them. Emoji and Persian need joiners.
_UNSEEN = r"\x00-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
Email = Annotated[
    str,
    msgspec.Meta(
        max_length=254,
        pattern=rf"\A[^@\s{_UNSEEN}]+@[^@\s{_UNSEEN}]+\Z",
        description="an email address, such as ann@example.org,",
    ),
]
Password = Annotated[str, msgspec.Meta(min_length=6, max_length=100, description="a password of 6 to 100 characters")]
RoomName = Annotated[
    str,
    msgspec.Meta(
        max_length=100,
        pattern=rf"\A[^{_UNSEEN}]*[^\s{_UNSEEN}][^{_UNSEEN}]*\Z",
        description="a name of 1 to 100 characters that can be seen",
    ),
]
UserName = Annotated[str, msgspec.Meta(min_length=1, max_length=200, description="a name of 1 to 40 characters")]
Token = Annotated[str, msgspec.Meta(max_length=2000, description="a token that this chat gave out")]


class Credentials(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    email: Email
    password: Password


class Registration(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    email: Email
    password: Password
    name: UserName | None = None


class NewName(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: UserName


class NewPassword(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    password: Annotated[str, msgspec.Meta(max_length=100)]
    new_password: Password


class RoomRenaming(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: RoomName


class Invited(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    invitation: Token


class Renewal(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    token: Token


class NewRoom(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: RoomName
    open: bool = False


class Joining(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    invitation: Token | None = None


class Reading(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    last_read_message_id: Ulid


class JoinRoom(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    room_id: AnyUuid
    last_sequence: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] | None = None

    def __post_init__(self) -> None:
        small_letters(self, "room_id")


class InRoom(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """leaveRoom and typing."""

    room_id: AnyUuid

    def __post_init__(self) -> None:
        small_letters(self, "room_id")


class SendMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    room_id: AnyUuid
    client_msg_id: AnyUuid
    type: Literal["TEXT", "IMAGE"] = "TEXT"
    content: Content

    def __post_init__(self) -> None:
        small_letters(self, "room_id", "client_msg_id")


class UserOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A user as itself. `name` is null while the database is down."""

    id: str
    email: str
    name: str | None


class LoginOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    access_token: str
    expires_at: str
    user: UserOut


class MessageOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A stored message. `messageId` repeats `id` under the name that the events use.

    `sequence` is null only if a worker of another program stored the message and gave none.
    """

    id: str
    message_id: str
    room_id: str
    sequence: int | None
    sender_id: str
    client_msg_id: str
    type: Kind
    content: str
    created_at: str


class RoomOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    name: str
    open: bool
    owner_id: str | None
    created_at: str
    last_message_id: str | None
    last_message_at: str | None
    last_message: MessageOut | None
    last_sequence: int
    last_read_sequence: int
    unread: int


class MemberOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    user_id: str
    name: str
    email: str
    joined_at: str
    online: bool


class SessionOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A login of the user: where it was made and with what, and whether it is the one that asks."""

    id: str
    created_at: str
    seen_at: str
    expires_at: str
    address: str
    agent: str
    current: bool


class InvitationOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An invitation to a room, without the token that lets its holder in."""

    id: str
    room_id: str
    room_name: str
    inviter_id: str
    inviter_name: str
    expires_at: str


class KnownOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A user who is a member of a room, or was one and wrote in it."""

    user_id: str
    name: str
    member: bool


class RoomsOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A page of rooms, the newest activity first."""

    rooms: list[RoomOut]
    has_more: bool
    next: str | None


class MembersOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A page of members, in the order of their user ids."""

    members: list[MemberOut]
    has_more: bool
    next: str | None


class MessagesOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A page of messages."""

    messages: list[MessageOut]
    has_more: bool
    next: str | None


class UsersOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    users: list[KnownOut]


class SessionsOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    sessions: list[SessionOut]


class InvitationsOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    invitations: list[InvitationOut]


class InvitationMade(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A new invitation, with the token that lets its holder in."""

    id: str
    invitation: str
    expires_at: str


class ReadOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    last_read_sequence: int


class Success(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    success: bool = True


def session_out(found: LoginSession, current: str) -> SessionOut:
    return SessionOut(
        id=found.id,
        created_at=instant(found.created_at),
        seen_at=instant(found.seen_at),
        expires_at=instant(found.expires_at),
        address=found.address,
        agent=found.agent,
        current=found.id == current,
    )


def invitation_out(found: Invitation) -> InvitationOut:
    return InvitationOut(
        id=found.id,
        room_id=found.room_id,
        room_name=found.room_name,
        inviter_id=found.inviter_id,
        inviter_name=found.inviter_name,
        expires_at=instant(found.expires_at),
    )


def instant(at: datetime) -> str:
    """Return a time as text, in UTC and whole milliseconds."""
    return iso_stamp(at.timestamp())


def user_out(user: User) -> UserOut:
    return UserOut(id=user.id, email=user.email, name=user.name)


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
        owner_id=room.owner_id,
        created_at=instant(room.created_at),
        last_message_id=room.last_message_id,
        last_message_at=instant(room.last_message_at) if room.last_message_at else None,
        last_message=message_out(last) if last else None,
        last_sequence=room.last_sequence,
        last_read_sequence=read,
        unread=unread,
    )
