"""Message ids that sort by time (UUIDv7, RFC 9562) and lease tokens that cannot be guessed."""

import os
import threading
from random import getrandbits  # seeded by the system, and anew in a forked child

from pabal.clock import Clock

_COUNTER_BITS = 40  # after the milliseconds and before 32 bits of noise: room for counting within a millisecond


class IdMaker:
    """Makes ids that rise strictly within a process, also when the wall clock steps back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0

    def __call__(self) -> str:
        # A random start below a quarter of the range leaves the rest for counting up within the millisecond.
        stamped = int(self._clock.now() * 1000) << _COUNTER_BITS | getrandbits(_COUNTER_BITS - 2)
        with self._lock:
            if stamped <= self._last:
                stamped = self._last + 1
            self._last = stamped
        text = (stamped << 32 | getrandbits(32)).to_bytes(15, "big").hex()
        # 7 is the version; 8 the variant, whose two free bits are left at 0 to keep to whole digits.
        return f"{text[:8]}-{text[8:12]}-7{text[12:15]}-8{text[15:18]}-{text[18:]}"


def new_token() -> str:
    """Return a fresh lease token: 64 random bits in 16 characters that are legal in a file name."""
    return os.urandom(8).hex()
