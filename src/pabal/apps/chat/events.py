"""The topics of the chat, and the two events of a message.

- The key of a record is the room, so the messages of a room stay in order. Only the server sends SYSTEM messages.
- The events that `read_created` and `read_persisted` return can be stored: ids are UUIDs, content is text without NUL.
- Times have a time zone (UTC) and whole milliseconds; on the wire they are ISO 8601.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, TypeVar

import msgspec

from pabal import jsontext
from pabal.connect import TopicConnection
from pabal.errors import InvalidBody
from pabal.names import split_url
from pabal.topic_store import Shape
from pabal.topics.dead_records import SUFFIX

MESSAGES = "chat.messages.v1"
PERSISTED = "chat.messages.persisted.v1"
REJECTED = f"{MESSAGES}{SUFFIX}"
PRESENCE = "chat.presence.v1"
PERSISTOR = "chat-persistor"
CLIENT = "pabal-chat-"  # followed by the role and the name of a process: its client id for Kafka
BROADCAST = "chat-broadcast-"  # followed by the name of a gateway
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
AnyUuid = Annotated[str, msgspec.Meta(pattern=rf"(?i)\A{UUID}\Z", description="a UUID in letters of any case")]
Ulid = Annotated[str, msgspec.Meta(pattern=rf"\A{ULID}\Z", description="the id of a message")]
Content = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=MAX_CONTENT,
        pattern=r"\A[^\x00]*\Z",
        description=f"text of 1 to {MAX_CONTENT} characters without NUL",
    ),
]
Sequence = Annotated[int, msgspec.Meta(ge=1)]
Time = Annotated[datetime, msgspec.Meta(tz=True)]


def small_letters(struct: msgspec.Struct, *names: str) -> None:
    """Write UUIDs of a frozen struct in small letters: in any letter case they are the same id."""
    for name in names:
        text: str = getattr(struct, name)
        if text != (small := text.lower()):
            msgspec.structs.force_setattr(struct, name, small)


class Kind(StrEnum):
    """The type of a message. Clients may send TEXT and IMAGE."""

    TEXT = "TEXT"
    IMAGE = "IMAGE"
    SYSTEM = "SYSTEM"


class MessageCreated(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A gateway accepted a message; it is not stored yet."""

    event_id: Uuid
    room_id: Uuid
    sender_id: Uuid
    client_msg_id: AnyUuid
    message_type: Kind
    content: Content
    produced_at: Time

    def __post_init__(self) -> None:
        small_letters(self, "client_msg_id")


class MessagePersisted(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A message is stored, with its id, its sequence in the room and the time of its row.

    Workers of this package always give the sequence; those of other programs may not.
    """

    message_id: Ulid
    room_id: Uuid
    sequence: Sequence | None = None
    sender_id: Uuid
    client_msg_id: AnyUuid
    message_type: Kind
    content: Content
    created_at: Time

    def __post_init__(self) -> None:
        small_letters(self, "client_msg_id")


Event = TypeVar("Event", MessageCreated, MessagePersisted)


def read_created(value: bytes) -> MessageCreated:
    """Decode a record of MESSAGES; raise InvalidBody with the reason if it is not valid."""
    return _read(value, MessageCreated)


def read_persisted(value: bytes) -> MessagePersisted:
    """Decode a record of PERSISTED; raise InvalidBody with the reason if it is not valid."""
    return _read(value, MessagePersisted)


def _read(value: bytes, kind: type[Event]) -> Event:
    try:
        return jsontext.decode_as(value, kind)
    except msgspec.MsgspecError as exc:
        raise InvalidBody(f"no {kind.__name__}: {exc}") from exc
    except UnicodeDecodeError as exc:
        raise InvalidBody(f"no {kind.__name__}: not UTF-8") from exc


encode = msgspec.json.Encoder().encode


def at_milliseconds(milliseconds: int) -> datetime:
    """Return the time that is this many milliseconds after the epoch."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def as_client(url: str, role: str, name: str) -> str:
    """Return the URL of topics with a client id for Kafka that tells which process of the chat this is."""
    parts = split_url(url)
    if parts.scheme != "kafka" or "client=" in parts.query:
        return url
    return f"{url}{'&' if parts.query else '?'}client={CLIENT}{role}-{re.sub(r'[^A-Za-z0-9._-]', '-', name)[:60]}"


def make_topics(connection: TopicConnection) -> None:
    """Create the topics of the chat that do not exist yet."""
    for name, shape in SHAPES.items():
        connection.driver.create(name, shape)
