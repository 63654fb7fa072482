"""Makes a kingdom: the folders, and configuration that says what it may say. What is there already stays as it is."""

from __future__ import annotations

from pathlib import Path

from pabal.durable import make_dirs, replace_whole, translated
from pabal.kingdom.home import FOLDERS, KING, SYSTEM

_SYSTEM = """\
# The kingdom as a whole.
{queues}
engine: claude        # runs the soldiers of generals that name no command: claude or codex
"""
_ON_FILES = "# queues: sqlite:state/kingdom.db   # a store URL; without one the queues are the files of this folder"
_KING = """\
slack:
  default_channel: ""   # else $SLACK_DEFAULT_CHANNEL

retry:
  max_attempts: 2       # beside the first
  backoff_seconds: 60

concurrency:
  max_soldiers: 3

intervals:              # the slow poll beneath the wake-ups
  event_check_seconds: 10
  result_check_seconds: 10
  schedule_check_seconds: 60
"""


def found(root: Path, queues: str) -> None:
    """Make the folders and the configuration."""
    with translated(f"making a kingdom at {root}"):
        for folder in FOLDERS:
            make_dirs(root / folder)
        line = f"queues: {queues}" if queues else _ON_FILES
        for name, text in ((SYSTEM, _SYSTEM.format(queues=line)), (KING, _KING)):
            if not (root / name).exists():
                replace_whole(root / name, text.encode(), mode=0o644)
