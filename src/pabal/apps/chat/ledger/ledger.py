"""The ledger: users, rooms, members, messages and the outbox, in a SQL database that may be down.

L1   Every call is one transaction. When it returns, its changes survive a power cut (`sent`: kill -9).
L2   A message's sequence is its position in its room: 1, 2, 3, without a gap, in the order of commit. So a reader that
     asks for the messages after a sequence misses nothing.
L3   The ids and times of a room's messages rise with their sequences, whatever the clocks of the workers.
L4   A message is stored once for its room, sender and clientMsgId. A duplicate changes nothing at all.
L5   Only members store messages in a room, except for SYSTEM messages.
L6   Each stored message is in the outbox until it is marked as sent; both are written in one transaction.
L7   A read mark never moves back and never beyond the room's last message.
L8   A database that does not answer raises Outage, after a few seconds at most. The call may or may not have taken
     effect, and repeating it is safe. No other error is about the database's health.

Every method may be called from any thread. Its statements are in the modules beside this one.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from pabal.apps.chat.events import MessageCreated
from pabal.apps.chat.ledger import accounts, persist, search, statements
from pabal.apps.chat.ledger.database import Engine
from pabal.apps.chat.ledger.values import (
    AuditLine,
    Invitation,
    Known,
    LoginSession,
    Membership,
    Opened,
    Outgoing,
    Rejected,
    Room,
    RoomSummary,
    RoomView,
    Stored,
    User,
    UserView,
)
from pabal.clock import Clock, SystemClock
from pabal.connect import database_path
from pabal.errors import InvalidUrl, Outage, StoreRefused
from pabal.ids import UlidMaker
from pabal.names import check_servers, shown_url, split_url


class Ledger:
    """The database of the chat. Text that is no valid id is treated as an unknown id."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._make_ulid = UlidMaker(clock)

    def add_user(self, email: str, password_hash: str, name: str | None = None) -> User:
        """Add a user; EmailTaken, UserNameTaken. Without a name, one is made of the email."""
        made = statements.NewUser(str(uuid.uuid4()), email, password_hash, self._now(), name)
        return self._engine.write(lambda db: statements.add_user(db, made))

    def register(self, email: str, password_hash: str, name: str | None = None) -> User:
        """Add a user who asks for it; RegistrationClosed if nobody may."""
        made = statements.NewUser(str(uuid.uuid4()), email, password_hash, self._now(), name)
        return self._engine.write(lambda db: accounts.register(db, made))

    def user(self, user_id: str) -> User | None:
        return self._engine.read(lambda db: statements.user_by_id(db, user_id))

    def rename_user(self, user_id: str, name: str) -> None:
        """Change a display name; UserNameTaken, UserUnknown."""
        self._engine.write(lambda db: statements.rename_user(db, user_id, name))

    def set_password(self, user_id: str, password_hash: str, *, keep: str = "") -> list[str]:
        """Change a password and end all sessions but one; return those that ended. UserUnknown."""
        return self._engine.write(lambda db: statements.set_password(db, user_id, password_hash, keep))

    def open_session(self, user_id: str, *, lifetime: float, address: str, agent: str) -> Opened:
        """Note a login; return its id, and the oldest sessions of the user that had to end for it."""
        now = self._now()
        made = accounts.NewSession(str(uuid.uuid4()), user_id, now, now + int(lifetime * 1000), address, agent)
        return Opened(made.id, self._engine.write(lambda db: accounts.open_session(db, made)))

    def live_sessions(self, ids: Sequence[str]) -> set[str]:
        """Return those of these sessions that were not ended."""
        return self._engine.read(lambda db: accounts.live_sessions(db, ids))

    def renew_session(self, session_id: str, *, lifetime: float) -> bool:
        """Let a session last longer; False if it was ended."""
        now = self._now()
        return self._engine.write(lambda db: accounts.renew_session(db, session_id, now, now + int(lifetime * 1000)))

    def sessions_of(self, user_id: str) -> list[LoginSession]:
        """Return the sessions of a user, the newest first."""
        now = self._now()
        return self._engine.read(lambda db: accounts.sessions_of(db, user_id, now))

    def end_session(self, user_id: str, session_id: str) -> bool:
        """End a session of a user; False if there was none."""
        return self._engine.write(lambda db: accounts.end_session(db, user_id, session_id))

    def invite(self, room_id: str, inviter_id: str, *, lifetime: float) -> str:
        """Make an invitation to a room; return its id."""
        id, now = str(uuid.uuid4()), self._now()
        ends = now + int(lifetime * 1000)
        self._engine.write(lambda db: accounts.invite(db, id, room_id, inviter_id, now, ends))
        return id

    def invitation(self, id: str) -> Invitation | None:
        """Return an invitation that was not revoked."""
        return self._engine.read(lambda db: accounts.invitation(db, id))

    def invitations_to(self, room_id: str) -> list[Invitation]:
        """Return the valid invitations to a room, the newest first."""
        now = self._now()
        return self._engine.read(lambda db: accounts.invitations_to(db, room_id, now))

    def revoke(self, room_id: str, id: str) -> bool:
        """Revoke an invitation; False if there was none."""
        return self._engine.write(lambda db: accounts.revoke(db, room_id, id))

    def rename_room(self, room_id: str, user_id: str, name: str) -> None:
        """Rename a room for its owner; RoomUnknown, NotOwner."""
        self._engine.write(lambda db: statements.rename_room(db, room_id, user_id, name))

    def remove_member(self, room_id: str, user_id: str, member: str) -> None:
        """Remove another member for the owner of a room; RoomUnknown, NotOwner, NotMember."""
        at = self._now()
        self._engine.write(lambda db: statements.remove_member(db, room_id, user_id, member, at))

    def known_in(self, room_id: str, ids: Sequence[str]) -> list[Known]:
        """Return those of these users that are members of a room or have written in it."""
        return self._engine.read(lambda db: statements.known_in(db, room_id, ids))

    def may_see_image(self, image_id: str, user_id: str) -> bool:
        """Return whether an image was posted in a room of which a user is a member."""
        return self._engine.read(lambda db: statements.may_see_image(db, image_id, user_id))

    def search(self, room_id: str, query: str, *, before: int | None = None, limit: int = 50) -> list[Stored]:
        """Return the newest messages that have all words of a query, the newest first; see `search`."""
        start = statements.LAST if before is None else before
        rows = self._engine.read(lambda db: search.search(db, statements.COLUMNS, room_id, query, start, limit))
        return [statements.stored(row) for row in rows]

    def registration_open(self, open: bool) -> None:
        """Open or close the registration of new users."""
        self._engine.write(lambda db: accounts.set_registration(db, open))

    def is_registration_open(self) -> bool:
        return self._engine.read(lambda db: accounts.setting(db, accounts.REGISTRATION)) != "closed"

    def audit(self, actor: str, act: str, target: str, detail: str = "") -> None:
        """Note an act of an operator."""
        at = self._now()
        self._engine.write(lambda db: accounts.audit(db, at, actor, act, target, detail))

    def audit_lines(self, limit: int) -> list[AuditLine]:
        """Return the newest acts of operators, the oldest of them first."""
        return self._engine.read(lambda db: accounts.audit_lines(db, limit))

    def users(self, *, after: str = "", limit: int = 1000) -> list[UserView]:
        """Return users by their emails, after one of them."""
        return self._engine.read(lambda db: accounts.users(db, after.casefold(), limit))

    def rooms(self, *, after: str = "", limit: int = 1000) -> list[RoomSummary]:
        """Return rooms by their ids, after one of them."""
        return self._engine.read(lambda db: accounts.rooms(db, after, limit))

    def expire(self, room_id: str, before: float, *, dry: bool = False) -> accounts.Expired:
        """Delete the messages of a room from before a time; return what they were. `dry` only looks."""
        at = int(before * 1000)
        return self._engine.write(lambda db: accounts.expire(db, room_id, at, dry=dry))

    def is_posted(self, image_id: str) -> bool:
        """Return whether a message shows an image."""
        return self._engine.read(lambda db: accounts.is_posted(db, image_id))

    def user_by_email(self, email: str) -> User | None:
        return self._engine.read(lambda db: statements.user_by_email(db, email))

    def create_room(self, name: str, creator: str, *, open: bool = False) -> Room:
        """Create a room with its creator as a member; UserUnknown if there is no such user."""
        made = statements.NewRoom(str(uuid.uuid4()), name, open, self._now())
        return self._engine.write(lambda db: statements.create_room(db, made, creator))

    def room(self, room_id: str) -> Room | None:
        return self._engine.read(lambda db: statements.room_by_id(db, room_id))

    def rooms_of(self, user_id: str, *, before: str | None = None, limit: int = 50) -> list[RoomView]:
        """Return a user's rooms, newest activity first, after a RoomView's cursor; InvalidInput for a bad cursor."""
        start = statements.read_cursor(before)
        return self._engine.read(lambda db: statements.rooms_of(db, user_id, start, limit))

    def join(self, room_id: str, user_id: str, *, invitation: str | None = None) -> bool:
        """Make a user a member, with all messages read; False if it was one already. RoomUnknown, UserUnknown.

        RemovedFromRoom: the user was removed, and the invitation is not one that the owner made after that.
        """
        at = self._now()
        return self._engine.write(lambda db: statements.join(db, room_id, user_id, at, invitation))

    def leave(self, room_id: str, user_id: str) -> bool:
        """End a membership; False if there was none."""
        return self._engine.write(lambda db: statements.leave(db, room_id, user_id))

    def is_member(self, room_id: str, user_id: str) -> bool:
        return self._engine.read(lambda db: statements.is_member(db, room_id, user_id))

    def memberships(self, pairs: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
        """Return those of these pairs of a room and a user where the user is a member of the room."""
        return self._engine.read(lambda db: statements.memberships(db, pairs))

    def members(self, room_id: str, *, after: str | None = None, limit: int = 50) -> list[Membership]:
        """Return members in the order of their user ids, after a given one."""
        return self._engine.read(lambda db: statements.members(db, room_id, after or "", limit))

    def messages(
        self, room_id: str, *, before: int | None = None, after: int | None = None, limit: int = 50
    ) -> list[Stored]:
        """Return messages in order: the oldest after a sequence, or the newest before one, or the newest."""
        return self._engine.read(lambda db: statements.messages(db, room_id, before, after, limit))

    def sequence_of(self, room_id: str, message_id: str) -> int | None:
        """Return the sequence of a message; None if this room has no such message."""
        return self._engine.read(lambda db: statements.sequence_of(db, room_id, message_id))

    def mark_read(self, room_id: str, user_id: str, message_id: str) -> int:
        """Move a member's read mark up to a message; return the mark. NotMember, MessageUnknown."""
        return self._engine.write(lambda db: statements.mark_read(db, room_id, user_id, message_id))

    def persist(self, events: Sequence[MessageCreated]) -> list[Stored | Rejected]:
        """Store messages in order, in one transaction; return for each the stored message or why it was rejected."""
        return self._engine.write(lambda db: persist.persist(db, events, self._make_ulid)) if events else []

    def outbox(self, limit: int) -> list[Outgoing]:
        """Return the oldest messages that are not marked as sent, in order within each room."""
        return self._engine.read(lambda db: persist.outbox(db, limit))

    def sent(self, numbers: Sequence[int]) -> None:
        """Remove rows of the outbox."""
        if numbers:
            self._engine.write(lambda db: persist.sent(db, numbers), durable=False)

    def health(self) -> None:
        """Raise Outage if the database does not answer."""
        self._engine.read(lambda db: db.rows("select 1 from pabal.users limit 1"))

    def close(self) -> None:
        self._engine.close()

    def _now(self) -> int:
        return int(self._clock.now() * 1000)


def open_ledger(url: str, *, clock: Clock | None = None) -> Ledger:
    """Open the chat's database: sqlite:///path.db or postgresql://…, with ?schema= for another schema than `chat`.

    Tables are created or migrated. A database that does not answer is no error here: calls raise Outage until it does.
    InvalidUrl and StoreRefused mean that it can never be used.
    """
    ledger = Ledger(_engine(url), clock or SystemClock())
    try:
        ledger.health()
    except Outage as exc:
        if isinstance(exc.__cause__, StoreRefused):
            ledger.close()
            raise exc.__cause__ from exc
    return ledger


def _engine(url: str) -> Engine:
    scheme = split_url(url).scheme
    if scheme == "sqlite":
        from pabal.apps.chat.ledger.sqlite import SqliteEngine

        return SqliteEngine(database_path(url))
    if scheme in ("postgresql", "postgres"):
        from pabal.apps.chat.ledger.postgres import PostgresEngine

        check_servers(split_url(url))
        return PostgresEngine(url)
    raise InvalidUrl(f"the chat's database is sqlite:///path.db or postgresql://…; found {shown_url(url)}")
