"""Who is online, on any gateway: each tells the others, and all keep the same map in memory.

- A socket counts as live for TTL seconds after it came or was heard of last. A dead one is never kept by its sisters.
- A user is online while some gateway said so within TTL seconds; each repeats it every third of that. So a gateway
  that dies takes its users along without anybody tidying up.
- Rooms are told of a user whose sockets joined them, and of nobody else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from pabal.chat.gateway.presence_events import Belongs, Empty, Entered, Offline, Online, PresenceEvent
from pabal.clock import Clock

TTL = 60.0  # seconds
_CHUNK = 5000  # users of one event, which must stay below what a record may hold


class Change(NamedTuple):
    """A user came or went, and the rooms that are to be told."""

    user: str
    online: bool
    rooms: frozenset[str]


@dataclass
class _Seen:
    """A user as the gateways tell: when the word of each of them is over, and the rooms that were joined."""

    until: dict[str, float] = field(default_factory=dict)
    rooms: set[str] = field(default_factory=set)


class LocalSockets:
    """The live sockets of this gateway, by user. Tells the others what changes."""

    def __init__(self, gateway: str, clock: Clock, tell: Callable[[PresenceEvent], None]) -> None:
        self._gateway, self._clock, self._tell = gateway, clock, tell
        self._heard: dict[str, tuple[str, float]] = {}  # by socket: its user, and when it was heard of last
        self._live: dict[str, set[str]] = {}  # by user: the sockets that count
        self._rooms: dict[str, set[str]] = {}  # by user: what the others were told
        self._said = clock.boot()

    def heard(self, sid: str, user: str) -> None:
        """Take note of a sign of life: the first one too, and one after a long silence."""
        self._heard[sid] = (user, self._clock.boot())
        live = self._live.setdefault(user, set())
        if not live:
            self._tell(Online(self._gateway, [user]))
            for room in self._rooms.get(user, ()):
                self._tell(Entered(self._gateway, user, room))
        live.add(sid)

    def entered(self, user: str, room: str) -> None:
        """Take note that a socket of this user joined a room."""
        rooms = self._rooms.setdefault(user, set())
        if room not in rooms:
            rooms.add(room)
            self._tell(Entered(self._gateway, user, room))

    def left(self, user: str, room: str) -> None:
        """Take note that this user is no member of a room any more."""
        self._rooms.get(user, set()).discard(room)

    def gone(self, sid: str) -> None:
        """Take note that a socket was closed."""
        found = self._heard.pop(sid, None)
        if found is not None:
            self._silent(sid, found[0])
            if found[0] not in self._live:
                self._rooms.pop(found[0], None)

    def tick(self) -> None:
        """Give up sockets that were not heard of for too long; repeat who is online when it is time."""
        now = self._clock.boot()
        for sid, (user, at) in list(self._heard.items()):
            if now - at > TTL and sid in self._live.get(user, ()):
                self._silent(sid, user)
        if now - self._said >= TTL / 3:
            self._said = now
            users = list(self._live)
            for start in range(0, len(users), _CHUNK):
                self._tell(Online(self._gateway, users[start : start + _CHUNK]))

    def _silent(self, sid: str, user: str) -> None:
        live = self._live.get(user, set())
        live.discard(sid)
        if not live and user in self._live:
            del self._live[user]
            self._tell(Offline(self._gateway, user))


class Presence:
    """The map of all gateways' users. Fed with the events of the topic, in their order."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, _Seen] = {}

    def is_online(self, user: str) -> bool:
        """Say whether some gateway has a live socket of this user."""
        now = self._clock.boot()
        return user in self._seen and any(until > now for until in self._seen[user].until.values())

    def learn(self, event: PresenceEvent, age: float = 0.0) -> list[Change]:
        """Take in what a gateway said so many seconds ago; return what changed by it."""
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
        """Forget what was not repeated; return who went by that."""
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
