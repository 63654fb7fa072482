"""The users that are online, on any gateway: each informs the others, and all keep the same map in memory.

- A socket counts as live for TTL seconds after its last sign of life. A dead socket does not count because another
  socket of the same user is alive.
- A user is online while some gateway announced it within TTL seconds; each gateway repeats it every third of that. So
  the users of a gateway that dies go offline by themselves.
- Rooms are informed only of users whose sockets joined them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import msgspec

from pabal import jsontext
from pabal.clock import Clock
from pabal.topic_store import NewRecord, Record

TTL = 60.0  # seconds
_CHUNK = 5000  # users per event, so that it fits into a record


class Change(NamedTuple):
    """A user that came or went, and the rooms to inform."""

    user: str
    online: bool
    rooms: frozenset[str]


@dataclass
class _Seen:
    """A user: when the announcement of each gateway ends, and the joined rooms."""

    until: dict[str, float] = field(default_factory=dict)
    rooms: set[str] = field(default_factory=set)


class LocalSockets:
    """The live sockets of this gateway, by user. It announces changes to the other gateways."""

    def __init__(self, gateway: str, clock: Clock, announce: Callable[[PresenceEvent], None]) -> None:
        self._gateway, self._clock, self._announce = gateway, clock, announce
        self._heard: dict[str, tuple[str, float]] = {}  # by socket: its user, and its last sign of life
        self._live: dict[str, set[str]] = {}  # by user: the sockets that count
        self._rooms: dict[str, set[str]] = {}  # by user: the rooms that were announced
        self._announced_at = clock.boot()

    def heard(self, sid: str, user: str) -> None:
        """Note a sign of life, including the first one and one after a long silence."""
        self._heard[sid] = (user, self._clock.boot())
        live = self._live.setdefault(user, set())
        if not live:
            self._announce(Online(self._gateway, [user]))
            for room in self._rooms.get(user, ()):
                self._announce(Entered(self._gateway, user, room))
        live.add(sid)

    def entered(self, user: str, room: str) -> None:
        """Note that a socket of this user joined a room."""
        rooms = self._rooms.setdefault(user, set())
        if room not in rooms:
            rooms.add(room)
            self._announce(Entered(self._gateway, user, room))

    def left(self, user: str, room: str) -> None:
        """Note that this user is no longer a member of a room."""
        self._rooms.get(user, set()).discard(room)

    def gone(self, sid: str) -> None:
        """Note that a socket was closed."""
        found = self._heard.pop(sid, None)
        if found is not None:
            self._silent(sid, found[0])
            if found[0] not in self._live:
                self._rooms.pop(found[0], None)

    def tick(self) -> None:
        """Drop sockets that were silent for too long, and repeat the announcements when they are due."""
        now = self._clock.boot()
        for sid, (user, at) in list(self._heard.items()):
            if now - at > TTL and sid in self._live.get(user, ()):
                self._silent(sid, user)
        if now - self._announced_at >= TTL / 3:
            self._announced_at = now
            users = list(self._live)
            for start in range(0, len(users), _CHUNK):
                self._announce(Online(self._gateway, users[start : start + _CHUNK]))

    def _silent(self, sid: str, user: str) -> None:
        live = self._live.get(user, set())
        live.discard(sid)
        if not live and user in self._live:
            del self._live[user]
            self._announce(Offline(self._gateway, user))


class Presence:
    """The users of all gateways, built from the events of the topic in their order."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, _Seen] = {}

    def is_online(self, user: str) -> bool:
        """Return whether some gateway has a live socket of this user."""
        now = self._clock.boot()
        return user in self._seen and any(until > now for until in self._seen[user].until.values())

    def learn(self, event: PresenceEvent, age: float = 0.0) -> list[Change]:
        """Apply an event that is `age` seconds old; return the changes."""
        match event:
            case Online(gateway, users):
                until = self._clock.boot() + TTL - min(max(age, 0.0), TTL)
                for user in users:
                    self._seen.setdefault(user, _Seen()).until[gateway] = until
            case Offline(gateway, user):
                return self._forget(user, gateway)
            case Empty(gateway):
                return [change for user in list(self._seen) for change in self._forget(user, gateway)]
            case Entered(_, user, room) if user in self._seen and room not in self._seen[user].rooms:
                self._seen[user].rooms.add(room)
                return [Change(user, True, frozenset([room]))]
            case Belongs(user, room, False) if user in self._seen:
                self._seen[user].rooms.discard(room)
        return []

    def tick(self) -> list[Change]:
        """Remove announcements that were not repeated in time; return the users that went offline."""
        now = self._clock.boot()
        over = [
            (user, gateway)
            for user, seen in self._seen.items()
            for gateway, until in seen.until.items()
            if until <= now
        ]
        return [change for user, gateway in over for change in self._forget(user, gateway)]

    def _forget(self, user: str, gateway: str) -> list[Change]:
        seen = self._seen.get(user)
        if seen is None or seen.until.pop(gateway, None) is None or seen.until:
            return []
        del self._seen[user]
        return [Change(user, False, frozenset(seen.rooms))]


class Online(msgspec.Struct, frozen=True, tag="online"):
    """These users have a live socket at this gateway. Sent when they come, and repeated while they stay."""

    gateway: str
    users: list[str]


class Offline(msgspec.Struct, frozen=True, tag="offline"):
    """This user has no live socket at this gateway any more."""

    gateway: str
    user: str


class Entered(msgspec.Struct, frozen=True, tag="entered"):
    """A socket of this user joined a room at this gateway for the first time."""

    gateway: str
    user: str
    room: str


class Empty(msgspec.Struct, frozen=True, tag="empty"):
    """This gateway has started or stopped: nobody is online there."""

    gateway: str


class Typing(msgspec.Struct, frozen=True, tag="typing"):
    """This user is typing in this room."""

    user: str
    room: str


class Belongs(msgspec.Struct, frozen=True, tag="belongs"):
    """This user joined this room as a member, or left it."""

    user: str
    room: str
    member: bool


class HasRead(msgspec.Struct, frozen=True, tag="read"):
    """This user has read this room up to a sequence."""

    user: str
    room: str
    sequence: int


class Renamed(msgspec.Struct, frozen=True, tag="renamed"):
    """This room has a new name."""

    room: str
    name: str


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """These sessions were ended before their time."""

    sessions: list[str]


PresenceEvent: TypeAlias = Online | Offline | Entered | Empty | Typing | Belongs | HasRead | Renamed | Ended

_decode: Callable[[bytes], PresenceEvent] = jsontext.decoder(PresenceEvent)  # type: ignore[arg-type]  # a union
_encode = msgspec.json.Encoder().encode


def record_of(event: PresenceEvent) -> NewRecord:
    return NewRecord(_encode(event))


def event_of(record: Record) -> PresenceEvent | None:
    """Decode a record; None if its type is unknown."""
    try:
        return _decode(record.value)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
