"""The ledger contract: users, rooms, members, messages and the outbox, in a database that may be down.

L1   Every call is one transaction. When it returns, what it changed survives a power cut (`sent`: kill -9).
L2   A message's sequence is its place in its room: 1, 2, 3, without a gap, given in the order of commit. So whoever has
     read up to a sequence and asks for what is after it misses nothing.
L3   Ids of a room's messages rise with their sequences, whatever the clocks of the workers say; so do their times.
L4   A message is stored once for its room, sender and clientMsgId. A duplicate changes nothing at all.
L5   Who is not a member stores nothing in a room, except SYSTEM messages.
L6   Each stored message stands in the outbox until it is marked as sent: there is no crash between the two.
L7   A read mark never moves back and never beyond the room's last message.
L8   A database that does not answer is an Outage, after a few seconds at most. It may or may not have happened, and
     repeating is safe. Nothing else that a call raises is about the database's health.

Every method may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from pabal.chat.events import Kind, MessageCreated


class User(NamedTuple):
    """Who may log in. Emails are told apart without regard to case."""

    id: str
    email: str
    password_hash: str
    created_at: datetime


class Room(NamedTuple):
    """Where messages stand. Anybody may join an open one; a room without messages has sequence 0."""

    id: str
    name: str
    open: bool
    created_at: datetime
    last_sequence: int
    last_message_id: str | None
    last_message_at: datetime | None


class Membership(NamedTuple):
    """One member of a room."""

    room_id: str
    user_id: str
    email: str
    joined_at: datetime
    last_read_sequence: int


class Stored(NamedTuple):
    """A message at its place."""

    id: str
    room_id: str
    sequence: int
    sender_id: str
    client_msg_id: str
    type: Kind
    content: str
    created_at: datetime


class RoomView(NamedTuple):
    """A room as one of its members sees it. `cursor` goes into `rooms_of(before=)` for the rooms that follow it."""

    room: Room
    last_read_sequence: int
    unread: int
    last_message: Stored | None
    cursor: str


class Rejected(NamedTuple):
    """A message that was not stored and never will be, and why."""

    event: MessageCreated
    reason: str


class Outgoing(NamedTuple):
    """A row of the outbox: the encoded MessagePersisted."""

    number: int
    room_id: str
    event: bytes


class Ledger(Protocol):
    """The database of the chat. Unknown ids: see each method; what is no id at all is simply unknown."""

    # Users

    def add_user(self, email: str, password_hash: str) -> User:
        """Add a user; EmailTaken if there is one of this email."""
        ...

    def user_by_email(self, email: str) -> User | None: ...

    # Rooms and their members

    def create_room(self, name: str, creator: str, *, open: bool = False) -> Room:
        """Make a room with its creator as its member; UserUnknown if there is no such user."""
        ...

    def room(self, room_id: str) -> Room | None: ...

    def rooms_of(self, user_id: str, *, before: str | None = None, limit: int = 50) -> list[RoomView]:
        """Return a user's rooms, newest activity first, from a RoomView's cursor on; InvalidInput if it is none."""
        ...

    def join(self, room_id: str, user_id: str) -> bool:
        """Make a user a member, who has read all that is there; False if it was one. RoomUnknown, UserUnknown."""
        ...

    def leave(self, room_id: str, user_id: str) -> bool:
        """End a membership; False if there was none."""
        ...

    def is_member(self, room_id: str, user_id: str) -> bool: ...

    def members(self, room_id: str, *, after: str | None = None, limit: int = 50) -> list[Membership]:
        """Return members in the order of their ids, from a user's id on."""
        ...

    # Messages

    def messages(
        self, room_id: str, *, before: int | None = None, after: int | None = None, limit: int = 50
    ) -> list[Stored]:
        """Return messages in their order: the oldest after a sequence, else the newest before one, else the newest."""
        ...

    def sequence_of(self, room_id: str, message_id: str) -> int | None:
        """Return the place of a message; None if this room has no such message."""
        ...

    def mark_read(self, room_id: str, user_id: str, message_id: str) -> int:
        """Move a member's read mark up to a message; return where it stands. NotMember, MessageUnknown."""
        ...

    # The worker's

    def persist(self, events: Sequence[MessageCreated]) -> list[Stored | Rejected]:
        """Store messages in their order, all in one transaction; say for each where it stands or why it never will."""
        ...

    def outbox(self, limit: int) -> list[Outgoing]:
        """Return the oldest messages that were not marked as sent, each room's in its order."""
        ...

    def sent(self, numbers: Sequence[int]) -> None:
        """Remove rows of the outbox."""
        ...

    # The database

    def health(self) -> None:
        """Return if the database answers; Outage if not."""
        ...

    def close(self) -> None: ...
