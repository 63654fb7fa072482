"""What a process, the machine and the disk under a folder use, read with psutil, an extra of whoever asks."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec

from pabal.errors import ExtraMissing


class Usage(msgspec.Struct, frozen=True, rename="camel"):
    """One process at one moment. `cpu_seconds` grows: the difference of two readings is what was used between them."""

    pid: int
    cpu_seconds: float
    resident_bytes: int
    threads: int
    descriptors: int
    uptime_seconds: float


class Room(msgspec.Struct, frozen=True, rename="camel"):
    """The file system that holds a folder."""

    total_bytes: int
    free_bytes: int
    free_files: int


class Load(msgspec.Struct, frozen=True, rename="camel"):
    """How busy the machine is, in percent. `cpu` is the average since the reading before."""

    cpu: float
    memory: float
    disk: float


def _psutil(extra: str) -> Any:
    try:
        import psutil
    except ImportError as exc:
        raise ExtraMissing(f"resource readings need psutil: pip install 'pabal[{extra}]'") from exc
    return psutil


def load(folder: Path) -> Load:
    """Read how busy the machine is, with the disk under a folder. In the first reading of a process `cpu` is 0."""
    psutil = _psutil("kingdom")
    found = os.statvfs(folder)
    used, free = found.f_blocks - found.f_bfree, found.f_bavail
    disk = round(100 * used / max(1, used + free), 1)
    return Load(psutil.cpu_percent(None), psutil.virtual_memory().percent, disk)


def usage(pid: int | None = None) -> Usage | None:
    """Read what a process uses, by default this one; None if there is no such process."""
    psutil = _psutil("manager")
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            return Usage(
                process.pid,
                times.user + times.system,
                process.memory_info().rss,
                process.num_threads(),
                process.num_fds(),
                time.time() - process.create_time(),
            )
    except psutil.NoSuchProcess:
        return None


def room(folder: Path) -> Room:
    """Read how much is free where a folder lies."""
    found = os.statvfs(folder)
    return Room(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, found.f_favail)
