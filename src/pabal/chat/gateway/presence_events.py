"""What gateways tell each other over the presence topic."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from pabal.topic import NewRecord, Record


class Online(msgspec.Struct, frozen=True, tag="online"):
    """These users have a live socket at this gateway. Said when they come, and again and again while they stay."""

    gateway: str
    users: list[str]


class Offline(msgspec.Struct, frozen=True, tag="offline"):
    """The last live socket that this user had at this gateway is gone."""

    gateway: str
    user: str


class Entered(msgspec.Struct, frozen=True, tag="entered"):
    """A socket of this user has joined a room at this gateway, which told nobody of it before."""

    gateway: str
    user: str
    room: str


class Empty(msgspec.Struct, frozen=True, tag="empty"):
    """This gateway has begun or ended: nobody is online there."""

    gateway: str


class Typing(msgspec.Struct, frozen=True, tag="typing"):
    """This user types in this room."""

    user: str
    room: str


class Belongs(msgspec.Struct, frozen=True, tag="belongs"):
    """This user became a member of this room, or is one no more."""

    user: str
    room: str
    member: bool


PresenceEvent: TypeAlias = Online | Offline | Entered | Empty | Typing | Belongs

_decoder: msgspec.json.Decoder[PresenceEvent] = msgspec.json.Decoder(PresenceEvent)
_encode = msgspec.json.Encoder().encode


def record_of(event: PresenceEvent) -> NewRecord:
    return NewRecord(_encode(event))


def event_of(record: Record) -> PresenceEvent | None:
    """Return what a record says; None if it is from somebody who speaks another language."""
    try:
        return _decoder.decode(record.value)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
