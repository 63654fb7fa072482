"""The events of a message: what they look like to others, and what is not one of them."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from pabal.apps.chat.events import (
    MESSAGES,
    PERSISTED,
    PRESENCE,
    Kind,
    MessagePersisted,
    at_milliseconds,
    encode,
    make_topics,
    read_created,
    read_persisted,
)
from pabal.connect import connect_topics
from pabal.errors import InvalidBody
from pabal.topic_store import Bounds, NewRecord
from tests.apps.chat.place import Place, created

ROOM = "7d444840-9dc0-41d1-b245-5ffdce74fad2"
SENDER = "0b9ce4a5-9c1b-4b0c-8e5e-2f3a5b6c7d8e"
CLIENT = "F47AC10B-58CC-4372-A567-0E02B2C3D479"


def document(**changes: Any) -> bytes:
    event = {
        "eventId": "550e8400-e29b-41d4-a716-446655440000",
        "roomId": ROOM,
        "senderId": SENDER,
        "clientMsgId": CLIENT,
        "messageType": "TEXT",
        "content": "안녕하세요",
        "producedAt": "2026-02-10T12:00:00.250Z",
    }
    return json.dumps({k: v for k, v in {**event, **changes}.items() if v is not None}).encode()


def test_a_created_event_has_the_names_that_others_know() -> None:
    event = read_created(document())
    assert (event.room_id, event.sender_id, event.message_type) == (ROOM, SENDER, Kind.TEXT)
    assert event.client_msg_id == CLIENT.lower()  # one id, whatever the case of its letters
    assert event.produced_at == datetime(2026, 2, 10, 12, 0, 0, 250_000, UTC)
    assert set(json.loads(encode(event))) == set(json.loads(document()))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"roomId": None}, "roomId"),
        ({"roomId": "7D444840-9DC0-41D1-B245-5FFDCE74FAD2"}, "roomId"),
        ({"roomId": f"{ROOM}\n"}, "roomId"),
        ({"senderId": "someone"}, "senderId"),
        ({"clientMsgId": ""}, "clientMsgId"),
        ({"eventId": 7}, "eventId"),
        ({"messageType": "VIDEO"}, "messageType"),
        ({"content": ""}, "content"),
        ({"content": "x" * 5001}, "content"),
        ({"content": "a\x00b"}, "content"),
        ({"producedAt": "2026-02-10T12:00:00"}, "producedAt"),
        ({"producedAt": "yesterday"}, "producedAt"),
    ],
)
def test_what_is_wrong_with_an_event_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidBody, match=rf"no MessageCreated: .*{named}"):
        read_created(document(**changes))


@pytest.mark.parametrize("value", [b"", b"no json", b"[]", b"null", b"\xff\xfe", document().replace(b"u", b"\xff", 1)])
def test_bytes_that_are_no_event_are_refused(value: bytes) -> None:
    with pytest.raises(InvalidBody):
        read_created(value)


def test_five_thousand_characters_are_not_too_long_whatever_they_are() -> None:
    assert len(read_created(document(content="😀" * 5000)).content) == 5000


def test_a_persisted_event_says_where_the_message_stands() -> None:
    event = MessagePersisted(
        message_id="01ARZ3NDEKTSV4RRFFQ69G5FAV",
        room_id=ROOM,
        sequence=7,
        sender_id=SENDER,
        client_msg_id=CLIENT,
        message_type=Kind.IMAGE,
        content="x",
        created_at=at_milliseconds(1_770_724_800_250),
    )
    assert json.loads(encode(event)) == {
        "messageId": "01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "roomId": ROOM,
        "sequence": 7,
        "senderId": SENDER,
        "clientMsgId": CLIENT.lower(),
        "messageType": "IMAGE",
        "content": "x",
        "createdAt": "2026-02-10T12:00:00.250000Z",
    }
    assert read_persisted(encode(event)) == event
    assert read_persisted(encode(event).replace(b'"sequence":7,', b"")).sequence is None  # as other workers write it
    for wrong in (b'"sequence":0', b'"sequence":"7"'):
        with pytest.raises(InvalidBody, match="sequence"):
            read_persisted(encode(event).replace(b'"sequence":7', wrong))
    with pytest.raises(InvalidBody, match="messageId"):
        read_persisted(encode(event).replace(b"01ARZ", b"81ARZ"))


def test_the_topics_are_made_once_and_a_room_has_one_partition(place: Place) -> None:
    with connect_topics(place.topics_url) as topics:
        make_topics(topics)
        make_topics(topics)
        assert {MESSAGES, f"{MESSAGES}.dlq", PERSISTED, PRESENCE} <= set(topics.topics())
        assert [topics.driver.shape(name).partitions for name in (MESSAGES, PERSISTED)] == [3, 3]
        before = topics.driver.bounds(PERSISTED)
        events = [created(ROOM, SENDER) for _ in range(5)]
        there = topics.driver.append(PERSISTED, [NewRecord(encode(event), ROOM) for event in events])
        assert len({position.partition for position in there}) == 1
        moved = [a.next - b.next for a, b in zip(topics.driver.bounds(PERSISTED), before, strict=True)]
        assert sorted(moved) == [0, 0, 5] and all(isinstance(found, Bounds) for found in before)
