"""The ledger over any of its databases: each call is one transaction of the statements beside this module."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from pabal.chat.events import MessageCreated
from pabal.chat.ledger import messages, persisting, rooms, users
from pabal.chat.ledger.contract import Membership, Outgoing, Rejected, Room, RoomView, Stored, User
from pabal.chat.ledger.session import Engine
from pabal.clock import Clock
from pabal.ids import UlidMaker


class SqlLedger:
    """A `Ledger` in a database that speaks SQL."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._make_ulid = UlidMaker(clock)

    def add_user(self, email: str, password_hash: str) -> User:
        made = users.Made(str(uuid.uuid4()), email, password_hash, self._now())
        return self._engine.write(lambda db: users.add(db, made))

    def user_by_email(self, email: str) -> User | None:
        return self._engine.read(lambda db: users.by_email(db, email))

    def create_room(self, name: str, creator: str, *, open: bool = False) -> Room:
        made = rooms.Made(str(uuid.uuid4()), name, open, self._now())
        return self._engine.write(lambda db: rooms.create(db, made, creator))

    def room(self, room_id: str) -> Room | None:
        return self._engine.read(lambda db: rooms.by_id(db, room_id))

    def rooms_of(self, user_id: str, *, before: str | None = None, limit: int = 50) -> list[RoomView]:
        start = rooms.read_cursor(before)
        return self._engine.read(lambda db: rooms.of_user(db, user_id, start, limit))

    def join(self, room_id: str, user_id: str) -> bool:
        at = self._now()
        return self._engine.write(lambda db: rooms.join(db, room_id, user_id, at))

    def leave(self, room_id: str, user_id: str) -> bool:
        return self._engine.write(lambda db: rooms.leave(db, room_id, user_id))

    def is_member(self, room_id: str, user_id: str) -> bool:
        return self._engine.read(lambda db: rooms.is_member(db, room_id, user_id))

    def members(self, room_id: str, *, after: str | None = None, limit: int = 50) -> list[Membership]:
        return self._engine.read(lambda db: rooms.members(db, room_id, after or "", limit))

    def messages(
        self, room_id: str, *, before: int | None = None, after: int | None = None, limit: int = 50
    ) -> list[Stored]:
        return self._engine.read(lambda db: messages.page(db, room_id, before, after, limit))

    def sequence_of(self, room_id: str, message_id: str) -> int | None:
        return self._engine.read(lambda db: messages.sequence_of(db, room_id, message_id))

    def mark_read(self, room_id: str, user_id: str, message_id: str) -> int:
        return self._engine.write(lambda db: messages.mark_read(db, room_id, user_id, message_id))

    def persist(self, events: Sequence[MessageCreated]) -> list[Stored | Rejected]:
        return self._engine.write(lambda db: persisting.persist(db, events, self._make_ulid)) if events else []

    def outbox(self, limit: int) -> list[Outgoing]:
        return self._engine.read(lambda db: persisting.outbox(db, limit))

    def sent(self, numbers: Sequence[int]) -> None:
        if numbers:
            self._engine.write(lambda db: persisting.sent(db, numbers), durable=False)

    def health(self) -> None:
        self._engine.read(lambda db: db.rows("select 1 from pabal.users limit 1"))

    def close(self) -> None:
        self._engine.close()

    def _now(self) -> int:
        return int(self._clock.now() * 1000)
