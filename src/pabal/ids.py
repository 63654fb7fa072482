"""Ids that sort by time (UUIDv7, RFC 9562, and ULIDs for the chat) and lease tokens that cannot be guessed."""

import os
import re
import threading
from binascii import b2a_base64
from random import getrandbits  # seeded by the system, and again in a forked child

from pabal.clock import Clock

_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32: in the order of their values
_PAIRS = [first + second for first in _LETTERS for second in _LETTERS]
_VALUES = {letter: value for value, letter in enumerate(_LETTERS)}
_NOISE_BITS = 80  # of a ULID, after the milliseconds
_STEP_BITS = 60  # of a step within a millisecond: half a million of them fit
_COUNTER_BITS = 40  # after the milliseconds and before 32 bits of noise: room for counting within a millisecond


# The digit 8 marks our ids: three in four UUIDv7s of others have another digit there.
is_ours = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{12}").fullmatch


class IdMaker:
    """Makes ids that rise strictly within a process, also when the wall clock steps back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0

    def __call__(self) -> str:
        return self._next(1)[0]

    def many(self, count: int) -> list[str]:
        """Make the ids of a batch: up to 256 of them share the reading of the clock and most digits."""
        ids: list[str] = []
        while count:
            text, low, some = self._next(count)
            ends = bytearray(getrandbits(some * 40).to_bytes(some * 5, "big"))
            ends[::5] = range(low, low + some)
            head = text[:-10]
            ids += [head + end for end in ends.hex(" ", 5).split()]
            count -= some
        return ids

    def _next(self, most: int) -> tuple[str, int, int]:
        """Take up to `most` numbers, made of milliseconds and a counter, that differ in their last byte only.

        Return the first as an id with its noise, its last byte, and how many were taken.
        """
        # A random start below a quarter of the range leaves the rest for counting up within the millisecond.
        number = int(self._clock.now() * 1000) << _COUNTER_BITS | getrandbits(_COUNTER_BITS - 2)
        with self._lock:
            if number <= self._last:
                number = self._last + 1
            low = number & 255
            some = min(most, 256 - low)
            self._last = number + some - 1
        text = (number << 32 | getrandbits(32)).to_bytes(15, "big").hex()
        # 7 is the version; 8 the variant, whose two free bits are left at 0 to keep to whole digits.
        return f"{text[:8]}-{text[8:12]}-7{text[12:15]}-8{text[15:18]}-{text[18:]}", low, some


class UlidMaker:
    """Makes ULIDs that rise strictly within a process, also within a millisecond and when the wall clock steps back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0

    def __call__(self, *, above: str = "", at: int | None = None) -> str:
        """Make an id that is also greater than `above`, whatever clock made that one.

        `at` is the time in milliseconds by another clock than this one. Ids by several clocks do not rise, except
        above those that are given.
        """
        if at is not None:
            made = at << _NOISE_BITS | getrandbits(_NOISE_BITS - 1)
            return _ulid(max(made, _number(above) + 1 + getrandbits(_STEP_BITS)) if above else made)
        made = int(self._clock.now() * 1000) << _NOISE_BITS | getrandbits(_NOISE_BITS - 1)
        # Two makers may count on from the same id: a step of random length keeps their ids different.
        step = 1 + getrandbits(_STEP_BITS)
        with self._lock:
            # An id raised above that of another maker is not remembered: its clock may be ahead.
            self._last = made = max(made, self._last + step)
        if above:
            made = max(made, _number(above) + step)
        return _ulid(made)


def _ulid(number: int) -> str:
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(120, -10, -10)])


def ulid_milliseconds(ulid: str) -> int:
    """Return the time that a ULID carries, in milliseconds since the epoch."""
    return _number(ulid) >> _NOISE_BITS


def _number(ulid: str) -> int:
    number = 0
    for letter in ulid:
        number = number << 5 | _VALUES[letter]
    return number


CONSUMER_TAG = 5  # characters at the beginning of a lease token that stand for its consumer
_SECRET = 11  # characters after it: 65 random bits
_ALPHANUMERIC = bytes.maketrans(b"+/", b"xy")


def lease_token(tag: str = "") -> str:
    """Return a fresh lease token: the tag of its consumer, and characters that cannot be guessed."""
    return tag + alphanumeric(os.urandom(9))[:_SECRET]


def new_consumer_tag() -> str:
    """Return the beginning of all tokens of a consumer; one in 900 million of them is the same as another."""
    return alphanumeric(os.urandom(6))[:CONSUMER_TAG]


def consumer_tag(token: str) -> str:
    """Return the part of a lease token that stands for its consumer."""
    return token[:CONSUMER_TAG]


def alphanumeric(data: bytes) -> str:
    """Return bytes, three in four characters, as letters and digits that are legal in a file name."""
    return b2a_base64(data, newline=False).translate(_ALPHANUMERIC).decode()


def new_token() -> str:
    """Return 64 random bits in 16 characters that are legal in a file name."""
    return os.urandom(8).hex()


def new_tag() -> str:
    """Return a short random text that differs for every file of a folder and every attempt to write it."""
    return os.urandom(5).hex()
