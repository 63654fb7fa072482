"""Stores messages: the sequences, ids, read marks and outbox rows of a whole batch in a few statements.

The rows of the rooms are locked first, in the order of their ids, until the commit. So sequences are assigned in the
order of commit, and two workers cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pabal.apps.chat.events import Kind, MessageCreated, MessagePersisted, at_milliseconds, encode
from pabal.apps.chat.ledger.database import LOCK, NOW, Session, flat, parameters
from pabal.apps.chat.ledger.search import Entry, index, note_column
from pabal.apps.chat.ledger.statements import COLUMNS, known_users, move_mark, stored
from pabal.apps.chat.ledger.values import Outgoing, Rejected, Stored
from pabal.ids import ulid_milliseconds

NO_ROOM = "there is no such room"
NO_SENDER = "there is no such user"
NO_MEMBER = "the sender is not a member of the room"

Key = tuple[str, str, str]  # room, sender, clientMsgId
MakeUlid = Callable[..., str]


@dataclass
class Tail:
    """The end of a room while messages are added to it."""

    sequence: int
    last_id: str
    now: int | None  # the server's clock, in milliseconds; None: that of the maker of ids
    added: list[Stored] = field(default_factory=list)

    def add(self, event: MessageCreated, make_ulid: MakeUlid) -> Stored:
        self.sequence += 1
        self.last_id = make_ulid(above=self.last_id, at=self.now)
        made = Stored(
            self.last_id,
            event.room_id,
            self.sequence,
            event.sender_id,
            event.client_msg_id,
            event.message_type,
            event.content,
            at_milliseconds(ulid_milliseconds(self.last_id)),
        )
        self.added.append(made)
        return made


def persist(db: Session, events: Sequence[MessageCreated], make_ulid: MakeUlid) -> list[Stored | Rejected]:
    """Store new messages in order; return the outcome of each."""
    rooms = _lock(db, sorted({event.room_id for event in events}))
    there = _there(db, sorted({_key(event) for event in events}))
    marks = _marks(db, sorted({(event.room_id, event.sender_id) for event in events}))
    known = known_users(db, {event.sender_id for event in events if event.message_type is Kind.SYSTEM})
    answers: list[Stored | Rejected] = []
    for event in events:
        answer: Stored | Rejected | None = there.get(_key(event))
        if answer is None:
            reason = _objection(event, rooms, marks, known)
            if reason:
                answer = Rejected(event, reason)
            else:
                answer = there[_key(event)] = rooms[event.room_id].add(event, make_ulid)
                _follow(marks, answer)
        answers.append(answer)
    _write(db, rooms, marks)
    return answers


def outbox(db: Session, limit: int) -> list[Outgoing]:
    rows = db.rows("select number, room_id, event from pabal.outbox order by number limit ?", (limit,))
    return [Outgoing(number, room, bytes(event)) for number, room, event in rows]


def sent(db: Session, numbers: Sequence[int]) -> None:
    db.many("delete from pabal.outbox where number = ?", [(number,) for number in numbers])


def _key(event: MessageCreated) -> Key:
    return event.room_id, event.sender_id, event.client_msg_id


def _objection(
    event: MessageCreated, rooms: dict[str, Tail], marks: dict[tuple[str, str], int], known: set[str]
) -> str:
    if event.room_id not in rooms:
        return NO_ROOM
    if event.message_type is Kind.SYSTEM:
        return "" if event.sender_id in known else NO_SENDER
    return "" if (event.room_id, event.sender_id) in marks else NO_MEMBER


def _follow(marks: dict[tuple[str, str], int], made: Stored) -> None:
    """Mark a message as read by its sender, if the sender has read all earlier ones."""
    key = made.room_id, made.sender_id
    if marks.get(key) == made.sequence - 1:
        marks[key] = made.sequence


def _lock(db: Session, ids: list[str]) -> dict[str, Tail]:
    rows = db.rows(
        f"select id, last_sequence, last_message_id, {NOW} from pabal.rooms where id in {parameters(len(ids), 1)} "
        f"order by id {LOCK}",
        ids,
    )
    return {id: Tail(sequence, last or "", now) for id, sequence, last, now in rows}


def _there(db: Session, keys: list[Key]) -> dict[Key, Stored]:
    rows = db.rows(
        f"select {COLUMNS} from pabal.messages where (room_id, sender_id, client_msg_id) in {parameters(len(keys), 3)}",
        flat(keys),
    )
    return {(found.room_id, found.sender_id, found.client_msg_id): found for found in map(stored, rows)}


def _marks(db: Session, keys: list[tuple[str, str]]) -> dict[tuple[str, str], int]:
    rows = db.rows(
        "select room_id, user_id, last_read_sequence from pabal.room_members "
        f"where (room_id, user_id) in {parameters(len(keys), 2)}",
        flat(keys),
    )
    return {(room, user): read for room, user, read in rows}


def _write(db: Session, rooms: dict[str, Tail], marks: dict[tuple[str, str], int]) -> None:
    changed = {id: tail for id, tail in rooms.items() if tail.added}
    added = [made for tail in changed.values() for made in tail.added]
    if not added:
        return
    notes = index(db, [Entry(made.room_id, made.sequence, made.type, made.content) for made in added])
    db.many(
        f"insert into pabal.messages ({COLUMNS}, {note_column(db)}) values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (*made[:5], made.type.value, made.content, ulid_milliseconds(made.id), note)
            for made, note in zip(added, notes, strict=True)
        ],
    )
    db.many(
        "insert into pabal.image_rooms (image_id, room_id) values (?, ?) on conflict do nothing",
        sorted({(made.content, made.room_id) for made in added if made.type is Kind.IMAGE}),
    )
    db.many("insert into pabal.outbox (room_id, event) values (?, ?)", [(m.room_id, _event(m)) for m in added])
    db.many(
        "update pabal.rooms set last_sequence = ?, last_message_id = ?, last_message_at = ? where id = ?",
        [(tail.sequence, tail.last_id, ulid_milliseconds(tail.last_id), id) for id, tail in changed.items()],
    )
    keys = {(made.room_id, made.sender_id) for made in added} & marks.keys()
    move_mark(db, [(marks[key], *key, marks[key]) for key in sorted(keys)])


def _event(made: Stored) -> bytes:
    return encode(
        MessagePersisted(
            message_id=made.id,
            room_id=made.room_id,
            sequence=made.sequence,
            sender_id=made.sender_id,
            client_msg_id=made.client_msg_id,
            message_type=made.type,
            content=made.content,
            created_at=made.created_at,
        )
    )
