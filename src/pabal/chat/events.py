"""What the parts of the chat say to each other: topics, and the two events of a message.

- A message's key is its room, so that one room's messages stay in order; SYSTEM messages come from the server only.
- What `read_created` and `read_persisted` return can be stored: ids are UUIDs, content is text without NUL.
- Times are aware, in UTC and whole milliseconds; on the wire they are ISO 8601.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, TypeVar

import msgspec

from pabal.connect_topics import TopicConnection
from pabal.dead_records import SUFFIX
from pabal.errors import InvalidBody
from pabal.topic import Shape

MESSAGES = "chat.messages.v1"
PERSISTED = "chat.messages.persisted.v1"
REJECTED = f"{MESSAGES}{SUFFIX}"
PRESENCE = "chat.presence.v1"
PERSISTOR = "chat-persistor"
BROADCAST = "chat-broadcast-"  # and the name of a gateway
MAX_CONTENT = 5000  # characters
_DAY = 86_400.0

SHAPES = {
    MESSAGES: Shape(3, max_age=7 * _DAY),
    REJECTED: Shape(3),
    PERSISTED: Shape(3, max_age=7 * _DAY),
    PRESENCE: Shape(1, max_age=600.0),
}

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
ULID = r"[0-7][0-9A-HJKMNP-TV-Z]{25}"
Uuid = Annotated[str, msgspec.Meta(pattern=rf"\A{UUID}\Z", description="a UUID in small letters")]
ClientId = Annotated[str, msgspec.Meta(pattern=rf"(?i)\A{UUID}\Z", description="a UUID, kept as its client wrote it")]
Ulid = Annotated[str, msgspec.Meta(pattern=rf"\A{ULID}\Z")]
Content = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_CONTENT, pattern=r"\A[^\x00]*\Z")]
Sequence = Annotated[int, msgspec.Meta(ge=1)]
Time = Annotated[datetime, msgspec.Meta(tz=True)]


class Kind(StrEnum):
    """What a message is. A client may send TEXT and IMAGE."""

    TEXT = "TEXT"
    IMAGE = "IMAGE"
    SYSTEM = "SYSTEM"


class MessageCreated(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A gateway took a message in; it is not stored yet."""

    event_id: Uuid
    room_id: Uuid
    sender_id: Uuid
    client_msg_id: ClientId
    message_type: Kind
    content: Content
    produced_at: Time


class MessagePersisted(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A message is stored: it has its id, its place in the room and the time of its row."""

    message_id: Ulid
    room_id: Uuid
    sequence: Sequence
    sender_id: Uuid
    client_msg_id: ClientId
    message_type: Kind
    content: Content
    created_at: Time


Event = TypeVar("Event", MessageCreated, MessagePersisted)


def read_created(value: bytes) -> MessageCreated:
    """Return the event that a record of MESSAGES holds; raise InvalidBody that says what is wrong with it."""
    return _read(value, _CREATED)


def read_persisted(value: bytes) -> MessagePersisted:
    """Return the event that a record of PERSISTED holds; raise InvalidBody that says what is wrong with it."""
    return _read(value, _PERSISTED)


def _read(value: bytes, decoder: msgspec.json.Decoder[Event]) -> Event:
    try:
        return decoder.decode(value)
    except msgspec.MsgspecError as exc:
        raise InvalidBody(f"no {decoder.type.__name__}: {exc}") from exc
    except UnicodeDecodeError as exc:
        raise InvalidBody(f"no {decoder.type.__name__}: not UTF-8") from exc


_CREATED = msgspec.json.Decoder(MessageCreated)
_PERSISTED = msgspec.json.Decoder(MessagePersisted)
encode = msgspec.json.Encoder().encode


def at_milliseconds(milliseconds: int) -> datetime:
    """Return the instant so many milliseconds after the epoch."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def make_topics(connection: TopicConnection) -> None:
    """Make the topics of the chat that are not there yet."""
    for name, shape in SHAPES.items():
        connection.driver.create(name, shape)
