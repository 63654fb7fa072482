"""Makes new inputs out of known ones. All chance comes from one `Random`, so that a seed repeats a run.

It is guided by behaviour: an input that gives an outcome not seen before (an error with another text, a value of
another form) joins the pool. That finds much of what coverage would, and costs nothing.
"""

from __future__ import annotations

import re
from random import Random

MAX_INPUT = 1 << 16
_POOL = 500
_BYTES = (
    b"\0",
    b"\n",
    b"\r",
    b"\t",
    b" ",
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xe2\x80\xa8",
    b"\xef\xbb\xbf",
    b"\xc2\x85",
)
_WORDS = (
    *_BYTES,
    *(
        word.encode()
        for word in "\"\" '' {} [] () , : ; / \\ % @ # ? & * ! | > < - -- ~ . .. $ = + _ ` null true".split()
    ),
    *(
        word.encode()
        for word in "0 -0 -1 1e999 -1e400 NaN Infinity 9223372036854775808 1e-400 1.5 00 0x1f 1_0 ٣ ²".split()
    ),
    *(
        word.encode()
        for word in r"\u0000 \ud800 \udfff \uD83D\uDE00 \x00 %00 %ff %2f %zz ${x} {{ }} <!-- =?utf-8?b??=".split()
    ),
    *(
        word.encode()
        for word in "1970-01-01T00:00:00Z 9999-12-31T23:59:59.999999+00:00 0001-01-01T00:00:00+23:59".split()
    ),
    "é한🎉\u202e".encode(),
    b"[" * 70,
    b'{"a":' * 70,
    b"9" * 400,
    b"A" * 300,
)
_number = re.compile(rb"-?\d+")


class Mutator:
    """Endless inputs from a corpus and the words of a format."""

    def __init__(self, corpus: list[bytes], words: tuple[bytes, ...], seed: int) -> None:
        self._random = Random(seed)
        self._known = list(corpus) or [b""]
        self._pool = list(self._known)
        self._words = (*_WORDS, *words)
        self._seen: set[str] = set()

    def next(self) -> bytes:
        chance = self._random
        data = chance.choice(self._pool)
        for _ in range(chance.choice((0, 1, 1, 1, 2, 2, 3, 5, 8))):
            data = self._changed(data)
        return data[:MAX_INPUT]

    def learn(self, data: bytes, outcome: str) -> None:
        """Keep an input whose outcome is new."""
        if outcome in self._seen or len(data) > 4096:
            return
        self._seen.add(outcome)
        if len(self._pool) >= len(self._known) + _POOL:
            self._pool[self._random.randrange(len(self._known), len(self._pool))] = data
        else:
            self._pool.append(data)

    def _changed(self, data: bytes) -> bytes:
        chance = self._random
        kind = chance.randrange(11)
        at, end = sorted((chance.randint(0, len(data)), chance.randint(0, len(data))))
        if kind == 0 and data:
            at = chance.randrange(len(data))
            return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        if kind == 1 and data:
            at = chance.randrange(len(data))
            return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
        if kind == 2:
            return data[:at] + data[min(end, at + chance.randint(1, 20)) :]
        if kind == 3:
            return data[:end] + data[at:end] * chance.choice((1, 2, 10)) + data[end:]
        if kind == 4:
            return data[:at]
        if kind == 5:
            other = chance.choice(self._pool)
            start = chance.randint(0, len(other))
            return data[:at] + other[start : start + chance.randint(0, 200)] + data[end:]
        if kind == 6 and (numbers := list(_number.finditer(data))):
            found = chance.choice(numbers)
            value = chance.choice((b"0", b"-1", b"1e9", b"2147483648", b"9223372036854775807", b"99999999999999999999"))
            return data[: found.start()] + value + data[found.end() :]
        if kind == 7:
            return data[:at] + chance.choice(self._words) + data[end:]
        if kind == 8:
            lines = data.split(b"\n")
            chance.shuffle(lines)
            return b"\n".join(lines)
        return data[:at] + chance.choice(self._words) + data[at:]
