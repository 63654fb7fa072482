"""Waiting for what other processes and threads must do."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(holds: Callable[[], T], seconds: float = 60.0) -> T:
    """Wait until something is true, and return it."""
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, f"it did not happen within {seconds} seconds"
        time.sleep(0.02)
    return found
