"""How long a soldier is waited for: its timeout, longer while it shows signs of life, never twice as long."""

from __future__ import annotations

SIGN = 30.0  # seconds: a sign of life is recent
EXTENSION = 60.0


class Waiting:
    """The patience of a general with one soldier. Instants are readings of one clock."""

    def __init__(self, started: float, timeout: float) -> None:
        self._deadline = started + timeout
        self._last = started + 2 * timeout

    def is_over(self, now: float, silent: float) -> bool:
        """Say whether to give up; `silent` are the seconds since the last sign of life."""
        if now < self._deadline:
            return False
        if silent <= SIGN and self._deadline < self._last:
            self._deadline = min(now + EXTENSION, self._last)
            return now >= self._deadline
        return True
