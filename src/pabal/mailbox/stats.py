"""Counts the answers of a mailbox, for its `metrics` command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from pabal.clock import Clock
from pabal.mailbox.protocol import Code

_GROUPS = {
    Code.PARSE_ERROR: "parse",
    Code.ERR_INVALID_REQUEST: "parse",
    Code.UNKNOWN_COMMAND: "parse",
    Code.VALIDATION_FAILED: "validation",
    Code.TIMEOUT: "timeout",
    Code.INTERNAL_ERROR: "internal",
}


class Answered(msgspec.Struct, frozen=True):
    """An answered request: its command, the code of its refusal (empty if it was not refused), and its duration."""

    command: str
    code: str = ""
    seconds: float = 0.0


Observe: TypeAlias = Callable[[Answered], None]


class RequestStats:
    """The counts since the mailbox was opened."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.boot()
        self._commands: Counter[str] = Counter()
        self._codes: Counter[str] = Counter()
        self.answered = 0
        self._seconds = 0.0
        self._last = 0.0

    def add(self, answered: Answered) -> None:
        self.answered += 1
        self._commands[answered.command] += 1
        self._seconds += answered.seconds
        self._last = answered.seconds
        if answered.code:
            self._codes[answered.code] += 1

    def document(self) -> dict[str, Any]:
        """Return the counts as the answer to `metrics` shows them."""
        errors = dict.fromkeys(("parse", "validation", "timeout", "internal"), 0)
        for code, count in self._codes.items():
            if group := _GROUPS.get(Code(code)):
                errors[group] += count
        refused = self._codes.total()
        average = self._seconds / self.answered if self.answered else 0.0
        return {
            "uptimeMs": round((self._clock.boot() - self._started) * 1000),
            "requests": {"total": self.answered, "success": self.answered - refused, "error": refused},
            "commands": dict(sorted(self._commands.items())),
            "errors": {**errors, "codes": dict(sorted(self._codes.items()))},
            "timing": {"total": _ms(self._seconds), "avg": _ms(average), "last": _ms(self._last)},
        }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
