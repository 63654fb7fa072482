"""Message ids that sort by time (UUIDv7, RFC 9562) and lease tokens that cannot be guessed."""

import os
import threading

from pabal.clock import Clock

_COUNTER_BITS = 42  # rand_a and the top of rand_b: room for counting within a millisecond


class IdMaker:
    """Makes ids that rise strictly within a process, also when the wall clock steps back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0

    def __call__(self) -> str:
        stamp = int(self._clock.now() * 1000) << _COUNTER_BITS
        noise = int.from_bytes(os.urandom(9), "big")
        with self._lock:
            # A random start below a quarter of the range leaves the rest for counting up within the millisecond.
            fresh = stamp | (noise & ((1 << (_COUNTER_BITS - 2)) - 1))
            self._last = stamped = max(fresh, self._last + 1)
        return _uuid7(stamped, noise >> 40)


def _uuid7(stamped: int, noise: int) -> str:
    millis, counter = stamped >> _COUNTER_BITS, stamped & ((1 << _COUNTER_BITS) - 1)
    low = (0b10 << 62) | ((counter & ((1 << 30) - 1)) << 32) | (noise & 0xFFFFFFFF)
    text = f"{millis & 0xFFFFFFFFFFFF:012x}7{counter >> 30:03x}{low:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_token() -> str:
    """Return a fresh lease token: 80 random bits in 16 characters that are legal in a file name."""
    number = int.from_bytes(os.urandom(10), "big")
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(75, -5, -5))


_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
