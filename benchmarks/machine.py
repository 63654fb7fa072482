"""The facts without which a figure says nothing: machine, file system, versions."""

import os
import platform
import sqlite3
from importlib.metadata import version
from pathlib import Path

import apsw

_PACKAGES = ("pabal", "apsw", "msgspec", "litequeue", "persist-queue", "huey")


def file_system(place: Path) -> tuple[str, str]:
    """Return type and options of the file system that holds a path."""
    best, found = "", ("unknown", "")
    with open("/proc/mounts", encoding="utf-8") as mounts:
        for line in mounts:
            _device, point, kind, options, *_ = line.split()
            if place.is_relative_to(point) and len(point) >= len(best):
                best, found = point, (kind, options)
    return found


def facts(place: Path) -> list[str]:
    """Return one line per fact."""
    kind, options = file_system(place)
    return [
        f"machine: {_processor()}, {os.cpu_count()} cores, {_memory():.1f} GB, Linux {platform.release()}",
        f"file system: {kind} ({options})",
        f"Python {platform.python_version()}; SQLite {apsw.sqlite_lib_version()} for Pabal and raw,"
        f" {sqlite3.sqlite_version} for the peers, whose default synchronous is {_default_synchronous()}",
        "packages: " + ", ".join(f"{name} {version(name)}" for name in _PACKAGES),
        f"load average at the start: {os.getloadavg()[0]:.2f}",
    ]


def _default_synchronous() -> str:
    db = sqlite3.connect(":memory:")
    [level] = db.execute("pragma synchronous").fetchone()
    db.close()
    return ("OFF", "NORMAL", "FULL", "EXTRA")[level]


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        names = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
