"""Time as an argument: the wall clock for dates, the boot clock for leases.

The boot clock never steps and counts time spent suspended; its readings mean something only together with `boot_id`.
Processes in different time namespaces (containers) read different boot clocks: `SystemClock` subtracts the offset of
the namespace, so that all processes of a machine have one boot clock.
"""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar

T = TypeVar("T")

SLOW_POLL = 1.0  # seconds: where nothing wakes a waiting process, and for settings that others may have changed


class Clock(Protocol):
    """The clocks that stores and queues read."""

    @property
    def boot_id(self) -> str:
        """The name of this boot: readings of `boot` in another boot cannot be compared."""
        ...

    def now(self) -> float:
        """Return seconds since the epoch. May step in either direction."""
        ...

    def boot(self) -> float:
        """Return seconds since boot. Never steps."""
        ...


_boottime = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
_INITIAL_NAMESPACE = 0xEFFFFFFA  # the inode of the time namespace in which the machine boots


class SystemClock:
    """The clocks of this machine: the boot clock is that of the machine, not that of a time namespace."""

    boot_id: str = ""
    now = staticmethod(time.time)
    boot = staticmethod(_boottime)


def _learn_namespace() -> None:
    """Set the name of this boot and the boot clock, as seen from the time namespace of this process.

    What is known stays if /proc cannot be read at this moment.
    """
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").replace("-", "").strip()[:8]
        namespace = _namespace()
        offset = _offset(namespace)
    except OSError:
        if not SystemClock.boot_id:
            # Not Linux: use the time of boot as its name, rounded to survive small steps of the wall clock.
            SystemClock.boot_id = f"{round((time.time() - _boottime()) / 600) & 0xFFFFFFFF:08x}"
        return
    if offset is None:
        # The process has left its namespace to its children: `timens_offsets` has theirs, and its own offset cannot be
        # learnt. Its readings count as those of another boot.
        boot_id = f"{boot_id}.{namespace}"
    SystemClock.boot_id = boot_id
    SystemClock.boot = staticmethod(partial(_boot_less, offset) if offset else _boottime)


def _boot_less(offset: float) -> float:
    return _boottime() - offset


def _namespace() -> int:
    """Return the inode of the time namespace of this process; 0 if the kernel has none."""
    try:
        return os.stat("/proc/self/ns/time").st_ino
    except OSError:
        return 0


def _offset(namespace: int) -> float | None:
    """Return the seconds that a namespace adds to the boot clock; None if they cannot be learnt."""
    if namespace in (0, _INITIAL_NAMESPACE):
        return 0.0
    if os.stat("/proc/self/ns/time_for_children").st_ino != namespace:
        return None
    for line in Path("/proc/self/timens_offsets").read_text("ascii").splitlines():
        clock, seconds, nanoseconds = line.split()
        if clock in ("boottime", "7"):  # older kernels print the number of the clock
            return int(seconds) + int(nanoseconds) / 1e9
    return None


def _learn_again() -> None:
    """Learn again in a forked child, if it is in a time namespace that its parent made for its children."""
    if _namespace() != _namespace_at_start:
        _learn_namespace()


_namespace_at_start = _namespace()
_learn_namespace()
os.register_at_fork(after_in_child=_learn_again)


class Refreshed(Generic[T]):
    """A value that others may change: a call reads it again if the last reading is a second old, and returns it.

    The second counts from the start of a reading, or `from_end` of it: then a slow reading is not followed by the next
    one at once. Subclasses define `_read`.
    """

    def __init__(self, now: Callable[[], float], *, from_end: bool = False) -> None:
        self._now = now
        self._from_end = from_end
        self._value: T | None = None
        self._read_at = float("-inf")

    def __call__(self) -> T:
        now, value = self._now(), self._value
        if value is None or now - self._read_at >= SLOW_POLL:
            self._value = value = self._read(value)
            self._read_at = self._now() if self._from_end else now  # last: until then every caller reads
        return value

    def _read(self, known: T | None) -> T:
        """Return the value as it is now; `known` is the one read before, if any."""
        raise NotImplementedError

    def put(self, value: T) -> None:
        """Take a value that this process has just written."""
        self._read_at = self._now()
        self._value = value

    def forget(self) -> None:
        """Read again at the next call."""
        self._read_at = float("-inf")


_DAY = 86400
_FIRST_INSTANT = -62_135_596_800.0 + _DAY  # the second day of the year 1
_LAST_INSTANT = 253_402_300_799.0 - _DAY  # the end of the last day but one of the year 9999


@lru_cache(maxsize=8)  # the messages of a batch share their time
def utc_seconds(instant: datetime) -> float:
    """Return the seconds since the epoch. A time without an offset is taken as UTC, so that every reader agrees."""
    return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()


def iso_stamp(
    seconds: float,
    *,
    timespec: Literal["auto", "seconds", "milliseconds", "microseconds"] = "milliseconds",
    utc: Literal["Z", "+00:00"] = "Z",
) -> str:
    """Return an instant as ISO 8601 text in UTC, such as `2026-01-31T09:30:00.000Z`.

    `seconds` counts from the epoch. `timespec` is that of `datetime.isoformat`. `utc` is how the text names the zone.
    An instant of a damaged row may be out of the calendar: its first or last day is returned.
    """
    text = datetime.fromtimestamp(in_calendar(seconds), UTC).isoformat(timespec=timespec)
    return text.removesuffix("+00:00") + utc


def time_of_day(seconds: float) -> str:
    """Return the local time of an instant, such as `09:30:00`."""
    return datetime.fromtimestamp(in_calendar(seconds)).strftime("%H:%M:%S")


def in_calendar(seconds: float) -> float:
    """Return an instant that `datetime` can hold in every zone; NaN is taken as the last one."""
    return max(_FIRST_INSTANT, min(_LAST_INSTANT, seconds))
