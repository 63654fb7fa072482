"""Readings of a process, of the machine and of a disk, from /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from pabal.store import Store

_TICKS = os.sysconf("SC_CLK_TCK")  # per second
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage(msgspec.Struct, frozen=True, rename="camel"):
    """One process at one moment. `cpu_seconds` grows: the difference of two readings is what was used in between."""

    pid: int
    cpu_seconds: float
    resident_bytes: int
    threads: int
    descriptors: int
    uptime_seconds: float


class Load(msgspec.Struct, frozen=True, rename="camel"):
    """How busy the machine is, in percent. `cpu` is the average since the reading before."""

    cpu: float
    memory: float
    disk: float


class MachineLoad:
    """Reads how busy the machine is, with the disk of a folder. In the first reading `cpu` is 0."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None

    def __call__(self, folder: Path) -> Load:
        now = _cpu_times()
        before, self._before = self._before or now, now
        busy, total = (new - old for new, old in zip(now, before, strict=True))
        memory = _memory()
        found = os.statvfs(folder)
        used, free = found.f_blocks - found.f_bfree, found.f_bavail
        return Load(
            round(100 * max(0.0, busy) / total, 1) if total > 0 else 0.0,
            round(100 * (memory["MemTotal"] - memory["MemAvailable"]) / memory["MemTotal"], 1),
            round(100 * used / max(1, used + free), 1),
        )


def usage(pid: int | None = None) -> Usage | None:
    """Read what a process uses, by default this one; None if there is no such process, or no /proc."""
    place = Path("/proc") / str(os.getpid() if pid is None else pid)
    fields = _stat_fields(place)
    try:
        pages = int((place / "statm").read_text().split()[1])
        descriptors = len(os.listdir(place / "fd"))
    except OSError:
        return None
    if fields is None or fields[0] == "Z":
        return None
    user, system, threads, started = (int(fields[index]) for index in (11, 12, 17, 19))
    return Usage(
        int(place.name),
        (user + system) / _TICKS,
        pages * _PAGE,
        threads,
        descriptors,
        time.clock_gettime(time.CLOCK_BOOTTIME) - started / _TICKS,
    )


def start_ticks(pid: int) -> int | None:
    """Return the clock ticks after boot at which a process was started; None if there is no such process."""
    fields = _stat_fields(Path("/proc") / str(pid))
    return None if fields is None else int(fields[19])


def free_bytes(folder: Path) -> int:
    """Read how many bytes are free on the disk of a folder."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def store_metrics(store: Store) -> dict[str, int | None]:
    """Return the free bytes on the disk of a store and whether its ballast is there; None where it has none."""
    facts = store.facts()
    place = Path(facts.get("place", ""))
    while place.is_absolute() and not place.exists():
        place = place.parent
    try:
        free = free_bytes(place) if place.is_absolute() else None
    except OSError:
        free = None
    return {"freeBytes": free, "ballast": int(facts["ballast"] == "present") if "ballast" in facts else None}


def _stat_fields(place: Path) -> list[str] | None:
    """Return the fields of a process after its name, which may hold anything: the state comes first."""
    try:
        return (place / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _cpu_times() -> tuple[float, float]:
    """Return the busy ticks and all ticks of the machine since it started."""
    with open("/proc/stat") as file:
        times = [int(word) for word in file.readline().split()[1:9]]  # guest time is part of user time
    return float(sum(times) - times[3] - times[4]), float(sum(times))  # idle, and waiting for a disk


def _memory() -> dict[str, int]:
    lines = (line.partition(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return {name: int(value.split()[0]) for name, _, value in lines}
