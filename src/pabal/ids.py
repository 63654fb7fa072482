"""Ids that sort by time (UUIDv7, RFC 9562, and ULIDs for the chat) and lease tokens that cannot be guessed."""

import os
import re
import threading
from random import getrandbits  # seeded by the system, and anew in a forked child

from pabal.clock import Clock

_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32: in the order of their values
_PAIRS = [first + second for first in _LETTERS for second in _LETTERS]
_VALUES = {letter: value for value, letter in enumerate(_LETTERS)}
_NOISE_BITS = 80  # of a ULID, after the milliseconds
_STEP_BITS = 60  # of a step within a millisecond: half a million of them fit
_COUNTER_BITS = 40  # after the milliseconds and before 32 bits of noise: room for counting within a millisecond


# The digit 8 is ours: of the UUIDv7s of others three in four have another.
is_ours = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{12}").fullmatch


class IdMaker:
    """Makes ids that rise strictly within a process, also when the wall clock steps back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0

    def __call__(self) -> str:
        return _text(self._count(1))

    def many(self, count: int) -> list[str]:
        """Make the ids of a batch: one look at the clock for all, and most digits written once for 256 of them."""
        first = self._count(count)
        ids: list[str] = []
        while count:
            low = first & 255
            some = min(count, 256 - low)
            ends = bytearray(getrandbits(some * 40).to_bytes(some * 5, "big"))
            ends[::5] = range(low, low + some)
            head = _text(first)[:-10]
            ids += [head + end for end in ends.hex(" ", 5).split()]
            first += some
            count -= some
        return ids

    def _count(self, count: int) -> int:
        """Take so many numbers, each of milliseconds and counter, and return the first."""
        # A random start below a quarter of the range leaves the rest for counting up within the millisecond.
        first = int(self._clock.now() * 1000) << _COUNTER_BITS | getrandbits(_COUNTER_BITS - 2)
        with self._lock:
            if first <= self._last:
                first = self._last + 1
            self._last = first + count - 1
        return first


def _text(number: int) -> str:
    """Write a number and its noise as an id."""
    text = (number << 32 | getrandbits(32)).to_bytes(15, "big").hex()
    # 7 is the version; 8 the variant, whose two free bits are left at 0 to keep to whole digits.
    return f"{text[:8]}-{text[8:12]}-7{text[12:15]}-8{text[15:18]}-{text[18:]}"


class UlidMaker:
    """Makes ULIDs that rise strictly within a process, also within a millisecond and when the wall clock steps back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0

    def __call__(self, *, above: str = "") -> str:
        """Make one that is greater than `above` too, whatever clock that one was made by."""
        made = int(self._clock.now() * 1000) << _NOISE_BITS | getrandbits(_NOISE_BITS - 1)
        # Two makers may count on from the same one: a step of a random length keeps them from meeting.
        step = 1 + getrandbits(_STEP_BITS)
        with self._lock:
            # One that is lifted above a stranger's is not kept: a clock that is ahead must not infect the others.
            self._last = made = max(made, self._last + step)
        if above:
            made = max(made, _number(above) + step)
        return "".join([_PAIRS[made >> shift & 1023] for shift in range(120, -10, -10)])


def ulid_milliseconds(ulid: str) -> int:
    """Return the time that a ULID carries, in milliseconds since the epoch."""
    return _number(ulid) >> _NOISE_BITS


def _number(ulid: str) -> int:
    number = 0
    for letter in ulid:
        number = number << 5 | _VALUES[letter]
    return number


def new_token() -> str:
    """Return a fresh lease token: 64 random bits in 16 characters that are legal in a file name."""
    return os.urandom(8).hex()
