"""What `pabal up` shows of itself in a terminal: one line that is written over and over."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pabal.cli.text import clip, span

if TYPE_CHECKING:
    from pabal.manager.report import Report

_EVERY = 1.0  # seconds


class StatusLine:
    """Redraws the last line of the terminal, at most once a second."""

    def __init__(self) -> None:
        self._drawn = float("-inf")
        self._requests = 0

    def __call__(self, report: Report) -> None:
        now = time.monotonic()
        since = now - self._drawn
        if since < _EVERY:
            return
        self._drawn = now
        width = shutil.get_terminal_size().columns - 1
        sys.stdout.write(f"\r\x1b[2K{clip(self._text(report, since), width)}")
        sys.stdout.flush()

    def _text(self, report: Report, since: float) -> str:
        queues = report.queues()
        total = {
            state: sum(found["states"][state] for found in queues.values())
            for state in ("ready", "delayed", "inflight", "dead")
        }
        requests = report.requests
        rate = (requests - self._requests) / since if since < 10 else 0.0
        self._requests = requests
        told = [
            f"up {span(report.uptime)}",
            f"{len(queues)} queue{'s' * (len(queues) != 1)}: "
            + ", ".join(f"{count} {state}" for state, count in total.items()),
            f"{requests} request{'s' * (requests != 1)}" + (f", {rate:.0f}/s" if rate >= 0.5 else ""),
        ]
        return " | ".join(told)


def short(path: Path) -> str:
    """Return a path as people would type it from here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("../..") or len(relative) > len(str(path)) else relative
