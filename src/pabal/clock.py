"""Time as an argument: the wall clock for dates, the boot clock for leases.

The boot clock never steps and counts time spent suspended; its readings mean something only together with `boot_id`.
"""

import time
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """Where a store and a queue read the time."""

    @property
    def boot_id(self) -> str:
        """Name this boot: readings of `boot` under another name cannot be compared."""
        ...

    def now(self) -> float:
        """Return seconds since the epoch. May step in either direction."""
        ...

    def boot(self) -> float:
        """Return seconds since boot. Never steps."""
        ...


class SystemClock:
    """The clocks of this machine."""

    @cached_property
    def boot_id(self) -> str:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").replace("-", "").strip()[:8]
        except OSError:
            # No Linux: the moment of boot is as good a name, rounded to survive small steps of the wall clock.
            return f"{round((time.time() - self.boot()) / 600) & 0xFFFFFFFF:08x}"

    now = staticmethod(time.time)
    boot = staticmethod(partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)))
