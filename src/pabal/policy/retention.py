"""Retention that needs time that really passed: no wall clock that jumped ahead removes anything.

A store keeps a look, a reading of both clocks. What is too old is removed when it was too old at an earlier look too
and `LOOK_SECONDS` have passed on the boot clock since then. So a wall clock that is wrong for less than that removes
nothing. It does not matter which process looks, nor how long each of them lives.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite
from typing import NamedTuple

from pabal.clock import Clock

LOOK_SECONDS = 300.0


class Look(NamedTuple):
    """A reading of both clocks, kept as text."""

    wall: float
    passed: float  # real seconds from `wall` to the reading below
    boot_id: str
    boot: float

    @classmethod
    def now(cls, clock: Clock) -> Look:
        return cls(clock.now(), 0.0, clock.boot_id, clock.boot())

    @classmethod
    def parse(cls, text: object) -> Look | None:
        """Return the look that a store kept; None if there is none that can be read."""
        try:
            wall, passed, boot_id, boot = str(text).split()
            look = cls(float(wall), float(passed), boot_id, float(boot))
        except ValueError:
            return None
        return look if isfinite(look.wall + look.boot) and 0 <= look.passed < inf else None

    def __str__(self) -> str:
        return f"{self.wall:.3f} {self.passed:.3f} {self.boot_id} {self.boot:.3f}"

    def seen(self, clock: Clock) -> Look:
        """Return the look to keep from now on.

        It is a new one if the wall clock is before it: one of the two is wrong, and the later one would remove more. A
        boot clock before it tells that the look is damaged. After a reboot the time since the boot has passed too.
        """
        is_same_boot = clock.boot_id == self.boot_id
        if clock.now() < self.wall or is_same_boot and clock.boot() < self.boot:
            return Look.now(clock)
        if is_same_boot:
            return self
        return self._replace(passed=self.passed + clock.boot(), boot_id=clock.boot_id, boot=clock.boot())

    def is_old(self, clock: Clock) -> bool:
        """Return whether enough time has really passed since the look; `seen` comes first."""
        return self.passed + clock.boot() - self.boot >= LOOK_SECONDS


def trim_seen_twice(
    clock: Clock,
    limit: int,
    *,
    kept: object,
    keep: Callable[[Look], None],
    is_due: Callable[[float], bool],
    remove: Callable[[float], int],
) -> int:
    """Remove what was due at an earlier look too; return how many.

    `kept` is the text of the last look, `keep` replaces it. `is_due` returns whether anything is too old at an instant
    of the wall clock; `remove` removes up to `limit` of that and returns how many.
    """
    look = Look.parse(kept)
    if look is not None and (seen := look.seen(clock)) is not look:
        look = seen
        keep(look)
    if not is_due(clock.now()):
        return 0
    if look is None:
        keep(Look.now(clock))
        return 0
    if not look.is_old(clock):
        return 0
    removed = remove(look.wall)
    if removed < limit:
        keep(Look.now(clock))
    return removed


class RetentionClock:
    """The wall clock for the retention of a process that runs for long: the look is kept in memory."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._look = Look.now(clock)

    def now(self) -> float | None:
        """Return the instant of a look that is old enough, and take a new one; None if there is none yet."""
        look = self._look.seen(self._clock)
        is_old = look.is_old(self._clock)
        self._look = Look.now(self._clock) if is_old else look
        return look.wall if is_old else None
