"""Waiting for what other processes and threads must do."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def until(holds: Callable[[], T], seconds: float = 60.0) -> T:
    """Wait until something is true, and return it."""
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, f"it did not happen within {seconds} seconds"
        time.sleep(0.02)
    return found


def wait_until_caught(pid: int | None, number: int) -> None:
    """Wait until a process catches or ignores a signal."""

    def handled() -> bool:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        masks = (int(line.split()[1], 16) for line in lines if line.startswith(("SigCgt", "SigIgn")))
        return any(mask >> (number - 1) & 1 for mask in masks)

    until(handled)
