"""Where a test of the chat takes place, and what its tests need of it: users, rooms, events, records."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import NamedTuple

from pabal.apps.chat.events import MESSAGES, Kind, MessageCreated, MessagePersisted, encode, make_topics, read_persisted
from pabal.apps.chat.ledger import Ledger
from pabal.connect import TopicConnection, connect_topics
from pabal.topic_store import NewRecord, Record


class Place(NamedTuple):
    """One of the two sets. The servers are shared by all tests: topics hold what others left, the database does not."""

    kind: str
    topics_url: str
    db_url: str


class People(NamedTuple):
    """Two members of a room and one who is none."""

    room: str
    ann: str
    bob: str
    eve: str


def people(ledger: Ledger) -> People:
    ann, bob, eve = (ledger.add_user(f"{name}@example.org", "hash").id for name in ("ann", "bob", "eve"))
    room = ledger.create_room("one", ann).id
    ledger.join(room, bob)
    return People(room, ann, bob, eve)


def created(
    room: str, sender: str, content: str = "hello", *, client: str | None = None, kind: Kind = Kind.TEXT
) -> MessageCreated:
    return MessageCreated(
        event_id=str(uuid.uuid4()),
        room_id=room,
        sender_id=sender,
        client_msg_id=client or str(uuid.uuid4()),
        message_type=kind,
        content=content,
        produced_at=datetime.now(UTC),
    )


def send(place: Place, events: list[MessageCreated | NewRecord]) -> None:
    """Append events, as a gateway does."""
    with connect_topics(place.topics_url) as topics:
        make_topics(topics)
        topics.driver.append(
            MESSAGES, [e if isinstance(e, NewRecord) else NewRecord(encode(e), e.room_id) for e in events]
        )


def records(topics: TopicConnection, name: str, key: str) -> list[Record]:
    """Return the records of a topic that have this key."""
    found: list[Record] = []
    for number, bounds in enumerate(topics.driver.bounds(name)):
        offset = bounds.first
        while offset < bounds.next:
            page = topics.driver.read(name, number, offset, 1000)
            found += [record for record in page if record.key == key]
            offset = page[-1].offset + 1 if page else bounds.next
    return found


def told(topics: TopicConnection, name: str, room: str) -> list[MessagePersisted]:
    """Return the events of a room in the persisted topic."""
    return [read_persisted(record.value) for record in records(topics, name, room)]
