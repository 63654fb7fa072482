"""How much one user, address or socket may ask for, and the buckets that count it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from pabal.chat.events import MAX_CONTENT
from pabal.clock import Clock
from pabal.errors import InvalidInput

MINUTE = 60.0
_MANY = 10_000  # keys above which full buckets are forgotten


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Every limit of a gateway. Rates are for one user, or for one address before anybody is logged in."""

    content: int = MAX_CONTENT  # characters of a message
    frame: int = 65_536  # bytes of a frame of a socket, and of a body of JSON
    sends: int = 20  # messages in a second, for one user
    burst: int = 100  # messages at once, for one user
    events: int = 50  # other events in a second, for one socket
    rooms: int = 100  # that one user is in
    sockets_per_user: int = 10
    sockets: int = 10_000  # of one gateway
    polls: int = 200  # long polls that wait at the same time
    waiting: int = 10_000  # packets that a slow socket may be behind before it is closed
    logins: int = 5  # in a minute, for one address and email
    registrations: int = 30  # in a minute, for one address
    requests: int = 50  # other requests in a second, for one user
    uploads: int = 30  # images in a minute, for one user
    image_bytes: int = 10_000_000
    image_pixels: int = 25_000_000
    presence: int = 200  # sockets of a room up to which it is told who comes and goes

    def __post_init__(self) -> None:
        for field in fields(self):
            if (found := getattr(self, field.name)) < 1:
                raise InvalidInput(f"the limit {field.name} is at least 1; found {found}")
        if self.content > MAX_CONTENT:
            raise InvalidInput(f"the limit content is at most {MAX_CONTENT}; found {self.content}")


def with_limits(changes: dict[str, int]) -> Limits:
    """Return the usual limits with some of them changed."""
    names = [field.name for field in fields(Limits)]
    if unknown := changes.keys() - set(names):
        raise InvalidInput(f"limits are {', '.join(names)}; found {min(unknown)!r:.40}")
    return replace(Limits(), **changes)


class Buckets:
    """A bucket of permissions for each key: `burst` at once, then `rate` a second."""

    def __init__(self, rate: float, burst: float, clock: Clock) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._left: dict[object, tuple[float, float]] = {}

    def take(self, key: object) -> float:
        """Return 0 if one more is allowed, which is then taken; else the seconds until one will be."""
        now = self._clock.boot()
        left, at = self._left.get(key, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._rate)
        if left < 1:
            return (1 - left) / self._rate
        if len(self._left) > _MANY:
            self._forget(now)
        self._left[key] = (left - 1, now)
        return 0.0

    def _forget(self, now: float) -> None:
        full = [key for key, (left, at) in self._left.items() if left + (now - at) * self._rate >= self._burst]
        for key in full:
            del self._left[key]
