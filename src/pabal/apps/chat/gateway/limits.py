"""The limits for users, addresses and sockets, and the token buckets behind the rate limits."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from pabal.apps.chat.events import MAX_CONTENT
from pabal.clock import Clock
from pabal.errors import InvalidInput

MINUTE = 60.0
_MANY = 10_000  # number of keys above which full buckets are removed


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Every limit of a gateway. Rates are per user, or per address before login."""

    content: int = MAX_CONTENT  # characters of a message
    frame: int = 65_536  # bytes of a socket's frame and of a JSON body
    sends: int = 20  # messages per second and user
    burst: int = 100  # messages at once per user
    events: int = 50  # other events per second and socket
    rooms: int = 100  # memberships of one user
    sockets_per_user: int = 10
    sockets: int = 10_000  # of one gateway
    polls: int = 200  # long polls at the same time
    waiting: int = 10_000  # packets in a slow socket's queue above which it is closed
    logins: int = 5  # per minute, address and email
    logins_per_address: int = 30  # per minute, whatever the email
    logins_per_email: int = 30  # per minute, from all addresses
    passwords: int = 10  # that are hashed or checked, or wait for it, at the same time
    registrations: int = 30  # per minute and address
    requests: int = 50  # other requests per second and user
    uploads: int = 30  # images per minute and user
    image_bytes: int = 10_000_000
    image_pixels: int = 25_000_000
    image_side: int = 16_384  # pixels
    presence: int = 200  # sockets of a room above which presence is not sent to it

    def __post_init__(self) -> None:
        for field in fields(self):
            if (found := getattr(self, field.name)) < 1:
                raise InvalidInput(f"the limit {field.name} is at least 1; found {found}")
        if self.content > MAX_CONTENT:
            raise InvalidInput(f"the limit content is at most {MAX_CONTENT}; found {self.content}")


def with_limits(changes: dict[str, int]) -> Limits:
    """Return the default limits with some of them changed."""
    names = [field.name for field in fields(Limits)]
    if unknown := changes.keys() - set(names):
        raise InvalidInput(f"limits are {', '.join(names)}; found {min(unknown)!r:.40}")
    return replace(Limits(), **changes)


class Buckets:
    """A token bucket for each key: `burst` at once, then `rate` per second."""

    def __init__(self, rate: float, burst: float, clock: Clock) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._left: dict[object, tuple[float, float]] = {}
        self._many = _MANY

    def take(self, key: object) -> float:
        """Take one token and return 0; without a token, return the seconds until there is one."""
        now = self._clock.boot()
        left, at = self._left.get(key, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._rate)
        if left < 1:
            return (1 - left) / self._rate
        if len(self._left) > self._many:
            self._forget(now)
            self._many = max(_MANY, 2 * len(self._left))  # so that each key is looked at once, not at every call
        self._left[key] = (left - 1, now)
        return 0.0

    def _forget(self, now: float) -> None:
        full = [key for key, (left, at) in self._left.items() if left + (now - at) * self._rate >= self._burst]
        for key in full:
            del self._left[key]
