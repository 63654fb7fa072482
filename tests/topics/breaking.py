"""Breaks the database handles of this process: from here on writing to the WAL of a file fails."""

import os
from pathlib import Path


def break_handles(path: Path) -> None:
    """Let every handle of a database that is open in this process meet an I/O error at its next commit."""
    wal = os.path.realpath(f"{path}-wal")
    unwritable = os.open("/dev/null", os.O_RDONLY)
    try:
        for number in _descriptors_of(wal):
            os.dup2(unwritable, number, inheritable=False)
    finally:
        os.close(unwritable)


def _descriptors_of(path: str) -> list[int]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == path:
                found.append(int(name))
        except FileNotFoundError:
            continue
    assert found, f"{path} is not open"
    return found
