"""A clock that stands still until a test moves it."""

import time
from typing import Final

_MORNING: Final = 1000.0  # seconds since boot at the start: not 0, so that leases of an earlier boot differ


class ManualClock:
    """Both clocks of a machine, moved by hand.

    The wall clock starts at the real date, in whole seconds, because files carry real times of change.
    """

    def __init__(self, now: float | None = None, boot: float = _MORNING, boot_id: str = "b0000001") -> None:
        self._now = float(int(time.time())) if now is None else now
        self._boot = boot
        self._boot_id = boot_id

    @property
    def boot_id(self) -> str:
        return self._boot_id

    def now(self) -> float:
        return self._now

    def boot(self) -> float:
        return self._boot

    def advance(self, seconds: float) -> None:
        """Let time pass: both clocks move."""
        self._now += seconds
        self._boot += seconds

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as NTP or an operator does; no time passes."""
        self._now += seconds

    def reboot(self, seconds: float = 30.0) -> None:
        """Restart the machine, which takes some seconds: the boot clock starts again under a new name."""
        self._now += seconds
        self._boot = 1.0
        self._boot_id = f"b{int(self._boot_id[1:], 16) + 1:07x}"
